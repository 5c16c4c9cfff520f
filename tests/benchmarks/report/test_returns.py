"""What the long runs reached: ``benchmarks/report/returns.py``."""

import pytest
from report import returns


def result(arm, task, score, curve=(1.0, None, 2.0)):
    steps = [20_000, 40_000, 60_000]
    kinds = {name: {"mean": score} for name in ("last", "deterministic", "stochastic")}
    curves = {"steps": steps, "return": list(curve)}
    return {"arm": arm, "task": task, "steps": 60_000, "settings": {"of": arm}, "curve": curves, **kinds}


@pytest.fixture
def results():
    found = [result("sb3-defaults", task, score) for task in returns.TASKS for score in (100.0, 200.0, 300.0)]
    found += [result("trpo", task, score) for task in returns.TASKS for score in (400.0, 300.0, 200.0)]
    return [*found, result("other", "Ant-v5", 1e9)]


def test_comparison_says_how_much_and_how_probable(results):
    assert list(returns.grouped(results)) == ["sb3-defaults", "trpo"]
    (line,) = returns.comparison(results)[2:]
    # In units of 200: the middle of 2, 1.5 and 1; 400 is above all three, 300 and 200 above two or one and a half.
    assert line.startswith("| TRPO (sb3-contrib) | 6 of 6 | 18 | 1.50 [") and "| 78% [" in line
    # A contender with other tasks is compared on those that it has, if there are enough runs.
    fewer = [each for each in results if each["arm"] != "trpo" or each["task"] == "Ant-v5"]
    (line,) = returns.comparison(fewer)[2:]
    assert line.startswith("| TRPO (sb3-contrib) | 1 of 6 | 3 |")
    of_trpo = [each for each in fewer if each["arm"] == "trpo"]
    assert len(returns.comparison([each for each in fewer if each not in of_trpo[1:]])) == 2


def test_shared_settings_are_not_those_of_single_tasks(results):
    results += [result("mujoco", task, 400.0) for task in returns.TASKS for _ in range(2)]
    overridden = "Ant-v5", "Hopper-v5", "Humanoid-v5", "Swimmer-v5"
    results += [result("mujoco-shared", task, 200.0) for task in overridden for _ in range(2)]
    own, shared, searched, elsewhere = returns.comparison(results)[-4:]
    assert own.startswith("| ppo_plus's settings | 6 of 6 | 12 | 2.00 [")
    # Two tasks have 400, four 200, whose middle is closer to 200.
    assert shared.startswith("| ppo_plus's shared settings | 6 of 6 | 12 | 1.17 [")
    assert searched.startswith("| ppo_plus's shared settings, where they were searched | 3 of 6 | 6 | 1.75 [")
    assert elsewhere.startswith("| ppo_plus's shared settings, elsewhere | 3 of 6 | 6 | 1.00 [")


@pytest.mark.slow
def test_pictures_show_every_contender_and_are_reproducible(results, tmp_path):
    paths = tmp_path / "curves.svg", tmp_path / "profile.svg"
    returns.draw_curves(returns.grouped(results), paths[0])
    returns.draw_profile(returns.grouped(results), paths[1])
    drawn = [path.read_text() for path in paths]
    assert all("<!-- TRPO (sb3-contrib) -->" in text and "<!-- SB3's settings -->" in text for text in drawn)
    returns.draw_profile(returns.grouped(results), paths[1])
    assert paths[1].read_text() == drawn[1]


@pytest.mark.parametrize(
    "scores, cells",
    [
        ([356.0] * 10, "10 | 356.0 [356.0, 356.0] | 356.0 [356.0, 356.0] | 355 | yes | 10 of 10 |"),
        # The middle half is what counts.
        ([300.0, 300.0, *[355.0] * 7, 400.0], "355 | yes | 8 of 10 |"),
        ([*[354.0] * 8, 999.0, 999.0], "355 | no | 2 of 10 |"),
        ([354.0, 400.0], "2 | 354.0, 400.0 | 354.0, 400.0 | 355 | yes | 1 of 2 |"),
    ],
)
def test_goals_are_reached_or_not(scores, cells):
    (row,) = returns.goals([result("mujoco", "Swimmer-v5", score) for score in scores], "mujoco")[2:]
    assert row.startswith("| Swimmer-v5 | 60,000 |") and row.endswith(cells)
    assert len(returns.goals([result("sb3-defaults", "Swimmer-v5", 1.0)], "mujoco")) == 2


def test_table_puts_tasks_together():
    found = [result(arm, task, 1.0) for arm, task in [("a", "x"), ("a", "y"), ("b", "x"), *[("a", "x")] * 4]]
    lines = returns.table(found)
    assert lines[0].startswith("| task | settings | seeds | last 100 training episodes |")
    assert [line.split(" | ")[:3] for line in lines[2:]] == [["| x", "a", "5"], ["| x", "b", "1"], ["| y", "a", "1"]]
    assert "1.0 [1.0, 1.0]" in lines[2] and "[" not in lines[3]
