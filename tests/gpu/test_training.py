"""Training on a GPU: the numbers of the CPU, and few occasions at which the host waits."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, KeyMaskedEnv, MaskedEnv, vec
from parametrization import part
from simulated_device import waits
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from tensor_envs import TensorTwin
from torch import nn

from ppo_plus import (
    ActorCriticPolicy,
    ColoredNoise,
    PPO_Plus,
    RandomNetworkDistillation,
    Resumable,
    Stream,
    as_vec_env,
    record_demonstrations,
)
from ppo_plus.compiling.compiled import CompileError
from ppo_plus.policy.recurrent import MOST_STARTS, RecurrentMemory

N_STEPS = 16
#: The waits of an update, and in a rollout those besides the one of each step.
PER_UPDATE, PER_ROLLOUT = 5, 3


class Dropping(ActorCriticPolicy):
    """With dropout and batch normalization, which an update that has stopped must leave alone."""

    def _build_mlp_extractor(self):
        super()._build_mlp_extractor()
        for name in ("policy_net", "value_net"):
            layers = [*getattr(self.mlp_extractor, name), nn.Dropout(0.2), *self.last()]
            setattr(self.mlp_extractor, name, nn.Sequential(*layers))

    def last(self):
        return []


class Normalizing(Dropping):
    def last(self):
        return [nn.BatchNorm1d(64)]


def envs(kind, observation="box", **kwargs):
    return lambda device: vec(ACTIONS[kind], OBSERVATIONS[observation], **kwargs)


def tensors(kind, masks=None, **kwargs):
    return lambda device: as_vec_env(TensorTwin(4, ACTIONS[kind], masks, device=device, **kwargs))


SMALL = {"lstm_hidden_size": 8}
INSIDE = {"normalize_observations": True, "normalize_values": True}
GSDE = {"use_sde": True, "sde_sample_freq": "episode"}
APART = {"policy_kwargs": {"net_arch": {"pi": [16], "vf": [16]}, "share_features_extractor": False}}
#: Environments, policy, arguments.
CASES = {
    "box": (envs("box"), "MlpPolicy", {}),
    "squashed": (envs("box"), "MlpPolicy", {"policy_kwargs": {"squash_output": True}, "ent_coef": 0.01}),
    "multidiscrete": (envs("multidiscrete"), "MlpPolicy", {}),
    "multibinary": (envs("multibinary"), "MlpPolicy", {}),
    "mixed, colored": (envs("mixed"), "MlpPolicy", {"exploration": ColoredNoise(0.5, horizon=16)}),
    "masks": (envs("multidiscrete", env_class=MaskedEnv), "MlpPolicy", {"ent_coef": 0.1}),
    "mask entry": (envs("discrete", "dict", env_class=KeyMaskedEnv), "MultiInputPolicy", {"action_mask_key": "mask"}),
    "dict": (envs("box", "dict"), "MultiInputPolicy", {}),
    "image": (envs("discrete", "image"), "CnnPolicy", {}),
    "autocast": (envs("discrete", "image"), "CnnPolicy", {"policy_kwargs": {"autocast": True}}),
    "lstm": (envs("multidiscrete"), "MlpLstmPolicy", {"policy_kwargs": SMALL | {"n_lstm_layers": 2}}),
    "gru, gsde": (envs("box"), "MlpGruPolicy", {"policy_kwargs": SMALL | {"n_lstm_layers": 2}} | GSDE),
    "lru": (envs("mixed"), "MlpLruPolicy", {"policy_kwargs": SMALL | {"n_lstm_layers": 2}}),
    "attention": (envs("box"), "MlpAttentionPolicy", {"policy_kwargs": SMALL | {"attention_window": 4}} | GSDE),
    "gsde": (envs("box"), "MlpPolicy", GSDE),
    "penalty": (envs("box"), "MlpPolicy", {"target_kl": 0.003, "kl_control": "penalty", "n_epochs": 2}),
    "apart": (envs("box"), "MlpPolicy", {"normalize_advantage": "rollout", "clip_range_vf": 0.2} | APART),
    "tensors": (tensors("box"), "MlpPolicy", {}),
    "tensors, normalized": (tensors("mixed"), "MlpPolicy", {"normalize_advantage": "rollout"} | INSIDE),
    "tensors, dict": (tensors("box", is_dict=True), "MultiInputPolicy", {}),
    "tensors, masks": (tensors("multidiscrete", "method"), "MlpPolicy", {"ent_coef": 0.1}),
    "tensors, mask entry": (tensors("discrete", "key"), "MultiInputPolicy", {"action_mask_key": "mask"}),
    "tensors, lstm": (tensors("discrete"), "MlpLstmPolicy", {"policy_kwargs": SMALL}),
    "tensors, gsde": (tensors("box"), "MlpPolicy", GSDE),
}
#: On a GPU, held noise is drawn for all environments, and autocast rounds.
OTHER_NUMBERS = {"tensors, gsde", "autocast"}
#: Cases whose parts are in other traced cases: `make check` leaves them out.
IN_OTHERS = {"masks", "gru, gsde", "tensors, gsde"}
#: What is traced on the simulated GPU: each way to act and to learn once.
TRACED = IN_OTHERS | {"mixed, colored", "penalty", "apart", "tensors, masks", "tensors, lstm"}


class Counting(PPO_Plus):
    """Counts the waits of each rollout and update."""

    def collect_rollouts(self, *args):
        with waits() as found:
            keep_training = super().collect_rollouts(*args)
        vars(self).setdefault("rollouts", []).append(found)
        return keep_training

    def train(self):
        with waits() as found:
            super().train()
        vars(self).setdefault("updates", []).append(found)


def trained(name_or_case, device, n_rollouts=2, **kwargs):
    make, policy, given = CASES[name_or_case] if isinstance(name_or_case, str) else name_or_case
    settings = {"n_steps": N_STEPS, "batch_size": 8, "n_epochs": 4, "seed": 0, "compile": False} | given | kwargs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*without convolutions")
        model = Counting(policy, make(device), device=device, **settings)
    return model.learn(n_rollouts * N_STEPS * model.n_envs)


def difference(one, other):
    pairs = zip(*({**model.policy.state_dict()}.values() for model in (one, other)), strict=True)
    return max((a.cpu().double() - b.cpu().double()).abs().max().item() for a, b in pairs)


@pytest.fixture
def same_order(monkeypatch):
    """On a GPU, torch draws the order of minibatches of environments in tensors: here on the CPU, too."""
    monkeypatch.setattr(np.random, "permutation", lambda n: th.randperm(n, device="cpu").numpy())


@pytest.mark.parametrize("name", ["dict", "lstm", "tensors, normalized", "tensors, masks"])
def test_pretraining_is_as_on_the_cpu(name, is_simulated):
    """With memory, inside normalization, masks, and a critic."""
    make, policy, given = CASES[name]
    models = []
    for device in ("cuda", "cpu"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*without convolutions")
            model = PPO_Plus(policy, make(device), n_steps=8, batch_size=8, seed=0, device=device, **given)
        models.append(model)
    data = record_demonstrations(models[1], make("cpu"), 4, seed=0)
    for model in models:
        model.pretrain(data, n_epochs=2, batch_size=8)
    assert {p.device.type for p in models[0].policy.parameters()} == {"cuda"}
    assert difference(*models) < (1e-6 if is_simulated else 1e-2)
    models[0].learn(8)


@pytest.mark.parametrize("name", part(CASES, CASES.keys() - IN_OTHERS))
def test_training_is_as_on_the_cpu_and_waits_rarely(name, is_simulated, same_order):
    model = trained(name, "cuda")
    assert {p.device.type for p in model.policy.parameters()} == {"cuda"}
    assert all(p.isfinite().all() for p in model.policy.parameters())
    if is_simulated and name not in OTHER_NUMBERS:
        assert difference(model, trained(name, "cpu")) < 1e-6
    # More minibatches than waits: there is none for each of them.
    assert len(model.updates[-1]) <= PER_UPDATE < 4 * 32 // 8
    steps = 0 if name.startswith("tensors") else N_STEPS
    assert len(model.rollouts[-1]) <= steps + PER_ROLLOUT
    # Episodes continue.
    model.learn(N_STEPS * model.n_envs, reset_num_timesteps=False)


class Reading(BaseCallback):
    """Reads the infos of each step."""

    def _on_step(self):
        self.episodes = [info["episode"] for info in self.locals["infos"] if "episode" in info]
        return not self.episodes


def test_callbacks_read_the_infos_of_a_simulator_on_the_cpu():
    callback, env = Reading(), tensors("discrete")("cpu")
    PPO_Plus("MlpPolicy", env, n_steps=N_STEPS, batch_size=8, device="cuda").learn(100 * N_STEPS, callback)
    assert callback.episodes[0]["l"] > 0


def test_compiled_training_with_memory_is_traced_once(compiler, monkeypatch):
    """However many episodes start within a sequence."""
    prepare, counts = RecurrentMemory.prepare_rollout, set()

    def recorded(self, rollout):
        rollout = prepare(self, rollout)
        counts.add(rollout.carry.memory[MOST_STARTS])
        return rollout

    monkeypatch.setattr(RecurrentMemory, "prepare_rollout", recorded)
    model = trained("lstm", "cuda", n_rollouts=8, n_epochs=1, compile=True)
    assert len(counts) > 1
    assert all(each._run and each.n_traces == 1 for each in model.compilation.functions.values())


def first_number(observations, actions, next_observations):
    return next_observations[:, 0] - actions[:, 0]


#: Adam divides by the size of a gradient: where that is near 0, with its own eps, rounding becomes whole steps.
STEADY = {"optimizer_kwargs": {"eps": 1e-3}}
#: Environments in arrays and in tensors, with streams.
WITH_STREAMS = [
    (make, policy, {"streams": [RandomNetworkDistillation(), Stream(first_number, normalize=True)]} | given)
    for make, policy, given in (
        (envs("box"), "MlpPolicy", {"recompute_advantages": True, "policy_kwargs": STEADY}),
        (tensors("box"), "MlpPolicy", INSIDE | {"policy_kwargs": STEADY}),
        (tensors("discrete"), "MlpLstmPolicy", {"policy_kwargs": SMALL | STEADY}),
    )
]


@pytest.mark.parametrize("case", WITH_STREAMS, ids=["arrays", "tensors", "memory"])
def test_streams_are_as_on_the_cpu_and_compiled(case, is_simulated, same_order, compiler):
    model = trained(case, "cuda", n_epochs=2)
    assert all(buffer.device.type == "cuda" for buffer in model.policy.buffers())
    if is_simulated:
        assert difference(model, trained(case, "cpu", n_epochs=2)) < 1e-5
    compiled = trained(case, "cuda", n_epochs=2, compile=True)
    assert all(each._run for each in compiled.compilation.functions.values())
    assert difference(model, compiled) < 1e-5
    assert model.position.stream_sums.isfinite().all() and copy.deepcopy(model).learn(1)


@pytest.mark.parametrize("kind", ["box", "discrete", "multidiscrete", "multibinary"])
@pytest.mark.filterwarnings("ignore:.*on the GPU", "ignore:.*without convolutions")
def test_an_update_is_sb3s(kind, is_simulated):
    if kind == "multibinary" and not is_simulated:
        pytest.skip("on a GPU, torch.bernoulli draws other numbers than torch.rand")
    models = [
        cls("MlpPolicy", vec(ACTIONS[kind]), n_steps=32, batch_size=16, n_epochs=2, seed=3, device="cuda").learn(64)
        for cls in (PPO, PPO_Plus)
    ]
    # A real GPU may sum up in another order.
    assert difference(*models) < (1e-6 if is_simulated else 1e-4)


@pytest.mark.parametrize("optimizer", ["Adagrad", "NAdam", "AdamW"])
def test_every_optimizer_has_its_state_on_the_gpu(optimizer, is_simulated, tmp_path):
    kwargs = {"policy_kwargs": {"optimizer_class": getattr(th.optim, optimizer)}}
    model = trained("box", "cuda", **kwargs)
    state = [value for each in model.policy.optimizer.state.values() for value in each.values()]
    assert {value.device.type for value in state if isinstance(value, th.Tensor) and value.dim()} <= {"cuda"}
    if is_simulated:
        assert difference(model, trained("box", "cpu", **kwargs)) < 1e-6
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", device="cuda", env=vec(ACTIONS["box"]))
    loaded.learn(32)
    assert PPO_Plus.load(tmp_path / "model", device="cpu").device.type == "cpu"


@pytest.mark.parametrize("policy", ["MlpPolicy", Dropping, Normalizing])
def test_a_stopped_update_changes_nothing_more(policy, is_simulated):
    case = envs("box"), policy, {"target_kl": 0.002, "learning_rate": 3e-3}
    model = trained(case, "cuda", n_rollouts=3)
    assert model.logger.name_to_value["train/kl_early_stop"] == 1
    if is_simulated:
        assert difference(model, trained(case, "cpu", n_rollouts=3)) < 1e-6


@pytest.mark.parametrize("name", ["box", "image", "mixed, colored", "lstm", "gru, gsde", "tensors, mask entry"])
def test_the_first_minibatch_has_ratio_1(name):
    make, policy, given = CASES[name]
    ratios, precise = [], []

    class Recording(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            _, params = self.policy.evaluate_batch(batch)
            ratios.append(
                (self.policy.distribution.log_prob(params, batch.actions) - batch.old_log_prob).exp().detach()
            )
            precise.append(not th.backends.cudnn.allow_tf32)
            return super().compute_loss(batch, coefficients)

    before = th.backends.cudnn.allow_tf32
    kwargs = given | {"policy_kwargs": given.get("policy_kwargs", {}) | {"ortho_init": False}}
    model = Recording(policy, make("cuda"), device="cuda", n_steps=8, batch_size=16, n_epochs=1, seed=0, **kwargs)
    model.learn(8 * model.n_envs)
    th.testing.assert_close(ratios[0], th.ones_like(ratios[0]), rtol=0, atol=1e-5)
    assert all(precise) and th.backends.cudnn.allow_tf32 == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["box", "lstm", "tensors, dict", "tensors, normalized"])
def test_a_model_is_copied_resumed_and_evaluated(name, tmp_path):
    make, policy, given = CASES[name]
    if not name.startswith("tensors"):
        make = lambda device: make_vec_env("CartPole-v1", 2, wrapper_class=Resumable)  # noqa: E731
    settings = {"n_steps": N_STEPS, "batch_size": 8, "n_epochs": 2, "seed": 0, "device": "cuda"} | given
    model = PPO_Plus(policy, make("cuda"), **settings)
    model.learn(N_STEPS * model.n_envs)
    copy.deepcopy(model.policy)
    file = model.save_checkpoint(tmp_path)
    model.learn(N_STEPS * model.n_envs, reset_num_timesteps=False)
    models = [PPO_Plus.resume(file, make(device), device=device) for device in ("cuda", "cpu")]
    for resumed in models:
        resumed.learn(N_STEPS * model.n_envs, reset_num_timesteps=False)
        assert resumed.num_timesteps == model.num_timesteps == 2 * N_STEPS * model.n_envs
    if not name.startswith("tensors"):
        assert difference(model, models[0]) < 1e-6
    assert all(len(each.evaluate(1)) == 2 for each in (model, *models))


def test_a_model_with_tensors_on_a_gpu_is_copied_to_the_cpu():
    model = trained("tensors, dict", "cuda", n_rollouts=1)
    kept = pickle.loads(pickle.dumps(model.position))
    assert {part.device.type for part in (*kept.obs.values(), kept.starts)} == {"cpu"}


def test_a_second_gpu_is_used_alone():
    if th.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for name in ("dict", "tensors, normalized", "lstm"):
        model = trained(name, "cuda:1", n_rollouts=1)
        assert {str(p.device) for p in model.policy.parameters()} == {"cuda:1"}


def test_small_networks_are_recommended_for_the_cpu():
    for name, n_warnings in [("box", 1), ("lstm", 1), ("mask entry", 0), ("image", 0), ("tensors", 0)]:
        make, policy, given = CASES[name]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            PPO_Plus(policy, make("cuda"), device="cuda", n_steps=N_STEPS, **given)
        found = [each for each in said if "without convolutions" in str(each.message)]
        assert len(found) == n_warnings
        assert all('pass device="cpu"' in str(each.message) and each.filename == __file__ for each in found)


@pytest.fixture
def compiler(is_simulated, request):
    """Inductor on a real GPU; a simulated one runs what is traced."""
    if is_simulated:
        request.getfixturevalue("traced")


@pytest.mark.parametrize("name", part(CASES, CASES.keys() - IN_OTHERS))
def test_compiled_training_is_the_same(name, compiler, is_simulated):
    if is_simulated and name not in TRACED:
        pytest.skip(
            "a real GPU compiles every case; traces of images have the layouts of cuDNN, which does not run here"
        )
    model = trained(name, "cuda", n_rollouts=3, compile=True)
    functions = model.compilation.functions.values()
    assert model.compiled and len(functions) == 2 and all(each._run for each in functions)
    if name != "autocast":  # which rounds, and Inductor rounds less often
        assert difference(model, trained(name, "cuda", n_rollouts=3)) < (1e-6 if is_simulated else 1e-5)
    # Recording an update's first minibatches waits a few times.
    assert len(model.updates[-1]) <= 2 * PER_UPDATE


def test_a_gpu_compiles_only_what_it_is_told_to():
    model = trained("image", "cuda", compile="auto")
    assert not model.compiled and "on cuda, only compile=True compiles" in str(model.compiled)


def test_without_triton_compiling_raises_an_error(monkeypatch):
    def missing(graph, tensors):
        raise RuntimeError("no Triton")

    monkeypatch.setattr("ppo_plus.compiling.compiled.compile_graph", missing)
    with pytest.raises(
        CompileError, match=r"acting could not be compiled \(RuntimeError: no Triton\): use compile=False"
    ):
        trained("box", "cuda", compile=True)
