"""The designs that find out which settings matter."""

from dataclasses import replace

import numpy as np
import pytest


@pytest.fixture
def screening(import_script):
    return import_script("report.screening")


@pytest.fixture(params=["MANY", "FEW", "AGAIN"])
def design(screening, request):
    return getattr(screening, request.param)


def test_designs_are_those_that_the_page_names(screening):
    designs = screening.MANY, screening.FEW, screening.AGAIN, screening.LAST, screening.KL
    assert [design.levels.shape for design in designs] == [(24, 11), (16, 8), (16, 8), (8, 4), (8, 4)]


@pytest.mark.parametrize("name", ["MANY", "FEW", "AGAIN", "LAST", "KL"])
def test_effects_do_not_mix(screening, name):
    """Columns are orthogonal to each other, to the mean, and to the products of any two."""
    design = getattr(screening, name)
    levels = design.levels
    runs, factors = levels.shape
    assert factors == len(design.factors) and set(levels.ravel()) == {-1, 1}
    assert (levels.T @ levels == runs * np.eye(factors)).all() and (levels.sum(axis=0) == 0).all()
    pairs = np.stack([levels[:, i] * levels[:, j] for i in range(factors) for j in range(i)], axis=1)
    assert (levels.T @ pairs == 0).all()
    assert len({tuple(row) for row in levels}) == runs


def test_an_effect_is_found_and_the_others_are_not(design):
    levels, random = design.levels, np.random.default_rng(1)
    # A task's scale means nothing; nor does an interaction, which the folding takes out.
    relative = 1 + 0.2 * levels[:, 5] + 0.1 * levels[:, 1] * levels[:, 2]
    scores = relative[:, None] * [10, 3000] * random.normal(1, 0.02, (len(levels), 2))
    found = design.effects(scores)
    assert found[5, 0] == pytest.approx(0.4, abs=0.05) and found[5, 1] > 0.2
    others = np.delete(found, 5, axis=0)
    assert (abs(others[:, 0]) < 0.05).all() and (others[:, 1] < 0).all() and (others[:, 2] > 0).all()
    # Of the great effect nothing is in the intervals of the others: only of the interaction, and of chance.
    assert (abs(others) < 0.2).all()


def test_an_effect_that_tasks_do_not_share_is_their_mean(design):
    """Also without a run that one of them lacks."""
    effects = np.array([0.3, -0.1])
    scores = (1 + design.levels[:, [2]] * effects / 2) * [7, 50]
    assert design.effects(scores)[2] == pytest.approx(0.1)
    scores[3, 1] = np.nan
    assert design.effects(scores)[2, 0] == pytest.approx(0.1, abs=0.02)
    assert design.effects(scores[:, [0]])[2, 0] == pytest.approx(0.3)


def test_intervals_of_effects_contain_the_true_effect(design):
    random = np.random.default_rng(0)
    found = np.array([design.effects(random.normal(10, 1, (len(design.levels), 1))) for _ in range(200)])
    assert 0.93 <= ((found[..., 1] <= 0) & (0 <= found[..., 2])).mean() <= 0.97


def test_few_runs_have_no_effects_yet(design):
    scores = np.full((len(design.levels), 3), np.nan)
    assert np.isnan(design.effects(scores)).all()
    scores[: len(scores) // 2] = 1.0
    assert np.isnan(design.effects(scores)).all()
    # Enough runs, in all of which one of the settings is low.
    scores[:] = np.where(design.levels[:, [3]] < 0, 1.0, np.nan)
    doubled = replace(design, levels=np.vstack([design.levels] * 3))
    assert np.isnan(doubled.effects(np.vstack([scores] * 3))).all()


def test_effects_need_positive_scores(design):
    with pytest.raises(ValueError, match="scores must be positive on average"):
        design.effects(np.full((len(design.levels), 1), -1.0))


def test_settings_of_the_levels(screening):
    low, high = (screening.MANY.settings([level] * 11) for level in (-1, 1))
    assert low == {
        "normalize": True,
        "n_envs": 4,
        "n_steps": 512,
        "policy_kwargs": "dict(net_arch={'pi': [64, 64], 'vf': [64, 64]})",
    }
    assert high["policy_kwargs"] == (
        "dict(net_arch={'pi': [256, 256], 'vf': [256, 256]}, log_std_init=-1, activation_fn=nn.ReLU)"
    )
    assert high["recompute_advantages"] is True and "recompute_advantages" not in low
    for settings in (low, high, screening.FEW.settings([-1] * 8)):
        assert settings["n_envs"] * settings["n_steps"] == 2048


def test_names_of_runs(screening):
    assert screening.AGAIN.name([1, 1, *[-1] * 6]) == "initial std 0.17, recomputed advantages"
    assert screening.AGAIN.name([-1] * 8) == "base"


def test_the_screening_of_the_recipe_starts_with_it(screening):
    design = screening.PARALLEL
    first, *others = (design.settings(levels) for levels in design.levels)
    assert design.name(design.levels[0]) == "base" and (first["n_envs"], first["n_steps"]) == (64, 64)
    for settings in others:
        assert settings["n_envs"] * settings["n_steps"] in (4096, 8192) and "rollout" not in settings
    assert {settings["n_envs"] for settings in others} == {16, 32, 64}
    assert {settings["batch_size"] for settings in others} == {256, 512, 1024}
    # Levels that exclude each other are never high together, and effects are those of the settings.
    assert not (design.levels[:, :4].reshape(-1, 2, 2) > 0).all(axis=2).any()
    effects = np.linspace(-0.4, 0.5, len(design.factors))
    scores = 1 + (design.levels > 0) @ effects
    assert design.effects(scores[:, None])[:, 0] * scores.mean() == pytest.approx(effects)
