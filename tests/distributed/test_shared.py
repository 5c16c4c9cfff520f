"""Processes that train one model together: they learn what one process would, stop, write and resume together."""

import copy
import warnings
from functools import partial
from itertools import accumulate

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import by_operation, needs_compiler
from envs import ACTIONS, OBSERVATIONS, VECTOR, MaskedEnv, RandomEnv, vec
from gymnasium import spaces
from models import make_normalized, weights
from networks import without_kinks
from parametrization import part
from processes import in_each
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization
from stream_envs import STREAMS, counting
from training import CopiesInHooks

from ppo_plus import Checkpoints, Cost, PPO_Plus, RolloutBuffer, as_vec_env
from ppo_plus.compiling import compiled
from ppo_plus.compiling.torch_private import compile_graph
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.trees import tree_map
from ppo_plus.zoo.experiment import load_experiment, make_envs
from ppo_plus.zoo.runs import Options, RunFolder
from ppo_plus.zoo.train import make_evaluations

# --- what several learn, and one --------------------------------------------------------------------------------------


def two_groups(params, lr):
    """An optimizer that cannot be packed."""
    params = list(params)
    return th.optim.Adam([{"params": params[:3]}, {"params": params[3:]}], lr=lr)


class Unreached(PPO_Plus):
    """Its loss does not reach every weight."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        return losses._replace(total=self.policy.evaluate_batch(batch)[0].square().mean())


def resetting(n_envs):
    """Environments some of whose steps are no transitions."""
    return as_vec_env(gym.make_vec("CartPole-v1", n_envs, vectorization_mode="sync"))


BOX = spaces.Box(-1, 1, (2,))
DICT = spaces.Dict(a=BOX, b=spaces.Box(-1, 1, (3,)), c=BOX)
CASES = {
    "plain": {},
    "compiled": {"compile": True},
    "masks, mixed actions, gSDE": {"action_space": ACTIONS["mixed"], "use_sde": True, "env_class": MaskedEnv},
    "uneven minibatches": {"batch_size": 24},
    "stop": {"target_kl": 0.0003, "learning_rate": 1e-3},
    "penalty, rollout": {"action_space": BOX, "kl_control": "penalty", "target_kl": 0.01,
                         "normalize_advantage": "rollout"},
    "adaptive rate": {"action_space": BOX, "kl_control": "adaptive_lr", "target_kl": 0.001},
    "memory": {"policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "sequence_length": 8},
    "memory, compiled": {"policy": "MlpGruPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "compile": True},
    "memory, scan": {"policy": "MlpLruPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "compile": True},
    "keys": {"policy": "MultiInputPolicy", "observation_space": DICT, "policy_kwargs": {"actor_keys": ["a", "c"]}},
    "not packed": {"policy_kwargs": {"optimizer_class": two_groups}},
    "unreached": {"cls": Unreached},
    "normalized": {"normalize": True},
    "normalized inside": {"normalize_observations": True, "normalize_values": True, "clip_range_vf": 0.2},
    "Dict observations": {"policy": "MultiInputPolicy", "observation_space": OBSERVATIONS["dict"]},
    "memory, steps that only reset": {
        "policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": 8}, "make_env": resetting},
}  # fmt: skip
N_ENVS, N_STEPS = 2, 32


def make(case, seed=3, n_envs=N_ENVS, **changed):
    """The model of a case, with environments."""
    given = {"n_steps": N_STEPS, "batch_size": 16, "n_epochs": 2, "compile": False, "ent_coef": 0.01}
    given |= CASES[case] | changed
    cls, action_space = given.pop("cls", PPO_Plus), given.pop("action_space", spaces.Discrete(3))
    observation_space, env_class = given.pop("observation_space", VECTOR), given.pop("env_class", RandomEnv)
    make_env = given.pop("make_env", partial(vec, action_space, observation_space, env_class=env_class))
    env = make_env(n_envs=n_envs)
    if given.pop("normalize", False):
        env = VecNormalize(env)
    return without_kinks(cls(given.pop("policy", "MlpPolicy"), env, seed=seed, device="cpu", **given))


def learned(model):
    """What an update has left."""
    logged = {name: value for name, value in model.logger.name_to_value.items() if name.startswith("train/")}
    return {"weights": model.policy.state_dict(), "logged": logged, "n_updates": model._n_updates}


def learn(ranks, case):
    """One rollout and one update; the transitions, in which order they were learned from, and what came of it."""
    compiled.compile_graph = compile_graph if case == "compiled" else by_operation
    model = make(case)
    buffer, taken = model.rollout_buffer, []
    minibatches, on_device = buffer.minibatches, buffer.on_device

    def noted(*arguments):
        epoch = list(minibatches(*arguments))
        taken.append([indices for _, indices in epoch])
        return iter(epoch)

    def kept():
        rollout = on_device()
        recorded["rollout"] = tree_map(th.clone, rollout)
        return rollout

    recorded = {"before": tree_map(th.clone, dict(model.policy.state_dict())), "minibatches": taken}
    buffer.minibatches, buffer.on_device = noted, kept
    model.learn(N_ENVS * N_STEPS * ranks.size)
    del buffer.minibatches, buffer.on_device
    assert model.num_timesteps == N_ENVS * N_STEPS * ranks.size
    recorded |= learned(model) | {"values": th.from_numpy(buffer.values), "returns": th.from_numpy(buffer.returns)}
    recorded["valid"] = th.ones(N_STEPS, N_ENVS).bool() if buffer.valid is None else th.from_numpy(buffer.valid)
    statistics = model.get_vec_normalize_env()
    if statistics is not None:
        recorded["statistics"] = [[th.as_tensor(each.mean), th.as_tensor(each.var), each.count]
                                  for each in (statistics.obs_rms, statistics.ret_rms)]  # fmt: skip
    if model.compile is True:
        assert model.compiled and model.compilation.functions["the update"]._run, (case, str(model.compiled))
    return recorded


def learned_by_one(case, parts):
    """What one process learns of the transitions of several, minibatch by minibatch."""
    model = make(case, n_envs=N_ENVS * len(parts), compile=False)
    model._setup_learn(1)
    model.policy.load_state_dict(parts[0]["before"])
    rollout = tree_map(lambda *each: th.cat(each), *(part["rollout"] for part in parts))
    offsets = list(accumulate((len(part["rollout"].returns) for part in parts), initial=0))
    epochs = iter(zip(*(part["minibatches"] for part in parts), strict=True))
    buffer = model.rollout_buffer
    buffer.on_device = lambda: rollout

    def transitions(name):
        rows = getattr(rollout, "old_values" if name == "values" else name)
        return rows if rollout.valid is None else tree_map(lambda part: part[rollout.valid], rows)

    buffer.transitions = transitions
    buffer.normalize_advantages = lambda normalized: None

    def minibatches(batch_size, data):
        assert batch_size == model.batch_size and data.returns is rollout.returns
        for pieces in zip(*next(epochs), strict=True):
            yield data, th.cat([piece + offset for piece, offset in zip(pieces, offsets, strict=False)])

    buffer.minibatches = minibatches
    buffer.values[:] = th.cat([part["values"] for part in parts], dim=1)
    buffer.returns[:] = th.cat([part["returns"] for part in parts], dim=1)
    buffer.valid = th.cat([part["valid"] for part in parts], dim=1).numpy()
    model.train()
    return learned(model)


#: Cases whose parts are in others; what Inductor makes is compared in the nightly tests.
IN_OTHERS = {"compiled", "plain", "adaptive rate", "memory", "memory, scan", "normalized", "Dict observations"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", part(CASES, CASES.keys() - IN_OTHERS))
def test_several_processes_learn_what_one_does(case, processes):
    told = processes(learn, case)
    by_one = learned_by_one(case, told)
    first, second = told
    assert not th.equal(first["rollout"].actions, second["rollout"].actions)
    moved = 0.0
    for name, weight in first["weights"].items():
        assert th.equal(first["before"][name], second["before"][name])
        assert th.equal(weight, second["weights"][name]), name
        assert th.allclose(weight, by_one["weights"][name], atol=1e-5), name
        moved = max(moved, float((weight - first["before"][name]).abs().max()))
    assert moved > 1e-4
    assert first["n_updates"] == by_one["n_updates"]
    for name, value in by_one["logged"].items():
        for each in told:
            assert each["logged"][name] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), name


# --- rollouts ---------------------------------------------------------------------------------------------------------


def require_same(ranks, *facts):
    """A test fails unless these are the same in both processes; models stand for their weights."""
    first, second = ranks.gather_values([weights(fact).tolist() if hasattr(fact, "policy") else fact for fact in facts])
    assert first == second


@in_each
def test_statistics_episodes_and_steps_are_those_of_all(ranks):
    """Weights stay the same over rollouts and calls."""
    trained = make_normalized(learning_rate="lin_1e-3").learn(256)
    assert trained.num_timesteps == 256
    trained.learn(128, reset_num_timesteps=False)
    assert trained.num_timesteps == 384
    statistics = trained.get_vec_normalize_env()
    episodes = [(episode["r"], episode["l"]) for episode in trained.ep_info_buffer]
    explained = trained.logger.name_to_value["train/explained_variance"]
    require_same(ranks, trained, episodes, explained, statistics.obs_rms.mean.tolist(), float(statistics.ret_rms.var))
    # Each step of each environment, and its two resets.
    assert abs(statistics.obs_rms.count - (384 + 4)) < 1e-2
    assert trained.verbose == 0
    noise = ranks.gather_values(trained.rollout_buffer.actions.tolist())
    assert noise[0] != noise[1]


@in_each
def test_a_callback_of_one_stops_all(ranks):
    steps = []

    def stop(locals_, _):
        steps.append(locals_["n_steps"])
        return not (ranks.rank == 1 and len(steps) == 5)

    trained = make_normalized()
    trained.learn(640, callback=ConvertCallback(stop))
    assert trained._n_updates == 0
    assert ranks.gather_values(len(steps)) == [16, 5]
    # All have counted the same, and can go on.
    assert ranks.gather_values(trained.num_timesteps) == [64, 64]
    assert trained.learn(64)._n_updates == 1


@in_each
def test_callbacks_copy_the_model_in_every_hook(ranks):
    copying = CopiesInHooks(copy.deepcopy)
    make_normalized().learn(64, copying)
    assert len(copying.copies) == 5
    for twin in copying.copies.values():
        twin.set_env(make_normalized().get_env())  # copies leave out environments in a VecNormalize
        twin.learn(64, reset_num_timesteps=False)
        require_same(ranks, twin)


@in_each
def test_each_pretrains_alike(ranks):
    """Without messages, and before training together."""
    rng = np.random.default_rng(0)
    ends = np.arange(64) % 8 == 7
    data = dict(observations=rng.normal(size=(64, 5)), actions=rng.integers(0, 3, 64), terminations=ends)
    model = make_normalized().pretrain(data, n_epochs=2)
    require_same(ranks, model, model.get_vec_normalize_env().obs_rms.mean.tolist())
    assert model.learn(64)._n_updates == 1


@in_each
def test_multipliers_and_moments_of_streams_are_those_of_all(ranks):
    lengths, logged = [], []

    def note(locals_, _):
        if locals_["n_steps"] == 0:
            lengths.clear()
        lengths.extend(info["episode"]["l"] for info in locals_["infos"] if "episode" in info)
        return True

    class Noting(PPO_Plus):
        def train(self):
            logged.append(self.logger.name_to_value["rollout/ep_progress_mean"])
            super().train()

    kwargs = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu"}
    model = Noting("MlpPolicy", counting(2), streams=[Cost("cost", limit=0.5), *STREAMS[1:]], **kwargs)
    model.learn(2 * 64 * ranks.size, ConvertCallback(note), log_interval=None)
    parts = model.policy.streams.parts
    require_same(ranks, [part.tolist() for part in model.policy.state_dict().values()])
    first, second = ranks.gather_values(lengths)
    assert first != second
    assert logged[-1] == pytest.approx(np.mean([*first, *second]))
    # Moments of observations have the rows of both, of two rollouts.
    assert parts[0].terms[0] > 0 and parts[3].normalizer.count.item() == 2 * 64 * ranks.size


@in_each
def test_frozen_statistics_do_not_change(ranks):
    def freeze(locals_, _):
        locals_["env"].training = locals_["self"].num_timesteps < 40
        return True

    trained = make_normalized(normalize_advantage="rollout").learn(192, callback=ConvertCallback(freeze))
    statistics = trained.get_vec_normalize_env().obs_rms
    require_same(ranks, statistics.count, statistics.mean.tolist())
    assert statistics.count < 60 and trained._n_updates == 3


@in_each
def test_recomputed_advantages_are_normalized_over_all(ranks):
    """Advantages that are estimated anew are those of each process's values, normalized by the moments of all."""

    class Noting(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            self.seen.append((batch, self.policy.predict_values(batch.observations).flatten().detach()))
            return super().compute_loss(batch, coefficients)

    settings = dict(cls=Noting, n_epochs=2, batch_size=32, learning_rate=1e-2, recompute_advantages=True, compile=False)
    for kind in (True, "rollout"):
        trained = make_normalized(normalize_advantage=kind, **settings)
        trained.seen = []
        trained.learn(64)
        (first, _), (second, values) = trained.seen
        # The values behind the second epoch's estimates are those that the weights give then.
        raw = second.returns - values
        assert (first.returns.sort().values - second.returns.sort().values).abs().max() > 1e-2
        used = second.advantages if kind == "rollout" else second.normalized
        if kind is True:
            th.testing.assert_close(raw, second.advantages, rtol=1e-4, atol=1e-4)
        require_same(ranks, trained)
        whole = th.tensor(sum(ranks.gather_values(raw.tolist()), []))
        th.testing.assert_close(used, (raw - whole.mean()) / whole.std(), rtol=1e-3, atol=1e-3)


class Copying(RolloutBuffer):
    """A buffer of one's own, each of whose minibatches is a rollout by itself."""

    def minibatches(self, batch_size, data):
        for rows, indices in super().minibatches(batch_size, data):
            yield rows._replace(normalized=None), indices


@in_each
def test_a_custom_buffer_is_normalized_over_all(ranks):
    copied, plain = (make_normalized(rollout_buffer_class=kind).learn(64) for kind in (Copying, RolloutBuffer))
    assert th.equal(weights(copied), weights(plain))
    require_same(ranks, copied)


# --- evaluation and checkpoints ---------------------------------------------------------------------------------------


EXPERIMENT = load_experiment("CartPole-v1", overrides={"normalize": True}).replace(seed=5)


@in_each
def test_evaluation_plays_the_episodes_that_one_would(ranks, tmp_path):
    """The episodes are those that one process would play, shared out; the first one records them."""
    options = Options(n_eval_envs=2, eval_episodes=5, progress=False)
    (callback,) = make_evaluations(EXPERIMENT, options, ranks, RunFolder(tmp_path, EXPERIMENT.env_id))
    eval_env = callback.eval_env

    def count_otherwise(locals_, _):
        if ranks.rank == 1:
            callback.evaluated_updates = 99
        return True

    arguments = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, compile=False)
    trained = PPO_Plus("MlpPolicy", make_envs(EXPERIMENT, 2, first=2 * ranks.rank), **arguments)
    trained.learn(128, callback=[callback, ConvertCallback(count_otherwise)])
    assert ranks.gather_values((eval_env.num_envs, callback.evaluations_timesteps)) == [(1, [128]), (1, [])]
    require_same(ranks, eval_env.obs_rms.mean.tolist())
    assert eval_env.obs_rms.mean.tolist() == trained.get_vec_normalize_env().obs_rms.mean.tolist()
    if ranks.leads:
        whole = make_envs(EXPERIMENT, 2, evaluation=True)
        sync_envs_normalization(trained.env, whole)
        expected = evaluate_policy(trained, whole, 5, return_episode_rewards=True)
        with np.load(tmp_path / "evaluations.npz") as saved:
            found = [saved[name][0].tolist() for name in ("results", "ep_lengths")]
        assert sorted(zip(*found, strict=True)) == sorted(zip(*expected, strict=True))
        assert len(set(found[0])) > 2 and callback.last_mean_reward == np.mean(expected[0])
        assert (tmp_path / "best_model.zip").exists()


@in_each
def test_a_resumed_run_is_the_same_to_the_bit(ranks, tmp_path):
    """Also what environments are normalized by goes on to the bit."""
    arguments = dict(n_steps=32, batch_size=32, n_epochs=1, seed=0, compile=False)
    whole, *others = [make_envs(EXPERIMENT, 2, first=2 * ranks.rank) for _ in range(3)]
    trained = PPO_Plus("MlpPolicy", whole, **arguments).learn(
        512, callback=Checkpoints(tmp_path, save_freq=128, keep=9)
    )
    for last, again in zip((256, 0), others, strict=True):
        for path in checkpoint.files(tmp_path) if ranks.leads else []:
            if checkpoint.steps_of(path) > last:
                path.unlink()
        ranks.gather_values(None)
        other = PPO_Plus.resume(tmp_path, again)
        assert other.num_timesteps == last
        other.learn(512, callback=Checkpoints(tmp_path, keep=9))
        assert th.equal(weights(other), weights(trained))
        assert again.obs_rms.var.tolist() == whole.obs_rms.var.tolist()


@in_each
def test_training_continues_without_a_checkpoint(ranks, tmp_path):
    """The first one writes the states of all; training continues if it cannot."""

    def obstruct(*_):
        if ranks.leads:
            (tmp_path / "checkpoint_000000000064.zip").mkdir(exist_ok=True)
        return True

    callbacks = [ConvertCallback(obstruct), Checkpoints(tmp_path, save_freq=64, keep=9)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        make_normalized().learn(192, callback=callbacks)
    assert sum("no checkpoint after 64 timesteps" in str(each.message) for each in warned) == ranks.leads
    found = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert found == [f"checkpoint_{steps:012d}.zip" for steps in (0, 128)]


@in_each
def test_another_runs_checkpoints_are_set_aside(ranks, tmp_path):
    """What another run has left is moved, of all of them, before anybody writes."""
    for n_rollouts in (3, 1):
        make_normalized().learn(n_rollouts * 64, callback=Checkpoints(tmp_path, save_freq=64, keep=9))
    found = {place: sorted(path.name for path in (tmp_path / place).glob("*.zip")) for place in (".", "earlier_1")}
    names = [f"checkpoint_{steps:012d}.zip" for steps in (0, 64, 128)]
    assert found == {".": names[:1], "earlier_1": names}
