"""What processes do between rollouts, as far as one alone can say; the rest is in ``test_ranks.py``."""

import itertools
import warnings
from types import SimpleNamespace

import pytest

from ppo_plus.distributed import shared
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.distributed.shared import SharedTraining


@pytest.fixture
def updates(monkeypatch):
    """Has some processes update again and again, and says what the given one warns of."""

    def run(ranks, computed, waited, n_updates):
        clock = itertools.count(0, computed + waited)
        monkeypatch.setattr(shared, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        all_of_them = SharedTraining(ranks)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(n_updates):
                with all_of_them.updating():
                    ranks.waited += waited
        return [str(each.message).split(",")[0] for each in said]

    return run


@pytest.mark.parametrize(
    ("size", "waited", "share"), [(2, 3, None), (2, 5, "56%"), (4, 11, None), (4, 13, "76%"), (1, 0, None)]
)
def test_ranks_that_mostly_wait_get_a_warning(updates, size, waited, share):
    """One process needs at most the time that all of them compute, here 4 seconds each."""
    expected = [] if share is None else [f"{size} processes waited for each other for {share} of an update"]
    assert updates(Ranks(0, size), 4, waited, n_updates=4) == expected
    # The first update compiles.
    assert updates(Ranks(0, size), 4, waited, n_updates=1) == []
    # One of them is enough.
    assert updates(Ranks(1, size), 4, waited, n_updates=4) == []
