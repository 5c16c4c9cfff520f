"""Tables of steps to a goal: ``benchmarks/report/exploration.py``."""

import pytest
from report import exploration
from report.scores import Result


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
def test_runs_that_never_arrived_count_as_the_whole_budget(n_never, cell):
    scores = [10_000.0] * (10 - n_never) + [float("inf")] * n_never
    found = exploration.reached(scores, 30_000)
    assert found.startswith(cell) and (n_never < 10 or found == cell)


@pytest.mark.parametrize(
    "kind, name, scores, cell",
    [
        ("classic", "CartPole-v1", [10_000.0] * 5, "5 of 5; 10k [10, 10]"),
        ("minatar", "freeway", [2.0, 3.0, 4.0], "2.0, 3.0, 4.0"),
    ],
)
def test_tables_have_lines_of_tasks_and_columns_of_explorations(kind, name, scores, cell):
    found = [Result(name, "gSDE per rollout", seed, 1, 1.0, score) for seed, score in enumerate(scores)]
    header, _, *lines = exploration.table(kind, found)
    assert header == f"|  | {' | '.join(exploration.EXPLORATIONS)} |" and len(lines) == len(exploration.TASKS[kind])
    (line,) = (line for line in lines if line.startswith(f"| {name} |"))
    assert line.strip("|").split("|")[2].strip() == cell and line.count(cell) == 1


def test_the_picture_shows_the_part_of_runs_that_arrived(tmp_path):
    scores = {"DeepSea 10, plain": [1.0, 2.0], "DeepSea 20, plain": [1.0, float("inf")], "DeepSea 10, random": [3.0]}
    found = [
        Result(task, name, seed, 1, 1.0, score)
        for task, each in scores.items()
        for seed, score in enumerate(each)
        for name in exploration.EXPLORATIONS
    ]
    assert exploration.arrived(found, "plain") == {10: 1.0, 20: 0.5}
    assert exploration.arrived(found, "random") == {10: 1.0}
    exploration.draw(found, tmp_path / "deep_sea.svg")
    text = (tmp_path / "deep_sea.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in exploration.EXPLORATIONS)
