"""Compiled training is the same training: a few representatives, since each takes seconds to compile."""

import contextlib
import copy
import threading

import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, by_operation, needs_compiler, parameters
from envs import ACTIONS, VECTOR, MaskedEnv, RandomEnv, vec
from gymnasium import spaces
from networks import without_kinks
from optimizers import coefficients_at
from parametrization import part
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from tensor_envs import TensorTwin

from ppo_plus import ColoredNoise, PPO_Plus
from ppo_plus.compiling.compiled import Compiled, CompileError, compile_graph
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.policy.observations import to_network
from ppo_plus.rollout.collector import prepare_act
from ppo_plus.update.minibatch import FINITE, UpdateRule, moments, packed, trainable
from ppo_plus.update.update import whole_compiled

pytestmark = needs_compiler


PIXELS_AND_NUMBERS = spaces.Dict(image=spaces.Box(0, 255, (1, 36, 36), np.uint8), count=spaces.Discrete(3, start=1))
DECAYING = dict(batch_size=60, learning_rate="lin_3e-4", ent_coef="lin_0.1", clip_range_vf=0.2, target_kl=0.002)
SQUASHED = dict(use_sde=True, ent_coef=0.01, policy_kwargs=dict(squash_output=True, log_std_init=2.0))
CASES = {
    "mixed, masked, gSDE": (ACTIONS["mixed"], None, dict(use_sde=True, ent_coef=0.01)),
    "Dict, image, colored, truncated, decaying, stop, RMSprop": (
        spaces.MultiDiscrete([3, 2]),
        PIXELS_AND_NUMBERS,
        DECAYING | dict(exploration=ColoredNoise(), policy_kwargs=dict(optimizer_class=th.optim.RMSprop)),
    ),
    "squashed gSDE, entropy, penalty": (ACTIONS["box"], None, SQUASHED | dict(kl_control="penalty", target_kl=0.01)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", part(CASES, ["squashed gSDE, entropy, penalty"]))
def test_compiled_and_eager_train_the_same(case):
    action_space, observation_space, arguments = CASES[case]
    policy = "MultiInputPolicy" if observation_space is not None else "MlpPolicy"
    models = []
    for compile in (False, True):
        env = vec(action_space, observation_space or VECTOR, 4, MaskedEnv if "masked" in case else RandomEnv)
        kwargs = dict(n_steps=32, n_epochs=3, seed=1, device="cpu", compile=compile, **arguments)
        models.append(without_kinks(PPO_Plus(policy, env, **kwargs)).learn(256))
    assert_trained_alike(*models)


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpGruPolicy"])
def test_tensor_environments_are_trained_compiled(policy):
    models = []
    for compile in (False, True):
        env = TensorTwin(4, ACTIONS["mixed"], "method")
        kwargs = dict(n_steps=16, batch_size=32, n_epochs=2, seed=0, device="cpu", use_sde=True, ent_coef=0.01)
        models.append(PPO_Plus(policy, env, compile=compile, **kwargs).learn(128))
    assert_trained_alike(*models)


@pytest.fixture(scope="module")
def cartpole():
    """A compiled model after one rollout and one update, and SB3's."""
    models = []
    for cls, arguments in ((PPO, {}), (PPO_Plus, dict(compile=True, value_clip="plain"))):
        env = make_vec_env("CartPole-v1", 4, seed=0)
        models.append(cls("MlpPolicy", env, n_steps=64, seed=0, device="cpu", **arguments).learn(256))
    return models


def test_keystone_compiled(cartpole):
    """One rollout is SB3's action by action, and one ``train()`` gives SB3's weights."""
    sb3, ours = cartpole
    assert np.array_equal(
        sb3.rollout_buffer.actions.reshape(4, 64).T, ours.rollout_buffer.actions[..., 0]
    )  # SB3 flattens its arrays when it trains
    assert th.allclose(parameters(sb3), parameters(ours), atol=1e-5)


@pytest.mark.usefixtures("traced")
def test_changed_hyperparameters_are_noticed(cartpole):
    model = copy.deepcopy(cartpole[1])
    eager = copy.deepcopy(cartpole[1])
    eager.compile = False
    for each in (model, eager):
        each.max_grad_norm, each.ent_coef, each.normalize_advantage, each.clip_range = 0.1, 0.05, False, 0.1
        each.clip_range_vf = 0.2
        np.random.seed(0)
        th.manual_seed(0)
        each.env.seed(0)
        each.learn(256)
    assert th.allclose(parameters(model), parameters(eager), atol=1e-5)
    form = model.compilation.functions["the update"]
    model.batch_size = 32
    model.learn(256)
    again = model.compilation.functions["the update"]
    assert again is not form and again.n_traces == 1


class Weighted(PPO_Plus):
    """A loss with a number that tracing makes a constant."""

    weight = 0.0

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        l2 = sum(p.square().sum() for p in self.policy.action_net.parameters())
        return losses.plus("l2", self.weight * l2)


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
def test_an_overridden_loss_is_compiled_and_never_stale():
    env = make_vec_env("CartPole-v1", 4, seed=0)
    model = Weighted("MlpPolicy", env, n_steps=64, n_epochs=2, seed=0, device="cpu", compile=True).learn(256)
    assert model.logger.name_to_value["train/l2"] == 0.0
    model.weight = 10.0
    model.learn(256)
    assert model.compilation.functions["the update"]._run
    assert model.logger.name_to_value["train/l2"] > 0.0


class Taught(PPO_Plus):
    """Stays close to a teacher, which is no part of the policy."""

    def compute_loss(self, batch, coefficients):
        _, params = self.policy.evaluate_batch(batch)
        gap = params[:, :1] - self.teacher(batch.observations)
        return super().compute_loss(batch, coefficients).plus("gap", gap.square().mean())


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
def test_swapped_networks_and_outside_networks_are_never_stale():
    results = []
    for compile in (False, True):
        kwargs = dict(net_arch=[8], optimizer_class=th.optim.SGD)
        arguments = dict(n_steps=32, n_epochs=2, seed=0, device="cpu", compile=compile, policy_kwargs=kwargs)
        model = Taught("MlpPolicy", vec(ACTIONS["box"]), learning_rate=0.05, **arguments)
        model.teacher = th.nn.Linear(*VECTOR.shape, 1).requires_grad_(False)
        th.nn.init.ones_(model.teacher.weight)
        th.nn.init.ones_(model.teacher.bias)
        model.learn(64)
        model.teacher.bias.add_(1.0)
        model.learn(64)
        hidden = model.policy.mlp_extractor
        hidden.policy_net, hidden.value_net = hidden.value_net, hidden.policy_net
        model.learn(64)
        # This optimizer has no state.
        assert bool(model.compiled) is compile and ("the update" in model.compilation.functions) is compile
        results.append(parameters(model))
    th.testing.assert_close(*results, rtol=0, atol=1e-5)


class RunningMean(th.nn.Module):
    """A network that replaces its buffer instead of changing it in place."""

    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.linear = th.nn.Linear(input_dim, output_dim)
        self.register_buffer("mean", th.zeros(input_dim))

    def forward(self, features):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * features.detach().mean(dim=0)
        return self.linear(features - self.mean)


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
def test_a_buffer_that_is_replaced_in_forward_is_updated():
    def learn(compile):
        env = make_vec_env("CartPole-v1", 4, seed=0)
        # The last minibatch is smaller, and so is computed by the module itself.
        arguments = dict(n_steps=64, batch_size=100, n_epochs=4, seed=0, device="cpu", compile=compile)
        return PPO_Plus("MlpPolicy", env, policy_kwargs=dict(critic=RunningMean), **arguments).learn(512)

    eager, compiled = learn(False), learn(True)
    means = [dict(model.policy.named_buffers())["value_net.mean"] for model in (eager, compiled)]
    assert means[0].abs().max() > 0
    assert th.allclose(*means, atol=1e-5)
    assert th.allclose(parameters(eager), parameters(compiled), atol=1e-5)


def mask(weight):
    weight.register_hook(lambda grad: grad * th.tensor([[0.0], [1.0]]))


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_hooks_on_weights_see_their_gradients(policy, monkeypatch):
    """Half of a layer is frozen by a hook, which nothing compiled knows of."""
    monkeypatch.setattr("ppo_plus.compiling.compiled.WORTH_COMPILING", 0)
    env = make_vec_env("CartPole-v1", 4, seed=0)
    model = PPO_Plus(policy, env, n_steps=32, batch_size=32, n_epochs=2, device="cpu")
    weight = model.policy.action_net.weight
    mask(weight)
    before = weight.detach().clone()
    with pytest.warns(RuntimeWarning, match="has the hook mask.<locals>.<lambda> on its gradient.*remove it, or"):
        model.learn(256)
    assert th.equal(weight[0], before[0]) and not th.equal(weight[1], before[1])


@pytest.mark.exhaustive
def test_models_in_several_threads_learn():
    start, models = threading.Barrier(3), {}

    def train(seed):
        env = make_vec_env("CartPole-v1", 4, seed=seed)
        model = PPO_Plus("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, device="cpu", compile=True)
        before = parameters(model).detach().clone()
        start.wait()
        model.learn(256)
        models[seed] = model, (parameters(model) - before).abs().max()

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(models) == 3
    for _, change in models.values():
        # Adam moves some weight by nearly the learning rate with each of 16 steps.
        assert 1e-3 < change < 1e-2


class Decayed(PPO_Plus):
    """Reaches the weights through a list, not through their modules."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        return losses.plus("decay", 0.1 * sum(weight.square().sum() for weight in self.kept))


@pytest.mark.usefixtures("traced")
def test_weights_that_would_not_be_learned_raise_an_error():
    with pytest.raises(CompileError, match="reads a weight of shape .* not from its module"):
        model = Decayed("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=8, batch_size=8, compile=True, device="cpu")
        model.kept = [*model.policy.parameters()]
        model.learn(16)


@pytest.fixture
def acting_compiled(monkeypatch):
    """Inductor compiles what is compiled first, which is acting; the update is traced."""
    first = iter([compile_graph])

    def compile(graph, tensors):
        return next(first, by_operation)(graph, tensors)

    monkeypatch.setattr("ppo_plus.compiling.compiled.compile_graph", compile)


@pytest.mark.usefixtures("acting_compiled")
@pytest.mark.slow
def test_weights_that_a_callback_changes_act_at_once():
    space = spaces.Dict({"a": VECTOR, "b": VECTOR})
    model = PPO_Plus(
        "MultiInputPolicy", vec(ACTIONS["discrete"], space), n_steps=8, batch_size=8, seed=0, device="cpu", compile=True
    ).learn(16)
    act = prepare_act(model.policy, None, model.compilation)

    def obs():
        return to_network(model._last_obs, space, th.device("cpu"))

    def agrees():
        packed, _ = act(obs(), model.policy.init_carry(model.n_envs), None, None)
        with th.no_grad():
            values, _ = model.policy.evaluate(obs())
        th.testing.assert_close(packed[:, model.policy.action_dist.action_dim], values, rtol=1e-4, atol=1e-5)

    agrees()
    th.nn.utils.vector_to_parameters(parameters(model) + 0.1, model.policy.parameters())
    agrees()
    model._last_obs = dict(reversed(model._last_obs.items()))
    agrees()


def no_graph(graph, tensors):
    raise NotImplementedError("no such operation")


def no_compiler():
    raise FileNotFoundError("no g++")


@pytest.mark.parametrize(
    ("name", "failing", "reason", "warnings"),
    [("compile_graph", no_graph, "no such operation", 2), ("find_compiler", no_compiler, "no g[+][+]", 1)],
)
def test_code_that_cannot_be_compiled_trains_eagerly(monkeypatch, name, failing, reason, warnings):
    monkeypatch.setattr("ppo_plus.compiling.compiled.WORTH_COMPILING", 1)
    monkeypatch.setattr(f"ppo_plus.compiling.compiled.{name}", failing)
    results = []
    for compile in (False, "auto"):
        model = PPO_Plus(
            "MlpPolicy", vec(ACTIONS["discrete"]), n_steps=16, batch_size=16, seed=0, device="cpu", compile=compile
        )
        with pytest.warns(RuntimeWarning, match=reason) if compile else contextlib.nullcontext() as record:
            model.learn(32)
        results.append(parameters(model))
    assert th.equal(*results)
    assert len([warning for warning in record if "runs uncompiled" in str(warning.message)]) == warnings


def short(**kwargs):
    """One gradient step for each 64 timesteps."""
    return PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, device="cpu", **kwargs)


def test_a_loaded_model_counts_the_steps_to_come(monkeypatch, tmp_path):
    monkeypatch.setattr("ppo_plus.compiling.compiled.WORTH_COMPILING", 4)
    model = short()
    model._setup_learn(256)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env="CartPole-v1", device="cpu")
    assert model.compiled and loaded.compiled
    loaded._setup_learn(64)
    assert str(loaded.compiled).startswith("no: 1 gradient steps are planned; compiling starts at 4; compile=True")
    loaded._setup_learn(192)
    assert str(loaded.compiled) == "yes: 4 gradient steps are planned"
    # What was compiled here stays compiled.
    monkeypatch.setattr("ppo_plus.compiling.compiled.WORTH_COMPILING", 1_000_000)
    loaded._setup_learn(64)
    assert loaded.compiled
    loaded.compile = False
    loaded._refresh()
    loaded._setup_learn(64)
    assert not loaded.compiled


class Copied(PPO_Plus):
    """Trains as SB3 does."""

    train = PPO.train


class Extended(PPO_Plus):
    """Does something beside training."""

    def train(self):
        super().train()


@pytest.mark.usefixtures("traced")
@needs_compiler
def test_a_custom_train_differs_from_one_that_calls_ours():
    copied, extended = (
        cls("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, device="cpu", compile=True)
        for cls in (Copied, Extended)
    )
    before = parameters(copied)
    assert str(copied.learn(64).compiled) == "no: Copied.train is a custom method, and is not compiled"
    assert not th.equal(parameters(copied), before)
    assert str(extended.learn(64).compiled) == "yes: compile=True"


@pytest.mark.usefixtures("traced")
@pytest.mark.slow
def test_an_optimizer_gets_its_state_after_a_skipped_step():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=16, device="cpu", compile=False).learn(64)
    model.policy.optimizer.state.clear()
    data = model.rollout_buffer.on_device()
    data.returns[:16] = th.nan
    rule = UpdateRule(model.policy, model.compute_loss, KLControl(), 0.5)
    with packed(model.policy.optimizer) as flat:
        minibatch = whole_compiled(rule, Compiled(rule, "the update"), flat, coefficients_at(model))
        state = KLControl().init()
        for first in (0, 16, 32):
            state, _, record = minibatch(data, state, th.arange(first, first + 16))
            assert bool(record[FINITE]) == (first > 0)
            assert bool(moments(flat)) == (first > 0)
    assert flat.state[trainable(flat)[0]]["step"] == 2


@pytest.mark.usefixtures("acting_compiled")
@pytest.mark.exhaustive
def test_weights_that_a_callback_moves_are_read_correctly():
    def learn(compile):
        model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, seed=0, compile=compile)

        def move(locals_, globals_):
            if model.num_timesteps == 48:
                weight = model.policy.action_net.weight
                weight.data = weight.data.t().contiguous().t()
            return True

        return model.learn(64, callback=move).rollout_buffer

    eager, compiled = learn(False), learn(True)
    np.testing.assert_array_equal(eager.actions, compiled.actions)
    np.testing.assert_allclose(eager.params, compiled.params, atol=1e-5)
