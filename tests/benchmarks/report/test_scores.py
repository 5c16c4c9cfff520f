"""What training runs reached: ``benchmarks/report/scores.py``."""

import math

import pytest
from report import scores


def test_no_speed_without_timings(tmp_path):
    path = tmp_path / "results.json"
    path.write_text('{"runs": [{"task": "task", "contender": "a", "seed": 0, "steps": 1000, "score": 2.5}]}')
    (result,) = scores.read(path)
    assert result.score == 2.5 and math.isnan(result.steps_per_second)


def test_rows_have_a_line_for_each_contender_in_order():
    results = [scores.Result("task", name, seed, 1000, 200.0, 2.5) for name in "ba" for seed in range(3)]
    lines = scores.rows(results, scores.COLUMNS | scores.SPEED)
    assert lines[0] == "| task | trained with | steps | returns | IQM [95 %] | steps/s |"
    assert lines[2:] == [f"| task | {name} | 1,000 | 2.50, 2.50, 2.50 | 2.50 | 200 |" for name in "ba"]


@pytest.mark.parametrize("n, interval", [(1, "2.50"), (4, "2.50"), (5, "2.50 [2.50, 2.50]")])
def test_few_runs_have_no_interval(n, interval):
    (row,) = scores.rows([scores.Result("task", "a", seed, 1_000, 200.0, 2.5) for seed in range(n)])[2:]
    assert row.endswith(f"| {interval} |")
    assert scores.score([2.5] * n) == (", ".join(["2.5"] * n) if n < 5 else "2.5 [2.5, 2.5]")
