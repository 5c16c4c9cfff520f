"""Contenders of the MuJoCo campaign beside each other."""

import pytest


@pytest.fixture
def script(import_script):
    return import_script("results_mujoco")


def result(arm, task, score, curve=(1.0, None, 2.0)):
    steps = [20_000, 40_000, 60_000]
    kinds = {name: {"mean": score} for name in ("last", "deterministic", "stochastic")}
    return {"arm": arm, "task": task, "cpu_seconds": 60.0, "curve": {"steps": steps, "return": list(curve)}, **kinds}


@pytest.fixture
def results(script):
    found = [result("sb3-defaults", task, score) for task in script.TASKS for score in (100.0, 200.0, 300.0)]
    found += [result("trpo", task, score) for task in script.TASKS for score in (400.0, 300.0, 200.0)]
    return [*found, result("screen-00", "Ant-v5", 1e9)]


def test_comparison_says_how_much_and_how_probable(script, results):
    assert list(script.grouped(results)) == ["sb3-defaults", "trpo"]
    (line,) = script.comparison(results)[2:]
    # In units of 200, the middle of 4, 1.5 and 1; 400 is above all three, 300 and 200 above two or one and a half.
    assert line.startswith("| TRPO (sb3-contrib) | 6 | 18 | 1.50 [") and "| 78% [" in line
    # A contender with other tasks is compared on those that it has, if there are enough runs.
    fewer = [each for each in results if each["arm"] != "trpo" or each["task"] == "Ant-v5"]
    assert script.comparison(fewer)[2].startswith("| TRPO (sb3-contrib) | 1 | 3 |")
    assert len(script.comparison(fewer[:-2])) == 2


def test_pictures_show_every_contender_and_are_the_same_each_time(script, results, tmp_path):
    paths = tmp_path / "curves.svg", tmp_path / "profile.svg"
    drawn = []
    for _ in range(2):
        script.draw_curves(script.grouped(results), paths[0])
        script.draw_profile(script.grouped(results), paths[1])
        drawn.append([path.read_text() for path in paths])
    assert drawn[0] == drawn[1]
    assert all("<!-- TRPO (sb3-contrib) -->" in text and "<!-- SB3's settings -->" in text for text in drawn[0])


def test_goals_are_reached_or_not(script):
    found = [result("mujoco", "Swimmer-v5", score) for score in (349.0, 351.0, 353.0)]
    found += [result("mujoco", "Ant-v5", 100.0)] * 3 + [result("mujoco", "Hopper-v5", 9999.0)]
    found[0]["last"] = {"mean": 340.0}
    rows = script.goals(found)[2:]
    # Of few runs there is no row.
    assert [row.split(" | ")[0] for row in rows] == ["| Ant-v5", "| Swimmer-v5"]
    assert rows[0].endswith("| not reached |") and rows[1].endswith("| 20 deterministic episodes |")
