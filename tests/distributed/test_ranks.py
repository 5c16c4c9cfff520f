"""Several processes and what they tell each other."""

from pathlib import Path

import pytest
import torch as th
from models import make_model
from torchrun import torchrun

from ppo_plus.distributed.ranks import Ranks, RanksError, differ_by_rounding, fingerprints, frozen

SCRIPT = Path(__file__).parents[1] / "helpers" / "rank_checks.py"


def test_two_processes():
    done = torchrun(
        2,
        SCRIPT,
        "collectives",
        "pooled",
        "stopped",
        "frozen",
        "anew",
        "set_aside",
        "resumed",
        "unwritten",
        "evaluated",
        "failing_evaluation",
        "foreign_buffer",
        "differing",
        "differing_later",
        "differing_schedules",
        "differing_callbacks",
        "freezing",
        "freezing_early",
        "drifting",
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.slow
def test_an_error_of_one_ends_all_with_its_message():
    done = torchrun(2, SCRIPT, "raising")
    assert done.returncode == 1
    assert "ValueError: the wind has torn the line" in done.stderr
    assert "noticed" in done.stdout


def test_alone_nothing_is_sent():
    ranks = Ranks.present()
    assert (ranks.rank, ranks.size, ranks.several, ranks.leads, ranks.seed(3), ranks.seed(None)) == (
        *(0, 1, False, True, 3, None),
    )


def test_each_process_has_its_own_seed():
    """Two processes would differ even if the seed did not depend on the rank: only rank 0 has the run's."""
    processes = [Ranks(rank, 3) for rank in range(3)]
    assert processes[0].seed(7) == 7 and len({each.seed(7) for each in processes}) == 3


# --- what processes compare of their weights --------------------------------------------------------------------------


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
