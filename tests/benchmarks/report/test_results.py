"""Files of results: ``benchmarks/report/results.py``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Appends records as fast as it can, from a process.
APPENDER = """
import sys
from pathlib import Path
from report.results import append_line
for i in range(100):
    append_line(Path(sys.argv[1]), {"process": int(sys.argv[2]), "i": i, "filler": "x" * 20_000})
"""


@pytest.fixture(scope="module")
def results(import_script):
    return import_script("report.results")


def test_each_record_is_a_line_and_comes_back(results, tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert results.read_lines(path) == []
    records = [{"a": [1, 0.1]}, {"b": {"c": None, "d": "ä\n"}}]
    for record in records:
        results.append_line(path, record)
    assert results.read_lines(path) == records
    assert len(path.read_text().splitlines()) == 2


def test_nan_is_not_a_result(results, tmp_path):
    path = tmp_path / "results.jsonl"
    results.append_line(path, {"a": 1})
    with pytest.raises(ValueError):
        results.append_line(path, {"a": float("nan")})
    assert path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("part", ["{", '{"b": 2', '{"b": "ä"'])
def test_a_truncated_last_line_loses_nothing_else(results, tmp_path, part):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"a": 1}\n' + part.encode())
    assert results.read_lines(path) == [{"a": 1}]
    results.append_line(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_last_line_without_its_end_counts(results, tmp_path):
    """Some editors remove the last line's end."""
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}')
    assert results.read_lines(path) == [{"a": 1}, {"b": 2}]
    results.append_line(path, {"c": 3})
    assert results.read_lines(path) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_damage_elsewhere_is_an_error_with_its_line(results, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"a": 1}\n{"b": \n{"c": 3}\n')
    with pytest.raises(ValueError, match="results.jsonl, line 2 is not valid JSON"):
        results.read_lines(path)


def test_processes_can_append_at_the_same_time(results, tmp_path):
    path, folder = tmp_path / "results.jsonl", Path(results.__file__).parents[1]
    command = [sys.executable, "-c", APPENDER, str(path)]
    processes = [subprocess.Popen([*command, str(n)], cwd=folder) for n in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0] * 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for n in range(3):
        assert [line["i"] for line in lines if line["process"] == n] == list(range(100))
