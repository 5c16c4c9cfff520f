"""Comparisons over several tasks: ``benchmarks/report/statistics.py``."""

import numpy as np
import pytest
from report import statistics

from ppo_plus.zoo.results import iqm, iqm_interval


def test_ratios_to_others_are_pooled_over_tasks():
    tasks, others = [[1.0, 2, 3, 4], [50.0, 60, 70, 80]], [[1.0] * 4, [10.0] * 4]
    estimate = statistics.ratio_interval(tasks, others)
    assert estimate.value == iqm(np.array([1.0, 2, 3, 4, 5, 6, 7, 8])) == 4.5
    # Each task keeps as many runs as it has: a pool that were drawn from as one could be all ones or all eights.
    assert 3.0 < estimate.low < 4.5 < estimate.high < 6.0
    # What the others reach is not certain either.
    unsure = statistics.ratio_interval(tasks, [[0.5, 1.0, 1.0, 1.5], [5.0, 10.0, 10.0, 15.0]])
    assert unsure.value == 4.5 and unsure.low < estimate.low and estimate.high < unsure.high
    assert statistics.ratio_interval([[3.0] * 10], [[1.0] * 10]) == iqm_interval([3.0] * 10)


def test_probability_of_improvement_counts_pairs():
    first, second = [1.0, 3.0, 3.0], [2.0, 3.0]
    # Of six pairs, one is above in each of the two runs of 3 against 2, and two are equal.
    pairs = np.mean([(x > y) + (x == y) / 2 for x in first for y in second])
    assert statistics.improvement_interval([first], [second]).value == pytest.approx(pairs) == 0.5
    always = statistics.improvement_interval([first, [9.0, 8.0]], [second, [1.0, 2.0]])
    assert always.value == pytest.approx((pairs + 1) / 2)
    assert 0.5 <= always.low < always.value < always.high <= 1.0
    rng = np.random.default_rng(0)
    assert statistics.improvement_interval(rng.normal(1, 1, (3, 20)), rng.normal(0, 1, (3, 20))).low > 0.5


def test_a_profile_falls_from_all_runs_to_none():
    tasks, thresholds = [[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]], [0.0, 1.5, 2.0, 5.0]
    found = statistics.profile(tasks, thresholds)
    assert found[:, 0].tolist() == [1.0, 7 / 8, 2 / 8, 0.0]
    assert (found[:, 1] <= found[:, 0]).all() and (found[:, 0] <= found[:, 2]).all()
    assert found[1, 1] < found[1, 0]
