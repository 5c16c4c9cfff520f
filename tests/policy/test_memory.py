"""Every kind of memory passes the same checks: those that are compiled with the loss, and one without layers."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler
from envs import ACTIONS, vec
from hypothesis import given, settings
from hypothesis import strategies as st
from models import STRUCTURES
from parametrization import SLOW, part

from ppo_plus import Features, PPO_Plus, WithMemory, register
from ppo_plus.policy.attention import Attention
from ppo_plus.policy.memory import MemoryLayer, reset_memory
from ppo_plus.policy.recurrent import GRU, LSTM, Layout, Recurrent
from ppo_plus.policy.scan import LRU


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


register(LastObservations)


#: Kinds of memory, and their arguments.
KINDS = {
    "observations": (LastObservations, {}),
    "LRU": ("MlpLruPolicy", dict(lstm_hidden_size=8, n_lstm_layers=2)),
    "attention": ("MlpAttentionPolicy", dict(lstm_hidden_size=8, n_lstm_layers=2, attention_window=5)),
}


def make(env=None, cls=PPO_Plus, memory="observations", policy=None, **kwargs):
    arguments = dict(n_steps=16, batch_size=16, n_epochs=2, sequence_length=8, seed=0, device="cpu", compile=False)
    env = vec(ACTIONS["discrete"]) if env is None else env
    known, policy_kwargs = KINDS[memory]
    policy_kwargs = {"ortho_init": False} | policy_kwargs | kwargs.pop("policy_kwargs", {})
    return cls(policy or known, env, **arguments | kwargs, policy_kwargs=policy_kwargs)


# --- layers ----------------------------------------------------------------------------------------------------------

LAYERS = {
    "LSTM": lambda n_layers: LSTM(3, 6, n_layers),
    "GRU": lambda n_layers: GRU(3, 6, n_layers),
    "GRU without bias": lambda n_layers: GRU(3, 6, n_layers, bias=False),
    "LRU": lambda n_layers: LRU(3, 6, n_layers),
    # Sequences are shorter and longer than the window.
    "attention": lambda n_layers: Attention(3, 6, n_layers, attention_window=5, attention_heads=3),
}


def layers_and_inputs(kind, n_layers, n_sequences, length, p_start, seed):
    """Layers, inputs, states as after some steps, and episode starts."""
    th.manual_seed(seed)
    layers = LAYERS[kind](n_layers).double()
    if isinstance(layers, Recurrent):
        with th.no_grad():
            for weight in layers.parameters():
                weight.mul_(4.0)  # as large as in trained networks, or larger
    x, starts = th.randn(n_sequences, length, 3, dtype=th.float64), th.rand(n_sequences, length) < p_start
    state = layers.init(n_sequences)
    for before in th.randn(7, n_sequences, 3, dtype=th.float64):
        _, state = layers.step(before, state)
    return layers, x.requires_grad_(), tuple(part.detach().requires_grad_() for part in state), starts


def whole(layers, x, state, starts):
    """The outputs for sequences at once."""
    starts_in_form = Layout(starts) if isinstance(layers, Recurrent) else starts
    return layers.sequences(x.flatten(0, 1), state, starts_in_form).unflatten(0, starts.shape)


def stepped(layers, x, state, starts):
    """The outputs one step at a time, and the state after them."""
    outputs = []
    for t in range(x.shape[1]):
        y, state = layers.step(x[:, t], reset_memory(state, starts[:, t]))
        outputs.append(y)
    return th.stack(outputs, dim=1), state


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
    at_once, (single, after) = whole(layers, x, state, starts), stepped(layers, x, state, starts)
    th.testing.assert_close(at_once, single, rtol=1e-10, atol=1e-12)
    if isinstance(layers, MemoryLayer):
        for a, b in zip(layers(x, state, starts)[1], after, strict=True):
            th.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    weights, signs = [*layers.parameters(), x, *state], th.randn(single.shape, dtype=th.float64)
    pair = (th.autograd.grad((y * signs).sum(), weights, allow_unused=True) for y in (at_once, single))
    for a, b in zip(*pair, strict=True):
        th.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["LRU", "attention"])
def test_long_sequences_are_steps_in_single_precision(kind):
    layers, x, state, starts = layers_and_inputs(kind, 2, 2, 300, 0.005, 0)
    layers, x, memory = layers.float(), x.float(), tuple(part.float() for part in state)
    with th.no_grad():
        th.testing.assert_close(
            whole(layers, x, memory, starts), stepped(layers, x, memory, starts)[0], rtol=1e-5, atol=1e-5
        )
    assert starts.any()


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_passes_the_start_of_an_episode(kind, dtype):
    layers, x, state, starts = layers_and_inputs(kind, 2, 1, 8, 0.0, 0)
    # In float32 torch's loops are another implementation than in float64.
    layers, x, state = layers.to(dtype), x.to(dtype), tuple(part.to(dtype) for part in state)
    starts[:, 5] = True
    y = whole(layers, x, state, starts)
    # Exactly nothing: not a small number.
    after = th.autograd.grad(y[:, 5:].sum(), [x, *state], retain_graph=True)
    assert not after[0][:, :5].any() and after[0][:, 5:].any() and not any(part.any() for part in after[1:])
    before = th.autograd.grad(y[:, :5].sum(), [x, *state])
    assert not before[0][:, 5:].any() and all(part.any() for part in before[1:])
    th.testing.assert_close(y[:, 5:], whole(layers, x[:, 5:], layers.init(1), starts[:, 5:]))


@given(st.lists(st.booleans(), min_size=12, max_size=12))
@settings(deadline=None)
def test_a_layout_is_at_most_twice_as_long_and_inverted_by_unpad(starts):
    layout = Layout(th.tensor(starts).view(3, -1))
    x = th.arange(12.0)[:, None] + 1
    rows = layout.pad(x)
    assert rows.shape[:1] == (3,) and 4 <= rows.shape[1] <= 7
    assert th.equal(layout.unpad(rows), x)
    most = max(sum(starts[i + 1 : i + 4]) for i in (0, 4, 8))
    assert 3 * most == (0 if layout.resets is None else layout.resets.sum())
    if layout.resets is not None:
        assert not rows[layout.resets.bool()].any()


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_layout_may_be_longer_than_it_needs(kind, rate):
    """As on a GPU, where the number of starts in each minibatch is not read."""
    layers, x, state, starts = layers_and_inputs(kind, 2, 3, 5, rate, 0)
    for length in (int(starts[:, 1:].sum(dim=1).max()), 4):
        layout = Layout(starts, length)
        found = layers.sequences(x.flatten(0, 1), state, layout).unflatten(0, starts.shape)
        th.testing.assert_close(found, stepped(layers, x, state, starts)[0])
        assert (0 if layout.resets is None else layout.resets.shape[1] - 5) == length


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_dropout_is_between_layers_and_in_training_only(layer):
    th.manual_seed(0)
    layers, x, starts = layer(3, 6, 2, dropout=0.5), th.randn(2, 6, 3), th.rand(2, 6) < 0.3
    state = layers.init(2)
    layers.eval()
    th.testing.assert_close(whole(layers, x, state, starts), stepped(layers, x, state, starts)[0])
    layers.train()
    for run in (lambda: whole(layers, x, state, starts), lambda: stepped(layers, x, state, starts)[0]):
        assert not th.equal(run(), run())


# --- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", KINDS)
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


@needs_compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("memory", part(KINDS, ["LRU"], SLOW))
def test_compiled_training_is_the_same(memory):
    # One layer for actor and critic: a graph of half the size.
    layer = {} if memory == "observations" else dict(n_lstm_layers=1, shared_lstm=True, enable_critic_lstm=False)
    assert_trained_alike(
        *(make(memory=memory, compile=compile, policy_kwargs=layer).learn(64) for compile in (False, True))
    )


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("memory", ["LRU", "attention"])
def test_inductor_compiles_the_layers(memory):
    # One layer for actor and critic: a graph of half the size.
    layer = dict(n_lstm_layers=1, shared_lstm=True, enable_critic_lstm=False)
    arguments = dict(memory=memory, n_steps=32, batch_size=64, sequence_length=4, policy_kwargs=layer)
    assert_trained_alike(
        *(make(vec(ACTIONS["box"], n_envs=4), compile=compile, **arguments).learn(256) for compile in (False, True))
    )


@needs_compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("policy", ["MlpLruPolicy", "MlpLstmPolicy"])
def test_compiled_training_leaves_out_steps_that_only_reset(policy):
    models = []
    for compile in (False, True):
        env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        models.append(make(env, memory="LRU", policy=policy, compile=compile, n_steps=64, n_epochs=1).learn(128))
    assert models[1].rollout_buffer.valid is not None
    assert not models[1].compilation.functions["the update"]._run
    for eager, compiled in zip(*(model.policy.parameters() for model in models), strict=True):
        th.testing.assert_close(eager, compiled, rtol=0, atol=1e-6)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", ["LRU", "attention"])
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


@pytest.mark.parametrize("policy", [None, "MlpLstmPolicy", "MlpGruPolicy", "MlpLruPolicy", "MlpAttentionPolicy"])
def test_an_episode_start_resets_memory_that_is_not_finite(policy):
    """As after an observation that is not finite, in an exported policy."""
    model = PPO_Plus(policy or LastObservations, vec(ACTIONS["discrete"], n_envs=1), n_steps=16, batch_size=16)
    observation = model.observation_space.sample()
    action, state = model.predict(observation, deterministic=True)
    bad = tuple(np.full_like(part, np.nan) for part in state)
    other_action, other_state = model.predict(observation, bad, np.array([True]), deterministic=True)
    assert action == other_action
    for ours, other in zip(state, other_state, strict=True):
        np.testing.assert_array_equal(ours, other)
