"""The returns in the table of kinds of memory: ``benchmarks/report/memory_kinds.py``."""

import math

import pytest
from report import memory_kinds


def return_after(returns, episodes, share):
    return memory_kinds.return_after({"curve": {"return": returns, "episodes": episodes}}, share)


def test_the_end_is_the_mean_over_the_episodes_of_the_last_tenth():
    # The last point has a single episode, and one has none.
    run = [0.0] * 36 + [1.0, None, 1.0, 7.0], [10] * 36 + [1, 0, 2, 1]
    assert return_after(*run, 1.0) == pytest.approx((1.0 * 3 + 7.0) / 4)
    assert return_after(*run, 0.95) == pytest.approx(1 / 21)
    assert return_after(*run, 0.5) == 0.0
    assert math.isnan(return_after([None] * 20, [0] * 20, 1.0))
