"""What processes compare of their weights; the rest is in ``test_ranks.py``."""

import pytest
import torch as th
from models import make_model

from ppo_plus.distributed.ranks import RanksError
from ppo_plus.distributed.weights import differ_by_rounding, fingerprints, frozen


@pytest.fixture(scope="module")
def policy():
    return make_model().learn(64).policy


def changed(policy, function):
    """Fingerprints before and after a change of a weight, which is undone."""
    weight = policy.value_net.weight
    before, first = weight.detach().clone(), fingerprints(policy)
    with th.no_grad():
        weight.copy_(function(before))
        second = fingerprints(policy)
        weight.copy_(before)
    return [first, second]


def test_equal_weights_and_optimizer_states_are_the_same(policy):
    first = fingerprints(policy)
    assert not differ_by_rounding([first, fingerprints(policy)])
    assert len(first) == 3 * len(list(policy.parameters())) + len(list(policy.parameters()))


def test_the_last_bit_is_a_difference_by_rounding(policy):
    assert differ_by_rounding(changed(policy, lambda weight: weight.nextafter(th.tensor(1.0))))


@pytest.mark.parametrize("function", [th.neg, lambda weight: weight * 1.01, lambda weight: weight + 0.01])
def test_other_weights_raise_an_error(policy, function):
    with pytest.raises(RanksError, match="value_net.weight differs between ranks 0 and 1"):
        differ_by_rounding(changed(policy, function))


def test_weights_that_one_process_lacks_raise_an_error(policy):
    first, second = fingerprints(policy), fingerprints(policy)
    del second["value_net.bias"]
    with pytest.raises(RanksError, match="value_net.bias differs"):
        differ_by_rounding([first, second])


def test_frozen_weights_are_named(policy):
    policy.value_net.bias.requires_grad_(False)
    assert frozen(policy) == ["value_net.bias"]
    policy.value_net.bias.requires_grad_(True)
