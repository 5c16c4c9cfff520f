"""Which trial wins."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from verdicts import HIGH, LOW, against, finalist

from ppo_plus.zoo import results
from ppo_plus.zoo.tune.verdict import ERROR_RATE, compare

ROOT = Path(__file__).parents[3]


def against_both(default, file, *finalists):
    """The verdict where the settings file has an entry."""
    return compare({"default": default, "settings file": file}, finalists)


def shifted(scores, by):
    return [score + by for score in scores]


def test_the_best_of_the_significantly_better_ones_wins():
    verdict = against(finalist(LOW), finalist(LOW, 1), finalist(shifted(LOW, 5), 2), finalist(HIGH, 3))
    assert verdict.winner == 2
    assert verdict.gains[0]["default"].low < 0 < verdict.gains[1]["default"].low < verdict.gains[2]["default"].low
    assert verdict.confidence == pytest.approx(1 - 0.05 / 3)
    assert str(verdict).startswith("Confirmed: trial 3 returns 21.0 [")
    assert "over the default (98.3 % interval)." in str(verdict)


def test_the_default_stays_where_nothing_is_significantly_better():
    noisy = [x + 30 * (-1) ** i for i, x in enumerate(HIGH)]
    verdict = against(finalist(LOW), finalist(noisy, 1))
    assert verdict.winner is None and verdict.gains[0]["default"].value > 0
    assert str(verdict).startswith(
        "No winner: none of the finalists is significantly better than the default on unseen seeds"
    )


def test_a_winner_beats_the_settings_file_as_well():
    """What beats the default alone is not exported, however much better than the default it is."""
    default, file, between = finalist(LOW), finalist(HIGH, 1), finalist(shifted(LOW, 5), 2)
    verdict = against_both(default, file, between)
    assert verdict.winner is None
    assert verdict.gains[0]["default"].low > 0 > verdict.gains[0]["settings file"].high
    assert str(verdict).startswith(
        "No winner: none of the finalists is significantly better than both the default and the settings file's"
    )
    best = finalist(shifted(HIGH, 5), 3)
    verdict = against_both(default, file, between, best)
    assert verdict.winner == 1
    assert re.search(
        r"Confirmed: trial 3 returns 26.0 .*, the default 11.0 .* and the settings file's entry 21.0 .*; the gain is "
        r"15.0 .* over the default and 5.0 .* over the settings file's entry \(97.5 % intervals\)\.",
        str(verdict),
    )
    # An entry that is worse than the default changes nothing: the default must be beaten, too.
    assert against_both(file, default, between).winner is None


def test_what_failed_on_a_seed_is_not_confirmed():
    assert against(finalist(LOW), finalist(HIGH[:9], 1, n_failed=1)).winner is None
    assert against(finalist(LOW[:9], n_failed=1), finalist(HIGH, 1)).winner == 0
    without = against(finalist([], n_failed=10), finalist(HIGH, 1))
    assert without.winner is None and "the default has no score on unseen seeds" in str(without)
    without = against_both(finalist(LOW), finalist([], 1, n_failed=10), finalist(HIGH, 2))
    assert without.winner is None and "the settings file's entry has no score on unseen seeds" in str(without)


def test_without_runs_of_a_baseline_nothing_is_confirmed():
    """As in a study of version 0.1, where the settings file's entry was no baseline."""
    verdict = against_both(finalist(LOW), finalist([], 1), finalist(HIGH, 2))
    assert verdict.winner is None
    assert "No confirmation: the settings file's entry has no score on unseen seeds" in str(verdict)


def test_no_confirmation_no_winner():
    for baselines in ({}, {"default": finalist([])}):
        assert compare(baselines, []).winner is None
        assert "No confirmation" in str(compare(baselines, []))


@pytest.mark.parametrize("n_baselines", [1, 2])
@pytest.mark.slow
def test_a_wrong_winner_is_as_rare_as_the_report_says(monkeypatch, n_baselines):
    """Where the best of three finalists is only as good as the best baseline, it wins in at most 5 % of studies: the
    worst case of two baselines is a default that everything beats, so that the settings file's entry alone decides."""
    monkeypatch.setattr(results, "N_RESAMPLES", 300)
    rng = np.random.default_rng(0)
    returns = (rng.normal, rng.exponential, lambda size: rng.normal(size=size) + 10 * (rng.random(size) < 0.5))
    n_studies, wrong = 600, 0
    for study in range(n_studies):
        best, *others = (finalist(list(row), job) for job, row in enumerate(returns[study % 3](size=(4, 10))))
        verdict = against(best, *others) if n_baselines == 1 else against_both(finalist([-100.0] * 10), best, *others)
        wrong += verdict.winner is not None
    assert wrong <= binom.ppf(0.999, n_studies, ERROR_RATE)
    # It is no test if nothing ever wins.
    assert wrong >= binom.ppf(0.001, n_studies, 0.01)
