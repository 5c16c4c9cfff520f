"""The grids of ``scripts/learning_exploration.py`` are what their docstring says."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("learning_exploration")


def dive(env, goes_right):
    """The return of an episode, and its length.

    :param goes_right: whether to go right, in each step
    """
    env.reset(seed=0)
    total = 0.0
    for t, right in enumerate(goes_right, 1):
        action = env.right[env.row, env.column] if right else 1 - env.right[env.row, env.column]
        _, reward, terminated, truncated, _ = env.step(action)
        total += reward
        assert not truncated
        if terminated:
            return total, t
    raise AssertionError("it has not ended")


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.filterwarnings("ignore:.*")
def test_gymnasiums_rules_are_kept(script, seed):
    check_env(script.DeepSea(5, seed), skip_render_check=True)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_treasure_is_found_by_going_right_in_every_step(script, seed):
    env = script.DeepSea(6, seed)
    assert dive(env, [True] * 6) == (pytest.approx(0.99), 6)
    for wrong in range(6):
        total, length = dive(env, [t != wrong for t in range(6)])
        assert (total, length) == (pytest.approx(-5 * 0.01 / 6), 6)


def test_in_random_grids_a_coin_has_decided(script):
    first, second = script.DeepSea(40, 1).right, script.DeepSea(40, 2).right
    assert 0.4 < first.mean() < 0.6 and np.any(first != second)
    assert np.all(script.DeepSea(40).right == 1)


def test_training_ends_when_the_goal_is_reached(script, monkeypatch):
    easy = script.Task(script.TASKS["deep-sea"]["DeepSea 10, plain"].make, 20_480, -1.0)
    monkeypatch.setitem(script.TASKS["deep-sea"], "easy", easy)
    result = script.learn_task("deep-sea", "easy", "white", 0)
    assert result.score == 2048
    # Asked after the first step of the next rollout.
    assert 2048 < result.steps <= 2048 + script.N_ENVS


def test_runs_that_never_arrived_count_as_the_whole_budget(script):
    cell = script.reached([10_000.0, 10_000.0, float("inf"), float("inf")], 30_000)
    assert cell.startswith("2 of 4; ≥ 20k")
