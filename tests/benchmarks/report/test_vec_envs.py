"""The tables of vector environments."""

from report import vec_envs


def test_ratios_compare_times_of_the_same_round():
    times = {"Lean": [100.0, 300.0, 900.0], "Workers: 2": [50.0, 100.0, 1800.0]}
    results = {"A-v0": {8: times, 32: {"Lean": [1000.0]}}}
    lines = vec_envs.table(results, "Lean", "µs")
    assert lines[0] == "| µs | A-v0 ×8 | A-v0 ×32 |"
    assert lines[2:] == ["| Lean | 300 | 1,000 |", "| Workers: 2 | 100 (2.00×) | – |"]
    assert vec_envs.table(results, "other", "µs", {"Lean": "here"})[2:] == ["| here | 300 | 1,000 |"]
