"""Every kind of memory passes the same checks: those that are compiled with the loss, and one without layers."""

import copy
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, vec
from exported import Exported
from hypothesis import given, settings
from hypothesis import strategies as st
from models import STRUCTURES
from parametrization import sample
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from tensor_envs import twins

from ppo_plus import (
    Carry,
    Checkpoints,
    Features,
    MultiInputPolicy,
    PPO_Plus,
    Resumable,
    WithMemory,
    as_vec_env,
    register,
)
from ppo_plus.policy.attention import Attention
from ppo_plus.policy.memory import reset_memory
from ppo_plus.policy.scan import LRU

STORED = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")


class LastObservations(WithMemory):
    """Remembers the features of the last three observations."""

    k = 3

    def memory_dim(self, features_dim):
        return self.k * features_dim

    def init_memory(self, n_envs):
        return th.zeros(n_envs, self.k, self.input_dims["actor"], device=self.device)

    def encode_step(self, obs, memory, episode_starts=None):
        if episode_starts is not None:
            memory = memory.masked_fill(episode_starts[:, None, None], 0)
        memory = th.cat([memory[:, 1:], self.encode(obs).actor[:, None]], dim=1)
        return Features(memory.flatten(1), memory.flatten(1)), memory


class LastEntries(LastObservations, MultiInputPolicy):
    """The same for Dict observations."""


register(LastObservations, LastEntries)


#: Kinds of memory, and their arguments.
KINDS = {
    "observations": (LastObservations, {}),
    "LRU": ("MlpLruPolicy", dict(lstm_hidden_size=8, n_lstm_layers=2)),
    "attention": ("MlpAttentionPolicy", dict(lstm_hidden_size=8, n_lstm_layers=2, attention_window=5)),
}
kinds = pytest.mark.parametrize("memory", KINDS)


def make(env=None, cls=PPO_Plus, memory="observations", policy=None, **kwargs):
    arguments = dict(n_steps=16, batch_size=16, n_epochs=2, sequence_length=8, seed=0, device="cpu", compile=False)
    env = vec(ACTIONS["discrete"]) if env is None else env
    known, policy_kwargs = KINDS[memory]
    policy_kwargs = {"ortho_init": False} | policy_kwargs | kwargs.pop("policy_kwargs", {})
    return cls(policy or known, env, **arguments | kwargs, policy_kwargs=policy_kwargs)


# --- layers ----------------------------------------------------------------------------------------------------------

LAYERS = {
    "LRU": lambda n_layers: LRU(3, 6, n_layers),
    # Sequences are shorter and longer than the window.
    "attention": lambda n_layers: Attention(3, 6, n_layers, attention_window=5, attention_heads=3),
}


def layers_and_inputs(kind, n_layers, n_sequences, length, p_start, seed):
    """Layers, inputs, states as after some steps, and episode starts."""
    th.manual_seed(seed)
    layers = LAYERS[kind](n_layers).double()
    x, starts = th.randn(n_sequences, length, 3, dtype=th.float64), th.rand(n_sequences, length) < p_start
    before = th.randn(n_sequences, 7, 3, dtype=th.float64)
    _, state = layers(before, layers.init(n_sequences), th.zeros(n_sequences, 7, dtype=th.bool))
    return layers, x.requires_grad_(), tuple(part.detach().requires_grad_() for part in state), starts


@given(
    kind=st.sampled_from(list(LAYERS)),
    n_layers=st.integers(1, 3),
    length=st.integers(1, 19),
    p_start=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=60)
def test_sequences_are_steps_one_at_a_time(kind, n_layers, length, p_start, seed):
    layers, x, state, starts = layers_and_inputs(kind, n_layers, 3, length, p_start, seed)
    whole, single, memory = layers.sequences(x.flatten(0, 1), state, starts), [], state
    for t in range(length):
        y, memory = layers.step(x[:, t], reset_memory(memory, starts[:, t]))
        single.append(y)
    single = th.stack(single, dim=1).flatten(0, 1)
    th.testing.assert_close(whole, single, rtol=1e-10, atol=1e-12)
    for a, b in zip(layers(x, state, starts)[1], memory, strict=True):
        th.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    weights, signs = [*layers.parameters(), x, *state], th.randn(whole.shape, dtype=th.float64)
    pair = (th.autograd.grad((y * signs).sum(), weights, allow_unused=True) for y in (whole, single))
    for a, b in zip(*pair, strict=True):
        th.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", LAYERS)
def test_long_sequences_are_steps_in_single_precision(kind):
    layers, x, state, starts = layers_and_inputs(kind, 2, 2, 700, 0.002, 0)
    layers, x, memory = layers.float(), x.float(), tuple(part.float() for part in state)
    with th.no_grad():
        whole, steps = layers(x, memory, starts)[0], []
        for t in range(700):
            y, memory = layers.step(x[:, t], reset_memory(memory, starts[:, t]))
            steps.append(y)
    assert starts.any()
    th.testing.assert_close(whole, th.stack(steps, dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_passes_the_start_of_an_episode(kind, dtype):
    layers, x, state, starts = layers_and_inputs(kind, 2, 1, 8, 0.0, 0)
    layers, x, state = layers.to(dtype), x.to(dtype), tuple(part.to(dtype) for part in state)
    starts[:, 5] = True
    y, _ = layers(x, state, starts)
    # Exactly nothing: not a small number.
    after = th.autograd.grad(y[:, 5:].sum(), [x, *state], retain_graph=True)
    assert not after[0][:, :5].any() and after[0][:, 5:].any() and not any(part.any() for part in after[1:])
    before = th.autograd.grad(y[:, :5].sum(), [x, *state])
    assert not before[0][:, 5:].any() and all(part.any() for part in before[1:])
    th.testing.assert_close(y[:, 5:], layers(x[:, 5:], layers.init(1), starts[:, 5:])[0])


# --- policies --------------------------------------------------------------------------------------------------------


@kinds
def test_sequences_equal_steps_across_episode_starts(memory):
    model = make(memory=memory).learn(32)
    policy, buffer = model.policy, model.rollout_buffer
    batch = buffer.on_device()
    assert batch.episode_starts.view(-1, 8)[:, 1:].any()
    with th.no_grad():
        features = policy.encode_sequences(batch.observations, batch.carry.memory, batch.episode_starts)
        rows, state, steps = th.arange(0, 32, 8), batch.carry.memory, []
        for t in range(8):
            found, state = policy.encode_step(batch.observations[rows + t], state, batch.episode_starts[rows + t])
            steps.append(found.actor)
    th.testing.assert_close(features.actor, th.stack(steps, dim=1).flatten(0, 1), rtol=0, atol=1e-5)
    assert features.actor.any(dim=0).all()


class First(PPO_Plus):
    """Remembers the diagnostics of each update's first minibatch."""

    def train(self):
        self.is_first = True
        super().train()

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        if self.is_first:
            self.firsts = [*getattr(self, "firsts", []), losses.diagnostics]
        self.is_first = False
        return losses


@pytest.mark.parametrize(
    ("kind", "exploration", "recompute_advantages"),
    sample(
        product(
            ["box", "mixed", "multidiscrete"],
            [{}, {"use_sde": True, "sde_sample_freq": "episode"}],
            [False, True],
        ),
        5,
    ),
)
def test_kl_is_zero_on_the_first_minibatch(kind, exploration, recompute_advantages):
    env_class = MaskedEnv if kind == "multidiscrete" else None
    env = vec(ACTIONS[kind], **{} if env_class is None else {"env_class": env_class})
    model = make(env, First, recompute_advantages=recompute_advantages, **exploration).learn(64)
    assert len(model.firsts) == 2 and (model.rollout_buffer.masks is None) == (env_class is None)
    for diagnostics in model.firsts:
        assert abs(diagnostics["approx_kl"]) < 1e-5 and abs(diagnostics["kl"]) < 1e-5
        assert diagnostics["clip_fraction"] == 0


class Watch(BaseCallback):
    """Notes rewards and final observations by step and environment."""

    def _on_training_start(self):
        self.rewards, self.finals = [], {}

    def _on_step(self):
        self.rewards.append(self.locals["rewards"].copy())
        for i in np.flatnonzero(self.locals["dones"]):
            if self.locals["infos"][i]["TimeLimit.truncated"]:
                self.finals[self.n_calls - 1, i] = self.locals["infos"][i]["terminal_observation"]
        return True


@kinds
def test_values_at_time_limits_depend_on_what_is_remembered(memory):
    model, watch = make(vec(ACTIONS["discrete"], p_end=0.0, max_steps=7), memory=memory), Watch()
    model.train = lambda: None
    model.learn(32, watch)
    buffer, policy = model.rollout_buffer, model.policy
    assert len(watch.finals) == 4
    for (step, i), final_obs in watch.finals.items():
        first = max(t for t in range(step + 1) if buffer.episode_starts[t, i])
        episode = [*buffer.observations[first : step + 1, i], final_obs]
        state = policy.init_memory(1)
        with th.no_grad():
            for obs in episode:
                value = policy.predict_values(th.as_tensor(obs)[None], Carry(state)).item()
                state = policy.encode_step(th.as_tensor(obs)[None], state)[1]
            forgotten = policy.predict_values(th.as_tensor(final_obs)[None]).item()
        assert abs(value - forgotten) > 1e-4  # ten times the tolerance below
        assert buffer.rewards[step, i] == pytest.approx(watch.rewards[step][i] + model.gamma * value, abs=1e-5)


@kinds
def test_training_in_tensors_is_that_in_numpy(memory):
    models = []
    for env in twins(ACTIONS["box"], 3):
        models.append(make(as_vec_env(env), memory=memory, use_sde=True, sde_sample_freq="episode").learn(96))
    buffers = [model.rollout_buffer for model in models]
    for name in STORED:
        np.testing.assert_array_equal(*(getattr(buffer, name) for buffer in buffers), err_msg=name)
    weights = [model.policy.state_dict() for model in models]
    assert all(th.equal(weights[0][name], weights[1][name]) for name in weights[0])


@needs_compiler
@pytest.mark.usefixtures("traced")
@kinds
def test_compiled_training_is_the_same(memory):
    assert_trained_alike(*(make(memory=memory, compile=compile).learn(64) for compile in (False, True)))


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_layers_are_compiled_with_the_loss():
    """Other losses than those that start from features need no exception either."""

    class Elsewhere(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            losses = super().compute_loss(batch, coefficients)
            values, _ = self.policy.evaluate(batch.observations + 0.5, batch.carry, batch.episode_starts)
            return losses.plus("smooth", values.square().mean())

    assert_trained_alike(*(make(cls=Elsewhere, memory="LRU", compile=compile).learn(64) for compile in (False, True)))


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("memory", LAYERS)
def test_inductor_compiles_the_layers(memory):
    # One layer for actor and critic: a graph of half the size.
    layer = dict(n_lstm_layers=1, shared_lstm=True, enable_critic_lstm=False)
    arguments = dict(memory=memory, n_steps=32, batch_size=64, sequence_length=4, policy_kwargs=layer)
    assert_trained_alike(
        *(make(vec(ACTIONS["box"], n_envs=4), compile=compile, **arguments).learn(256) for compile in (False, True))
    )


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_compiled_training_leaves_out_steps_that_only_reset():
    models = []
    for compile in (False, True):
        env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        models.append(make(env, memory="LRU", compile=compile, n_steps=64, n_epochs=1).learn(128))
    assert models[1].rollout_buffer.valid is not None
    assert not models[1].compilation.functions["the update"].is_compiled
    for eager, compiled in zip(*(model.policy.parameters() for model in models), strict=True):
        th.testing.assert_close(eager, compiled, rtol=0, atol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_take_the_arguments_of_recurrent_ones(kind, structure, tmp_path):
    model = make(memory=kind, policy_kwargs=STRUCTURES[structure]).learn(32)
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy", device="cpu")
    obs, state, states = np.stack([model.observation_space.sample() for _ in range(3)]), None, []
    for policy in (model.policy, loaded):
        for _ in range(2):
            _, state = policy.predict(obs, state, deterministic=True)
        states.append(state)
        state = None
    assert all(map(np.array_equal, *states)) and states[0][0].any()


def test_predict_returns_and_takes_the_state():
    model = make().learn(32)
    observations = np.stack([model.observation_space.sample() for _ in range(4)])
    _, state = model.predict(observations, deterministic=True)
    (window,) = state
    assert window.shape == (3, 4, 5) and not window[:2].any()
    np.testing.assert_array_equal(window[2], observations)
    _, (window,) = model.predict(observations + 1, state, np.array([False, True, False, False]))
    np.testing.assert_array_equal(window[1, [0, 2, 3]], observations[[0, 2, 3]])
    assert not window[:2, 1].any()
    with pytest.raises(ValueError, match=r"state has arrays of shapes \[\(3, 4, 5\)\], but 2 observations need"):
        model.predict(observations[:2], state)


@pytest.mark.parametrize("policy", [None, "MlpLstmPolicy", "MlpGruPolicy", "MlpLruPolicy", "MlpAttentionPolicy"])
def test_an_episode_start_resets_memory_that_is_not_finite(policy):
    """As after an observation that is not finite, in an exported policy."""
    model = PPO_Plus(policy or LastObservations, vec(ACTIONS["discrete"], n_envs=1), n_steps=16, batch_size=16)
    observation = model.observation_space.sample()
    action, state = model.predict(observation, deterministic=True)
    bad = tuple(np.full_like(part, np.nan) for part in state)
    other_action, other_state = model.predict(observation, bad, np.array([True]), deterministic=True)
    assert action == other_action
    for part, other in zip(state, other_state, strict=True):
        np.testing.assert_array_equal(part, other)


@pytest.mark.slow
def test_an_exported_policy_remembers(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    model = make(policy=LastEntries, env=vec(ACTIONS["box"], OBSERVATIONS["dict"])).learn(32)
    exported, state = Exported(model.export(tmp_path / "policy.onnx")), None
    for _ in range(4):
        observations = model.observation_space.sample()
        obs = {key: np.asarray(value)[None] for key, value in observations.items()}
        actions, state = model.predict(obs, state, deterministic=True)
        others = exported(**{f"observation.{key}": part for key, part in obs.items()})["action"]
        np.testing.assert_allclose(others, actions, rtol=1e-4, atol=1e-5)
    assert all(part[0].any() for part in state)


def cart_poles():
    return make_vec_env("CartPole-v1", 2, seed=5, wrapper_class=Resumable)


@kinds
def test_a_resumed_run_ends_with_the_same_weights(memory, tmp_path):
    whole = make(cart_poles(), memory=memory).learn(128, Checkpoints(tmp_path / "whole", save_freq=32, minutes=None))

    class Stop(BaseCallback):
        def _on_step(self):
            if self.num_timesteps > 80:
                raise KeyboardInterrupt
            return True

    with pytest.raises(KeyboardInterrupt):
        make(cart_poles(), memory=memory).learn(
            128, [Checkpoints(tmp_path / "cut", save_freq=32, minutes=None), Stop()]
        )
    resumed = PPO_Plus.resume(tmp_path / "cut", cart_poles(), device="cpu")
    assert 0 < resumed.num_timesteps < 128
    resumed.learn(128, Checkpoints(tmp_path / "cut", save_freq=32, minutes=None))
    for ours, theirs in zip(resumed.policy.parameters(), whole.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


@kinds
def test_saved_loaded_and_copied_models_continue_alike(memory, tmp_path):
    model = make(memory=memory).learn(32)
    model.save(tmp_path / "model")
    env = copy.deepcopy(model.env)
    loaded = PPO_Plus.load(tmp_path / "model", env=env, device="cpu", force_reset=False)
    models = [model, loaded, copy.deepcopy(model)]
    for each in models:
        th.manual_seed(5)
        np.random.seed(5)
        each.learn(32, reset_num_timesteps=False)
    for others in models[1:]:
        for ours, theirs in zip(others.policy.parameters(), model.policy.parameters(), strict=True):
            assert th.equal(ours, theirs)
