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


def test_training_ends_when_the_goal_is_reached(script, monkeypatch):
    easy = script.Task(script.TASKS["deep-sea"]["DeepSea 10, plain"].make, 20_480, -1.0)
    monkeypatch.setitem(script.TASKS["deep-sea"], "easy", easy)
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


@pytest.mark.parametrize(
    "n_never, cell",
    [
        (0, "10 of 10; 10k [10, 10]"),
        (2, "8 of 10; 10k [10, ≥ "),
        (3, "7 of 10; ≥ 13k [10, ≥ "),
        (8, "2 of 10; ≥ 30k [≥ 2"),
        (10, "0 of 10"),
    ],
)
def test_runs_that_never_arrived_count_as_the_whole_budget(script, n_never, cell):
    scores = [10_000.0] * (10 - n_never) + [float("inf")] * n_never
    found = script.reached(scores, 30_000)
    assert found.startswith(cell) and (n_never < 10 or found == cell)


def test_an_arrival_with_the_last_rollout_counts(script):
    """It ends a little later than the budget, since rollouts are whole."""
    assert script.reached([51_200.0] * 5, 50_000) == "5 of 5; 50k [50, 50]"


def test_of_few_runs_each_is_shown(script):
    assert script.reached([51_200.0, float("inf")], 60_000) == "51k, never"


@pytest.mark.parametrize(
    "kind, name, scores, cell",
    [
        ("classic", "CartPole-v1", [10_000.0] * 5, "5 of 5; 10k [10, 10]"),
        ("minatar", "freeway", [2.0, 3.0, 4.0], "2.0, 3.0, 4.0"),
    ],
)
def test_a_table_has_a_line_for_each_task_and_a_column_for_each_exploration(script, kind, name, scores, cell):
    found = [script.Result(name, "gSDE per rollout", seed, 1, 1.0, score) for seed, score in enumerate(scores)]
    header, _, *lines = script.table(kind, found)
    assert header == f"|  | {' | '.join(script.EXPLORATIONS)} |" and len(lines) == len(script.TASKS[kind])
    (line,) = (line for line in lines if line.startswith(f"| {name} |"))
    assert line.strip("|").split("|")[2].strip() == cell and line.count(cell) == 1


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


def test_the_picture_shows_the_part_of_runs_that_arrived(script, tmp_path):
    scores = {"DeepSea 10, plain": [1.0, 2.0], "DeepSea 20, plain": [1.0, float("inf")], "DeepSea 10, random": [3.0]}
    found = [
        script.Result(task, exploration, seed, 1, 1.0, score)
        for task, each in scores.items()
        for seed, score in enumerate(each)
        for exploration in script.EXPLORATIONS
    ]
    assert script.arrived(found, "plain") == {10: 1.0, 20: 0.5} and script.arrived(found, "random") == {10: 1.0}
    script.draw(found, tmp_path)
    text = (tmp_path / "deep_sea.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in script.EXPLORATIONS)
