"""Attention sees the steps of its window in its episode, and no others."""

import pytest
import torch as th
from models import make_recurrent

from ppo_plus.policy.attention import AGE_SCALE, AttentionLayer


def influences(starts, window, n_past=0):
    """Which steps the output of each step depends on, booleans ``(T, n_past + T)``.

    :param n_past: steps of the same episode before the sequence
    """
    th.manual_seed(0)
    layer, length = AttentionLayer(6, window, 2), len(starts)
    x = th.randn(1, n_past + length, 6, requires_grad=True)
    past = th.zeros(1, window - 1, 7)
    if n_past:
        _, past = layer(x[:, :n_past], past, th.zeros(1, n_past, dtype=th.bool))
    y, _ = layer(x[:, n_past:], past, th.tensor([starts]))
    rows = [th.autograd.grad(y[0, t].square().sum(), x, retain_graph=True)[0][0].any(dim=1) for t in range(length)]
    return th.stack(rows)


@pytest.mark.parametrize("window", [2, 3, 9])
@pytest.mark.parametrize("n_past", [0, 1, 4])
def test_a_step_sees_its_window_and_its_episode(window, n_past):
    starts = [False, False, True, False, False, False, True]
    first = [0, 0, 2, 2, 2, 2, 6]  # of the episode; before the sequence there is the same one
    expected = th.zeros(7, n_past + 7, dtype=th.bool)
    for t in range(7):
        begin = 0 if first[t] == 0 else n_past + first[t]
        expected[t, max(begin, n_past + t - window + 1) : n_past + t + 1] = True
    assert th.equal(influences(starts, window, n_past), expected)


def test_each_head_begins_with_another_step():
    weights = (AGE_SCALE * AttentionLayer(8, 64, 4).age_bias).softmax(dim=1)
    assert weights.argmax(dim=1).tolist() == [0, 1, 2, 3] and (weights.amax(dim=1) > 0.4).all()
    assert (weights > 0.005).all()  # and all others are seen


def test_memory_grows_with_the_sequence_and_not_with_its_square():
    def numbers(length):
        """Numbers that the gradient of a sequence needs."""
        sizes = []
        with th.autograd.graph.saved_tensors_hooks(lambda part: sizes.append(part.numel()) or part, lambda part: part):
            layer = AttentionLayer(6, 9, 2)
            layer(th.randn(1, length, 6), th.zeros(1, 8, 7), th.zeros(1, length, dtype=th.bool))
        return sum(sizes)

    assert numbers(9 * 64) < 10 * numbers(9 * 8)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (dict(attention_window=1), "attention_window=1 must be at least 2"),
        (dict(attention_heads=0), "attention_heads=0 must be at least 1"),
        (dict(lstm_kwargs=dict(bias=False)), "unexpected keyword argument 'lstm_kwargs'"),
        (dict(attention_heads=5), "lstm_hidden_size=12 must be a multiple of 5, the number of attention_heads"),
    ],
)
def test_arguments_are_checked(memory, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_recurrent(policy="MlpAttentionPolicy", memory=memory)


def test_the_state_has_the_keys_and_values_of_the_window():
    model = make_recurrent(policy="MlpAttentionPolicy", memory=dict(attention_window=4, n_lstm_layers=2))
    _, (state,) = model.predict(model.observation_space.sample())
    # Two layers, one environment, three steps; a key and a value of 12 / 4 numbers, and whether there is a step.
    assert state.shape == (2, 1, 3, 7)
    assert state[..., -1].tolist() == [[[0, 0, 1]]] * 2 and not state[:, :, :2].any()
