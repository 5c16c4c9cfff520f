"""Recommended settings on unseen tasks: ``benchmarks/report/recommended.py``."""

import numpy as np
from report import recommended


def test_a_score_is_0_at_random_and_1_at_the_best_tuned_settings():
    found = {"recommended": {"a": [10.0, 30.0]}, "tuned": {"a": [20.0] * 4}, "tuned-rl_zoo3": {"a": [50.0] * 4}}
    np.testing.assert_allclose(recommended.scores(found, "recommended", "a", 10.0), [0.0, 0.5])
    # Without tuned settings, the best of what was compared.
    found = {"recommended": {"a": [10.0, 30.0]}, "untuned": {"a": [12.0]}}
    np.testing.assert_allclose(recommended.scores(found, "recommended", "a", 10.0), [0.0, 2.0])


def test_tables_have_what_was_run(monkeypatch):
    tasks = recommended.tasks_of("unseen")[:2]
    monkeypatch.setattr(recommended, "tasks_of", lambda stage: tasks)
    lines = [{"task": task, "return": 0.0} for task in tasks]
    monkeypatch.setattr(recommended, "read_lines", lambda path: lines)
    means = {"recommended": 2.0, "untuned": 1.0, "untuned-normalized": 1.0, "tuned": 2.0}
    runs = [
        {"arm": arm, "task": task, "deterministic": {"mean": mean}, "stochastic": {"mean": -1.0}}
        for arm, mean in means.items()
        for task in tasks
        for _ in range(5)
    ]
    header, _, *rows = recommended.over_tasks(runs)
    assert rows[0].startswith("| recommended settings | 2 | 10 | 1.00 [1.00, 1.00] | 100% ")
    assert rows[1].startswith("| SB3's defaults | 2 | 10 | 0.50 [0.50, 0.50] |  |")
    assert recommended.by_task(runs[:5])[2] == f"| {tasks[0]} | 0 | 2.0 [2.0, 2.0] |  |  |  |  |  |"
    assert recommended.over_tasks(runs[:5]) == []


def test_episodes_of_minigrid_are_sampled():
    assert recommended.measure("MiniGrid-Unlock-v0") == "stochastic"
    assert recommended.measure("Hopper-v5") == "deterministic"
