"""What the learning scripts share: ``benchmarks/runs.py``."""

import json
import math
import re
from functools import partial
from pathlib import Path
from time import sleep

import pytest
import runs


def results_of(runs):
    return [runs.Result("task", name, seed, 1000, 200.0, 2.5) for name in ("b", "a") for seed in range(3)]


@pytest.mark.slow
def test_jobs_run_in_other_processes_in_order_of_results(tmp_path):
    path = tmp_path / "new" / "results.json"
    arguments = runs.parser("doc", ["task"]).parse_args(["--jobs", "1", "--json", str(path)])
    expected = results_of(runs)
    assert runs.run([partial(runs.Result, **vars(result)) for result in expected], arguments) == expected
    assert json.loads(path.read_text()) == {"versions": runs.facts(), "runs": [vars(result) for result in expected]}


def slowly(result):
    sleep(1)
    return result


@pytest.mark.slow
def test_an_error_ends_it_and_loses_nothing(tmp_path, monkeypatch):
    # The other processes find `slowly` by the name of this file.
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    path = tmp_path / "results.json"
    arguments = runs.parser("doc", ["task"]).parse_args(["--jobs", "1", "--json", str(path)])
    first, *further = (runs.Result("task", "a", seed, 1000, 200.0, 2.5) for seed in range(20))
    jobs = [partial(slowly, first), partial(int, "no number"), *(partial(slowly, result) for result in further)]
    with pytest.raises(ValueError, match="no number"):
        runs.run(jobs, arguments)
    results = runs.read(path)
    assert results == [first, *further][: len(results)]
    # One or two more may have been on their way to the process already.
    assert 1 <= len(results) < 19


def test_results_in_a_file_can_be_resumed(tmp_path):
    path, never = tmp_path / "results.json", runs.Result("task", "c", 0, 1000, 200.0, math.inf)
    assert runs.done_before(path) == []
    before = [*results_of(runs), never]
    runs.save(before, path)
    assert runs.done_before(path) == before
    arguments = runs.parser("doc", ["task"]).parse_args(["--jobs", "1", "--json", str(path)])
    assert runs.run([], arguments, before) == before


def test_a_file_of_other_versions_is_not_resumed(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    runs.save(results_of(runs), path)
    text = path.read_text()
    before = runs.facts()
    monkeypatch.setattr(runs, "facts", lambda: {**before, "torch": "other"})
    expected = f"results.json has results of torch {re.escape(before['torch'])}, not other: give another file to --json"
    with pytest.raises(SystemExit, match=expected):
        runs.done_before(path)
    assert path.read_text() == text
