"""Tables of steps to a goal: ``benchmarks/report/exploration.py``."""

import pytest


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("report.exploration")


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


def test_few_runs_are_shown_one_by_one(script):
    assert script.reached([51_200.0, float("inf")], 60_000) == "51k, never"


@pytest.mark.parametrize(
    "kind, name, scores, cell",
    [
        ("classic", "CartPole-v1", [10_000.0] * 5, "5 of 5; 10k [10, 10]"),
        ("minatar", "freeway", [2.0, 3.0, 4.0], "2.0, 3.0, 4.0"),
    ],
)
def test_tables_have_lines_of_tasks_and_columns_of_explorations(script, import_script, kind, name, scores, cell):
    found = [
        import_script("report.scores").Result(name, "gSDE per rollout", seed, 1, 1.0, score)
        for seed, score in enumerate(scores)
    ]
    header, _, *lines = script.table(kind, found)
    assert header == f"|  | {' | '.join(script.EXPLORATIONS)} |" and len(lines) == len(script.TASKS[kind])
    (line,) = (line for line in lines if line.startswith(f"| {name} |"))
    assert line.strip("|").split("|")[2].strip() == cell and line.count(cell) == 1


def test_the_picture_shows_the_part_of_runs_that_arrived(script, import_script, tmp_path):
    scores = {"DeepSea 10, plain": [1.0, 2.0], "DeepSea 20, plain": [1.0, float("inf")], "DeepSea 10, random": [3.0]}
    found = [
        import_script("report.scores").Result(task, exploration, seed, 1, 1.0, score)
        for task, each in scores.items()
        for seed, score in enumerate(each)
        for exploration in script.EXPLORATIONS
    ]
    assert script.arrived(found, "plain") == {10: 1.0, 20: 0.5} and script.arrived(found, "random") == {10: 1.0}
    script.draw(found, tmp_path / "deep_sea.svg")
    text = (tmp_path / "deep_sea.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in script.EXPLORATIONS)
