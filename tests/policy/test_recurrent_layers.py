"""Recurrent layers: whole sequences are steps one at a time, and nothing passes the start of an episode."""

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ppo_plus.policy.memory import reset_memory
from ppo_plus.policy.recurrent import GRU, LSTM, Layout

LAYERS = {"lstm": LSTM, "gru": GRU}


def made(kind, input_size=3, hidden_size=5, **options):
    layer = LAYERS[kind](input_size, hidden_size, **options).double()
    with th.no_grad():
        for weight in layer.parameters():
            # As large as in trained networks, or larger.
            weight.mul_(4.0)
    return layer


def inputs(layer, n_sequences, length, p_start, seed=0):
    """Inputs, a state, and episode starts."""
    generator = th.Generator().manual_seed(seed)
    x = th.randn(n_sequences * length, layer.input_size, dtype=th.float64, generator=generator, requires_grad=True)
    state = tuple(
        th.randn(*part.shape, dtype=th.float64, generator=generator, requires_grad=True)
        for part in layer.init(n_sequences)
    )
    return x, state, th.rand(n_sequences * length, generator=generator) < p_start


def stepped(layer, x, state, starts):
    """The outputs, one step at a time."""
    n_sequences = len(state[0])
    outputs = []
    for x_t, start in zip(x.view(n_sequences, -1, x.shape[1]).unbind(1), starts.view(n_sequences, -1).T, strict=True):
        y, state = layer.step(x_t, reset_memory(state, start))
        outputs.append(y)
    return th.stack(outputs, dim=1).flatten(0, 1)


@given(
    kind=st.sampled_from(list(LAYERS)),
    num_layers=st.integers(1, 3),
    bias=st.booleans(),
    n_sequences=st.integers(1, 4),
    length=st.integers(1, 9),
    p_start=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=60)
def test_sequences_are_steps_one_at_a_time(kind, num_layers, bias, n_sequences, length, p_start, seed):
    th.manual_seed(seed)
    layer = made(kind, num_layers=num_layers, bias=bias)
    x, state, starts = inputs(layer, n_sequences, length, p_start, seed)
    whole = layer.sequences(x, state, Layout(starts.view(n_sequences, -1)))
    single = stepped(layer, x, state, starts)
    th.testing.assert_close(whole, single, rtol=1e-10, atol=1e-12)
    weights = [*layer.parameters(), x, *state]
    signs = th.randn(whole.shape, dtype=th.float64)
    for a, b in zip(*(th.autograd.grad((y * signs).sum(), weights) for y in (whole, single)), strict=True):
        th.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_passes_the_start_of_an_episode(kind, dtype):
    th.manual_seed(0)
    layer = made(kind, hidden_size=32, num_layers=2).to(dtype)
    length, start = 8, 5
    x = th.randn(length, 3, dtype=dtype, requires_grad=True)
    state = tuple(th.randn_like(part).requires_grad_() for part in layer.init(1))
    starts = th.arange(length) == start
    y = layer.sequences(x, state, Layout(starts[None]))
    # In float32 this is another implementation than in float64. Exactly nothing: not a small number.
    behind = th.autograd.grad(y[start:].sum(), [x, *state], retain_graph=True)
    assert not behind[0][:start].any() and behind[0][start:].any()
    assert not any(part.any() for part in behind[1:])
    before = th.autograd.grad(y[:start].sum(), [x, *state])
    assert not before[0][start:].any() and all(part.any() for part in before[1:])
    alone = layer.sequences(x[start:], layer.init(1), Layout(starts[None, start:]))
    th.testing.assert_close(y[start:], alone)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_by_finite_differences(kind):
    th.manual_seed(1)
    layer = LAYERS[kind](2, 3, num_layers=2).double()
    x, state, starts = inputs(layer, 2, 4, 0.0)
    starts[[2, 4, 7]] = True
    names = [name for name, _ in layer.named_parameters()]

    def outputs(x, *others):
        state, weights = others[: layer.n_states], others[layer.n_states :]
        return th.func.functional_call(
            _Sequences(layer, Layout(starts.view(2, -1))), _named(names, weights), (x, state)
        )

    assert th.autograd.gradcheck(outputs, (x, *state, *layer.parameters()))


class _Sequences(nn.Module):
    """A layer's ``sequences`` as a module's ``forward``."""

    def __init__(self, layer, layout):
        super().__init__()
        self.layer, self.layout = layer, layout

    def forward(self, x, state):
        return self.layer.sequences(x, state, self.layout)


def _named(names, weights):
    return {f"layer.{name}": weight for name, weight in zip(names, weights, strict=True)}


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


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_layout_may_be_longer_than_it_needs(kind, rate):
    """As on a GPU, where the number of starts in each minibatch is not read."""
    th.manual_seed(0)
    layer = made(kind, num_layers=2)
    x, state, starts = inputs(layer, 3, 5, rate)
    most = int(starts.view(3, 5)[:, 1:].sum(dim=1).max())
    for length in (most, 4):
        layout = Layout(starts.view(3, -1), length)
        th.testing.assert_close(layer.sequences(x, state, layout), stepped(layer, x, state, starts))
        assert (0 if layout.resets is None else layout.resets.shape[1] - 5) == length


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_is_between_layers_and_in_training_only(kind):
    th.manual_seed(0)
    layer = made(kind, num_layers=2, dropout=0.5)
    x, state, starts = inputs(layer, 2, 6, 0.3)
    layout = Layout(starts.view(2, -1))
    layer.eval()
    th.testing.assert_close(layer.sequences(x, state, layout), stepped(layer, x, state, starts))
    layer.train()
    for run in (lambda: layer.sequences(x, state, layout), lambda: stepped(layer, x, state, starts)):
        assert not th.equal(run(), run())


@pytest.mark.parametrize("kind", LAYERS)
def test_each_layer_gets_a_contiguous_state(kind, monkeypatch):
    """Some backends of torch raise otherwise ("rnn: hx is not contiguous")."""
    layer = made(kind, num_layers=3)
    x, state, starts = inputs(layer, 2, 4, 0.3)
    received = []
    for name in ("_loop", "_cell"):
        original = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda x, s, w, call=original: received.extend(s) or call(x, s, w))
    layer.sequences(x, state, Layout(starts.view(2, -1)))
    stepped(layer, x, state, starts)
    assert len(received) == (1 + 4) * 3 * layer.n_states and all(part.is_contiguous() for part in received)
