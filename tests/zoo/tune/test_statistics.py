"""Interquartile means and their intervals."""

import numpy as np
import pytest

from ppo_plus.zoo.tune.statistics import (
    Estimate,
    difference_interval,
    improvement_interval,
    iqm,
    iqm_interval,
    profile,
    ratio_interval,
)


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm(np.array([1000.0, 1, 2, 3, 4, 5, 6, -1000])) == pytest.approx((2 + 3 + 4 + 5) / 4)


def test_intervals_hold_what_they_are_about():
    """In about 95 % of repetitions; with 20 seeds a percentile interval is a little too narrow."""
    rng = np.random.default_rng(0)
    held = [(lambda e: e.low <= 0 <= e.high)(difference_interval(*rng.normal(size=(2, 20)))) for _ in range(50)]
    assert 42 <= sum(held) <= 50
    assert all((lambda e: e.low > 0)(difference_interval(rng.normal(5, 1, 20), rng.normal(size=20))) for _ in range(10))


def test_intervals_are_reproducible_and_grow_with_confidence():
    scores, others = [1.0, 5, 2, 8, 3, 9, 4, 4, 7, 2], [2.0, 2, 1, 4, 3, 5, 4, 1, 2, 3]
    estimate = difference_interval(scores, others)
    assert estimate == difference_interval(scores, others)
    assert estimate.low < estimate.value == iqm(np.array(scores)) - iqm(np.array(others)) < estimate.high
    wide = difference_interval(scores, others, 0.99)
    assert wide.low < estimate.low and estimate.high < wide.high


def test_one_score_says_nothing_about_its_spread():
    assert iqm_interval([3.0]) == (3.0, -float("inf"), float("inf"))
    assert iqm_interval([3.0] * 10) == (3.0, 3.0, 3.0)


def test_ratios_to_others_are_pooled_over_tasks():
    tasks, others = [[1.0, 2, 3, 4], [50.0, 60, 70, 80]], [[1.0] * 4, [10.0] * 4]
    estimate = ratio_interval(tasks, others)
    assert estimate.value == iqm(np.array([1.0, 2, 3, 4, 5, 6, 7, 8])) == 4.5
    # Each task keeps as many runs as it has: a pool that were drawn from as one could be all ones or all eights.
    assert 3.0 < estimate.low < 4.5 < estimate.high < 6.0
    # What the others reach is not certain either.
    unsure = ratio_interval(tasks, [[0.5, 1.0, 1.0, 1.5], [5.0, 10.0, 10.0, 15.0]])
    assert unsure.value == 4.5 and unsure.low < estimate.low and estimate.high < unsure.high
    assert ratio_interval([[3.0] * 10], [[1.0] * 10]) == iqm_interval([3.0] * 10)


def test_probability_of_improvement_counts_pairs():
    first, second = [1.0, 3.0, 3.0], [2.0, 3.0]
    # Of six pairs, one is above in each of the two runs of 3 against 2, and two are equal.
    pairs = np.mean([(x > y) + (x == y) / 2 for x in first for y in second])
    assert improvement_interval([first], [second]).value == pytest.approx(pairs) == 0.5
    always = improvement_interval([first, [9.0, 8.0]], [second, [1.0, 2.0]])
    assert always.value == pytest.approx((pairs + 1) / 2)
    assert 0.5 <= always.low < always.value < always.high <= 1.0
    rng = np.random.default_rng(0)
    assert improvement_interval(rng.normal(1, 1, (3, 20)), rng.normal(0, 1, (3, 20))).low > 0.5


def test_a_profile_falls_from_all_runs_to_none():
    tasks, thresholds = [[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]], [0.0, 1.5, 2.0, 5.0]
    found = profile(tasks, thresholds)
    assert found[:, 0].tolist() == [1.0, 7 / 8, 2 / 8, 0.0]
    assert (found[:, 1] <= found[:, 0]).all() and (found[:, 0] <= found[:, 2]).all()
    assert found[1, 1] < found[1, 0]


def test_an_estimate_is_written_with_its_interval():
    estimate = Estimate(0.5, 0.25, 1.0)
    assert f"{estimate}" == str(estimate) == "0.5 [0.2, 1.0]" and f"{estimate:+.0%}" == "+50% [+25%, +100%]"
