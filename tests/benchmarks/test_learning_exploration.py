"""The grids of ``benchmarks/learning_exploration.py`` are what their docstring says."""

from types import SimpleNamespace

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
@pytest.mark.filterwarnings("error")
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


def test_every_task_and_exploration_can_be_made(script):
    assert {name for tasks in script.TASKS.values() for name in tasks} == set(script.MAKERS)
    assert list(script.ARGUMENTS) == list(script.EXPLORATIONS)


def test_training_ends_when_the_goal_is_reached(script, monkeypatch):
    easy = script.TASKS["deep-sea"]["DeepSea 10, plain"]._replace(steps=20_480, goal=-1.0)
    monkeypatch.setitem(script.TASKS["deep-sea"], "easy", easy)
    monkeypatch.setitem(script.MAKERS, "easy", script.MAKERS["DeepSea 10, plain"])
    result = script.learn_task("deep-sea", "easy", "white", 0)
    assert result.score == 3 * 2048
    # Asked after the first step of the next rollout.
    assert result.score < result.steps <= result.score + script.N_ENVS


def test_a_goal_is_that_of_all_episodes_of_three_rollouts(script):
    ends = script.EndsAtGoal(0.5)
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


def test_games_end_when_they_do(script, monkeypatch):
    """MinAtar's own endings: no time limit of ours, which would be one more to bootstrap from."""

    class Game:
        def __init__(self, name):
            self.t, self.seeds, self.actions = 0, [], []

        minimal_action_set = staticmethod(lambda: [0, 3, 5])
        state_shape = staticmethod(lambda: (10, 10, 4))

        def seed(self, seed):
            self.seeds.append(seed)

        def reset(self):
            self.t = 0

        def state(self):
            return np.full((10, 10, 4), self.t % 2, bool)

        def act(self, action):
            self.t += 1
            self.actions.append(action)
            return 1, self.t == 3000

    monkeypatch.setattr(script, "import_module", lambda name: SimpleNamespace(Environment=Game))
    env = script.MinAtar("freeway")
    assert env.action_space.n == 3
    observation, _ = env.reset(seed=7)
    assert env.observation_space.contains(observation) and env.game.seeds == [7]
    steps = [env.step(np.int64(2)) for _ in range(3000)]
    assert [terminated for _, _, terminated, _, _ in steps] == [False] * 2999 + [True]
    assert not any(truncated for *_, truncated, _ in steps)
    assert set(env.game.actions) == {5} and env.observation_space.contains(steps[0][0])
