"""What settings change: ``benchmarks/report/search.py``."""

import itertools

from report import search


def test_effects_are_those_of_each_setting_alone():
    runs = [
        {
            "task": task,
            "return": low + (high - low) * (0.5 + 0.3 * (gamma == 0.995) - 0.2 * (width == 256)),
            "settings": {
                "gamma": gamma,
                "learning_rate": 3e-4,
                "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [width, width]}} if width == 256 else {},
            },
        }
        for task, (low, high) in search.SCALE.items()
        for gamma, width in itertools.product((0.99, 0.995), (64, 256))
        for _ in range(20)
    ]
    n_changed = str(len(runs) // 2)
    _, _, *rows = search.effects([*runs, {"task": "CartPole-v1", "return": 500.0, "settings": {}}])
    assert [row.split(" | ") for row in rows] == [
        ["| `gamma`", "0.995", "0.99", n_changed, "+0.30 ± 0.00 |"],
        ["| `net_arch`", "256 units in the critic", "64 units", n_changed, "-0.20 ± 0.00 |"],
    ]
