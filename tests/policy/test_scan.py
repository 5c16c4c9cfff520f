"""The state of linear recurrent units is that of the formula in complex numbers."""

import pytest
import torch as th
from models import make_recurrent

from ppo_plus.policy.scan import LRULayer


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
