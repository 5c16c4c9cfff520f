"""Interquartile means and their intervals."""

import numpy as np
import pytest

from ppo_plus.zoo.tune.statistics import Estimate, difference_interval, iqm, iqm_interval


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


def test_an_estimate_is_written_with_its_interval():
    estimate = Estimate(0.5, 0.25, 1.0)
    assert f"{estimate}" == str(estimate) == "0.5 [0.2, 1.0]" and f"{estimate:+.0%}" == "+50% [+25%, +100%]"
