"""What the long runs reached: ``benchmarks/report/returns.py``."""

import json

import pytest


@pytest.fixture
def script(import_script):
    return import_script("report.returns")


def result(arm, task, score, curve=(1.0, None, 2.0)):
    steps = [20_000, 40_000, 60_000]
    kinds = {name: {"mean": score} for name in ("last", "deterministic", "stochastic")}
    return {
        "arm": arm,
        "task": task,
        "steps": 60_000,
        "cpu_seconds": 30.0,
        "settings": {"of": arm},
        "curve": {"steps": steps, "return": list(curve)},
        **kinds,
    }


@pytest.fixture
def results(script):
    found = [result("sb3-defaults", task, score) for task in script.TASKS for score in (100.0, 200.0, 300.0)]
    found += [result("trpo", task, score) for task in script.TASKS for score in (400.0, 300.0, 200.0)]
    return [*found, result("screen-00", "Ant-v5", 1e9)]


def test_comparison_says_how_much_and_how_probable(script, results):
    assert list(script.grouped(results)) == ["sb3-defaults", "trpo"]
    (line,) = script.comparison(results)[2:]
    # In units of 200: the middle of 2, 1.5 and 1; 400 is above all three, 300 and 200 above two or one and a half.
    assert line.startswith("| TRPO (sb3-contrib) | 6 of 6 | 18 | 1.50 [") and "| 78% [" in line
    # A contender with other tasks is compared on those that it has, if there are enough runs.
    fewer = [each for each in results if each["arm"] != "trpo" or each["task"] == "Ant-v5"]
    (line,) = script.comparison(fewer)[2:]
    assert line.startswith("| TRPO (sb3-contrib) | 1 of 6 | 3 |")
    of_trpo = [each for each in fewer if each["arm"] == "trpo"]
    assert len(script.comparison([each for each in fewer if each not in of_trpo[1:]])) == 2


def test_settings_of_the_reference_are_not_compared_with_it(script, results):
    for each in results:
        if (each["arm"], each["task"]) == ("trpo", "Ant-v5"):
            each["settings"] = {"of": "sb3-defaults"}
    (line,) = script.comparison(results)[2:]
    assert line.startswith("| TRPO (sb3-contrib) | 5 of 6 | 15 |")


def test_shared_settings_are_not_those_of_single_tasks(script, import_script, results, monkeypatch):
    overridden = "Hopper-v5", "Humanoid-v5", "Swimmer-v5"
    monkeypatch.setattr(import_script("report.plan"), "OVERRIDES", dict.fromkeys(overridden, ["mujoco"]))
    for task in script.TASKS:
        results += [result("mujoco", task, 400.0)] * 2
    results += [result("mujoco-shared", task, 200.0) for task in overridden for _ in range(2)]
    own, shared = script.comparison(results)[-2:]
    assert own.startswith("| ppo_plus's settings | 6 of 6 | 12 | 2.00 [")
    assert shared.startswith("| ppo_plus's shared settings | 6 of 6 | 12 | 1.50 [")


OWN = ["Ant-v5", "Swimmer-v5"]


def test_each_task_is_compared_by_shared_settings_and_its_own(script, import_script, results, monkeypatch):
    monkeypatch.setattr(import_script("report.plan"), "OVERRIDES", dict.fromkeys(OWN, ["mujoco"]))
    assert len(script.each_task(results)) == 2
    results += [result("sb3-defaults", task, 200.0) for task in script.TASKS for _ in range(2)]
    for task in ("Hopper-v5", *OWN):
        results += [result("mujoco", task, 400.0)] * 5
    for task in OWN:
        results += [result("mujoco-shared", task, 300.0)] * 5
    hopper, shared, own, shared_of_held_out, own_of_held_out = script.each_task(results)[2:]
    assert hopper.startswith("| Hopper-v5 | yes | ppo_plus's shared settings | 2.00 [")
    assert shared.startswith("| Ant-v5 | no | ppo_plus's shared settings | 1.50 [")
    assert own.startswith("| Ant-v5 | no | ppo_plus's settings | 2.00 [")
    assert shared_of_held_out.startswith("| Swimmer-v5 | yes | ppo_plus's shared settings | 1.50 [")
    # They were looked for on the task itself.
    assert own_of_held_out.startswith("| Swimmer-v5 | no | ppo_plus's settings | 2.00 [")


def test_gains_of_a_task_are_over_the_shared_settings(script):
    found = [result("mujoco-shared", "Ant-v5", score) for score in (100.0, 200.0, 300.0)]
    found += [result("mujoco", "Ant-v5", score) for score in (400.0, 600.0)]
    found += [result("mujoco", "Hopper-v5", 1.0), result("mujoco", "Swimmer-v5", 1.0)]
    last, deterministic = script.gains(found)[2:]
    start = "| 2 and 3 | 400.0, 600.0 | 100.0, 200.0, 300.0 | 2.50 ["
    assert last.startswith(f"| Ant-v5 | ppo_plus's settings | last 100 training episodes {start}")
    assert deterministic.startswith(f"| Ant-v5 | ppo_plus's settings | 20 deterministic episodes {start}")


def test_the_recipe_is_compared_with_the_entry(script, tmp_path):
    scores = {}
    for task in script.TASKS:
        scores[script.RECIPE_ARMS[task], task] = 100.0, 400.0
        entry = "mujoco-shared" if task in ("Humanoid-v5", "Hopper-v5") else "mujoco"
        scores[entry, task] = 100.0, 200.0, 300.0
    scores["parallel", "Swimmer-v5"] = scores["own-Humanoid-v5-01", "Humanoid-v5"] = 1e9, 1e9
    left, found = {pair: list(values) for pair, values in scores.items()}, []
    for job in script.in_order(script.STAGES[name] for name in ("table", "parallel-table", "overrides")):
        if left.get((job.arm, job.task)):
            found.append(result(job.arm, job.task, left[job.arm, job.task].pop(0)) | {"seed": job.seed})
    file = tmp_path / "returns.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in found))
    runs = script.recipe_runs(file)
    swimmer = next(
        line for line in script.recipe(runs) if line.startswith("| Swimmer-v5 | the recipe | 20 deterministic")
    )
    assert "| 2 and 3 | 100.0, 400.0 | 100.0, 200.0, 300.0 | 1.25 [" in swimmer
    # One run ties with the entry's lowest, which counts half, and one is above all three: (1/6 + 1) / 2.
    last = script.recipe(runs)[-1]
    assert last.startswith("| the recipe | 6 of 6 | 12 | 1.25 [") and "| 58% [" in last
    for over_seconds, end in ((False, "M"), (True, " s")):
        script.draw_curves(runs, tmp_path / "curves.svg", over_seconds)
        drawn = (tmp_path / "curves.svg").read_text()
        assert "<!-- the recipe -->" in drawn and f"{end} -->" in drawn


def test_every_contender_is_planned_to_be_compared_on_all_tasks(script, import_script):
    stages = import_script("report.plan").STAGES
    runs = {}
    for job in import_script("report.plan").in_order(stages[name] for name in ("baselines", "table")):
        runs.setdefault(job.arm, {}).setdefault(job.task, []).append(job)
    assert {arm: script.enough(runs, arm) for arm in script.CONTENDERS} == dict.fromkeys(
        script.CONTENDERS, list(script.TASKS)
    )


def test_every_entry_with_a_goal_has_ten_runs_or_three_long_ones(script, import_script):
    stages, n_runs = import_script("report.plan").STAGES, {}
    for job in import_script("report.plan").in_order(stages[name] for name in ("table", "parallel-table", "entries")):
        for arm in {job.arm} | ({"recipe"} if job.arm == script.RECIPE_ARMS.get(job.task) else set()):
            if arm in script.GOALS:
                n_runs[arm, job.task] = n_runs.get((arm, job.task), 0) + 1
    assert n_runs == {
        (arm, task): 3 if task == "BipedalWalker-v3" else 10 for arm, goals in script.GOALS.items() for task in goals
    }


def test_pictures_show_every_contender_and_are_reproducible(script, results, tmp_path):
    paths = tmp_path / "curves.svg", tmp_path / "profile.svg"
    script.draw_curves(script.grouped(results), paths[0])
    script.draw_profile(script.grouped(results), paths[1])
    drawn = [path.read_text() for path in paths]
    assert all("<!-- TRPO (sb3-contrib) -->" in text and "<!-- SB3's settings -->" in text for text in drawn)
    script.draw_profile(script.grouped(results), paths[1])
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
def test_goals_are_reached_or_not(script, scores, cells):
    (row,) = script.goals([result("mujoco", "Swimmer-v5", score) for score in scores], "mujoco")[2:]
    assert row.startswith("| Swimmer-v5 | 60,000 |") and row.endswith(cells)
    assert len(script.goals([result("sb3-defaults", "Swimmer-v5", 1.0)], "mujoco")) == 2


def test_table_puts_tasks_together(script):
    results = [
        {"task": task, "arm": arm, **{name: {"mean": 1.0} for name in script.MEASURES.values()}}
        for arm, task in [("a", "x"), ("a", "y"), ("b", "x"), *[("a", "x")] * 4]
    ]
    lines = script.table(results)
    assert lines[0].startswith("| task | contender | seeds | last 100 training episodes |")
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        ["| x", "a", "5"],
        ["| x", "b", "1"],
        ["| y", "a", "1"],
    ]
    assert "1.0 [1.0, 1.0]" in lines[2] and "[" not in lines[3]


def test_effects_are_of_each_task_and_of_all(script):
    """Runs with the first setting, whatever else, reach 3 where the others reach 1: it adds as much as the mean is."""
    name, columns = "finalists", 5
    screen = script.SCREENS[name]
    high = dict(zip(screen.arms(name), screen.design.levels[:, 0] > 0, strict=True))
    results = [
        {"arm": arm, "task": task, "seed": screen.seed, **dict.fromkeys(("last", "deterministic"), {"mean": score})}
        for task in script.SCREENED
        for arm, score in zip(high, (3.0 if each else 1.0 for each in high.values()), strict=True)
    ]
    header, _, means, first, *others, _, n_runs = script.effects_table(results, name)
    assert header.count("|") == columns + 2 and f"{len(results)} of {len(results)} runs" == n_runs
    assert means.count(" 2 |") == len(script.SCREENED)
    assert first.count("+100% [") == columns and all(f"{row}".count("+100%") == 0 for row in others)
    assert script.effects_table([], name)[-1] == f"0 of {len(results)} runs"


def test_effects_of_several_seeds(script):
    """Each seed repeats all arms: here another level of all scores, and the same effects."""
    screen = script.SCREENS["near"]
    high = dict(zip(screen.arms("near"), screen.design.levels[:, -1] > 0, strict=True))
    results = [
        {"arm": arm, "task": task, "seed": seed, **dict.fromkeys(("last", "deterministic"), {"mean": score})}
        for task in script.SCREENED
        for seed in screen.seeds
        for arm, score in ((arm, (3.0 if each else 1.0) + seed - 33.5) for arm, each in high.items())
    ]
    *_, last, _, n_runs = script.effects_table(results, "near")
    # It adds 2 to scores whose mean is 4 / 3.
    assert last.count("+150% [") == 5 and n_runs == "36 of 36 runs"
    # One seed is enough.
    one = [result for result in results if result["seed"] == 33]
    *_, n_runs = script.effects_table(one, "near")
    assert n_runs == "18 of 36 runs"
