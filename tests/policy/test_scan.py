"""The parallel scan gives the results of the loop, and the state is that of the formula in complex numbers."""

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from models import make_recurrent

from ppo_plus.formulas.losses import linear_recurrence
from ppo_plus.policy.scan import LRULayer


@given(st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_the_scan_is_the_loop(n, length, seed):
    th.manual_seed(seed)
    a = th.rand(n, length, 2, dtype=th.float64) * (th.rand(n, length, 1) < 0.8)
    b, h = th.randn(n, length, 2, dtype=th.float64), th.randn(n, 2, dtype=th.float64)
    given = [tensor.requires_grad_() for tensor in (a, b, h)]
    whole, steps = linear_recurrence(*given), []
    for t in range(length):
        h = a[:, t] * h + b[:, t]
        steps.append(h)
    single = th.stack(steps, dim=1)
    th.testing.assert_close(whole, single, rtol=1e-12, atol=1e-14)
    signs = th.randn_like(whole)
    for ours, theirs in zip(*(th.autograd.grad((y * signs).sum(), given) for y in (whole, single)), strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_state_is_that_of_the_formula():
    th.manual_seed(0)
    layer, x, h = LRULayer(3, 8), th.randn(2, 20, 3), th.randn(2, 8)
    starts = th.rand(2, 20) < 0.2
    found = layer(x, h, (~starts)[:, :, None, None].float())
    rate, state = layer.log_rate.exp(), th.complex(*h.chunk(2, dim=1))
    factor = th.exp(th.complex(-rate, layer.angle))
    for t in range(20):
        given = (1 - factor.abs().square()).sqrt() * th.complex(*layer.inputs(x[:, t]).chunk(2, dim=1))
        state = factor * state * ~starts[:, t, None] + given
        th.testing.assert_close(found[:, t], th.cat([state.real, state.imag], dim=1), rtol=1e-4, atol=1e-5)


def test_gradients_are_finite_for_numbers_that_do_not_decay():
    layer = LRULayer(3, 4)
    with th.no_grad():
        layer.log_rate.fill_(-30.0)
    layer(th.randn(2, 5, 3), th.randn(2, 4), th.ones(2, 5, 1, 1)).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())


def test_an_odd_size_raises_an_error():
    with pytest.raises(ValueError, match="policy_kwargs: lstm_hidden_size=7 must be a multiple of 2"):
        make_recurrent(policy="MlpLruPolicy", memory=dict(lstm_hidden_size=7))
