"""Files of results: ``benchmarks/report/results.py``."""

import json
import lzma
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from release import is_current
from report import results

#: Appends records as fast as it can, from a process.
APPENDER = """
import sys
from pathlib import Path
from report.results import append_line
for i in range(100):
    append_line(Path(sys.argv[1]), {"process": int(sys.argv[2]), "i": i, "filler": "x" * 20_000})
"""


def test_tables_are_of_this_version():
    """If not: ``python benchmarks/release.py``."""
    assert [name for name in results.COMMANDS if not is_current(name, version("ppo_plus"))] == []


def test_each_record_is_a_line_and_comes_back(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert results.read_lines(path) == []
    records = [{"a": [1, 0.1]}, {"b": {"c": None, "d": "ä\n"}}]
    for record in records:
        results.append_line(path, record)
    with pytest.raises(ValueError):
        results.append_line(path, {"a": float("nan")})
    assert results.read_lines(path) == records
    assert len(path.read_text().splitlines()) == 2
    # Those of an archive come first.
    path.with_name("results.jsonl.xz").write_bytes(lzma.compress(b'{"old": 1}\n'))
    assert results.read_lines(path) == [{"old": 1}, *records]
    path.unlink()
    assert results.read_lines(path) == [{"old": 1}]


@pytest.mark.parametrize("part", ["{", '{"b": "ä"', ""])
def test_a_truncated_last_line_loses_nothing_else(tmp_path, part):
    path = tmp_path / "results.jsonl"
    # Some editors remove the last line's end.
    path.write_bytes(b'{"a": 1}' + (b"\n" + part.encode() if part else b""))
    assert results.read_lines(path) == [{"a": 1}]
    results.append_line(path, {"c": 3})
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


@pytest.mark.parametrize("line", [b'{"b": ', b"\xff\xfe", b"\0"])
def test_damage_elsewhere_is_an_error_with_its_line(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"c": 3}\n')
    with pytest.raises(ValueError, match="results.jsonl, line 2 is not valid JSON .*: mend or delete it"):
        results.read_lines(path)


def test_processes_can_append_at_the_same_time(tmp_path):
    path, folder = tmp_path / "results.jsonl", Path(results.__file__).parents[1]
    command = [sys.executable, "-c", APPENDER, str(path)]
    processes = [subprocess.Popen([*command, str(n)], cwd=folder) for n in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0] * 3
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for n in range(3):
        assert [line["i"] for line in lines if line["process"] == n] == list(range(100))
