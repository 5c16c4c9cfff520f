"""The grids of ``benchmarks/learning_exploration.py`` are what their docstring says."""

import learning_exploration
import pytest
from gymnasium.utils.env_checker import check_env


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
@pytest.mark.filterwarnings("error")
def test_gymnasiums_rules_are_kept(seed):
    check_env(learning_exploration.DeepSea(5, seed), skip_render_check=True)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_treasure_is_found_by_going_right_in_every_step(seed):
    env = learning_exploration.DeepSea(6, seed)
    assert dive(env, [True] * 6) == (pytest.approx(0.99), 6)
    for wrong in range(6):
        total, length = dive(env, [t != wrong for t in range(6)])
        assert (total, length) == (pytest.approx(-5 * 0.01 / 6), 6)


def test_a_goal_is_that_of_all_episodes_of_three_rollouts():
    ends = learning_exploration.EndsAtGoal(0.5)
    ends.locals, reached = {}, []
    for t, returns in enumerate([[1.0], [1.0, 0.0, 0.0], [0.0], [1.0], [1.0]]):
        ends._on_rollout_start()
        for each in returns:
            ends.locals["infos"] = [{}, {"episode": {"r": each}}]
            ends._on_step()
        ends.num_timesteps = 10 * (t + 1)
        ends._on_rollout_end()
        reached.append(ends.steps)
    # The means of what counts are 0.4, 0.4 and 2/3.
    assert reached == [float("inf")] * 4 + [50] and not ends._on_step()
