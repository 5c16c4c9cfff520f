"""The design that finds out which settings matter."""

import numpy as np
import pytest


@pytest.fixture
def screening(import_script):
    return import_script("screening")


def test_effects_do_not_mix(screening):
    """Columns are orthogonal to each other, to the mean, and to the products of any two."""
    levels = screening.design()
    assert levels.shape == (24, 11) and set(levels.ravel()) == {-1, 1}
    assert (levels.T @ levels == 24 * np.eye(11)).all() and (levels.sum(axis=0) == 0).all()
    pairs = np.stack([levels[:, i] * levels[:, j] for i in range(11) for j in range(i)], axis=1)
    assert (levels.T @ pairs == 0).all()
    assert len({tuple(row) for row in levels}) == 24


def test_an_effect_is_found_and_the_others_are_not(screening):
    levels, random = screening.design(), np.random.default_rng(1)
    # A task's scale means nothing; nor does an interaction, which the folding takes out.
    relative = 1 + 0.2 * levels[:, 5] + 0.02 * levels[:, 1] * levels[:, 2]
    scores = np.stack([scale * relative * random.normal(1, 0.03, 24) for scale in (10, 3000)], axis=1)
    scores[3, 1] = np.nan
    found = screening.effects(scores)
    assert found[5] == pytest.approx([0.4, 0.4, 0.4], abs=0.1) and found[5, 1] > 0.3
    others = np.delete(found, 5, axis=0)
    # The great effect is not in the intervals of the small ones.
    assert (abs(others) < 0.1).all() and (others[:, 1] < others[:, 0]).all() and (others[:, 0] < others[:, 2]).all()


def test_intervals_of_effects_hold_what_they_are_about(screening):
    random = np.random.default_rng(0)
    found = np.array([screening.effects(random.normal(10, 1, (24, 1))) for _ in range(100)])
    assert 0.92 <= ((found[..., 1] <= 0) & (0 <= found[..., 2])).mean() <= 0.98


def test_few_runs_have_no_effects_yet(screening):
    scores = np.full((24, 3), np.nan)
    scores[:12] = 1.0
    assert np.isnan(screening.effects(scores)).all()


def test_settings_of_the_levels(screening):
    low, high = screening.settings([-1] * 11), screening.settings([1] * 11)
    assert low == screening.BASE | {"policy_kwargs": "dict(net_arch={'pi': [64, 64], 'vf': [64, 64]})"}
    assert high["policy_kwargs"] == (
        "dict(net_arch={'pi': [256, 256], 'vf': [256, 256]}, log_std_init=-1, activation_fn=nn.ReLU)"
    )
    assert high["recompute_advantages"] is True and "recompute_advantages" not in low
    assert all(each["n_envs"] * each["n_steps"] == 2048 for each in (low, high))
