"""Several processes and what they tell each other."""

from pathlib import Path

import pytest
from torchrun import torchrun

from ppo_plus.distributed.ranks import Ranks

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
