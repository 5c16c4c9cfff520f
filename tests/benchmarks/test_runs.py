"""What the learning scripts share: ``benchmarks/runs.py``."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import sleep

import pytest


@pytest.fixture(scope="module")
def runs(import_script):
    return import_script("runs")


def results_of(runs):
    return [runs.Result("task", name, seed, 1000, 200.0, 2.5) for name in ("b", "a") for seed in range(3)]


@pytest.mark.slow
def test_jobs_run_in_other_processes_in_order_of_results(runs, tmp_path):
    path = tmp_path / "new" / "results.json"
    arguments = runs.parser("doc", ["task"]).parse_args(["--jobs", "1", "--json", str(path)])
    expected = results_of(runs)
    assert runs.run([partial(runs.Result, **vars(result)) for result in expected], arguments) == expected
    assert json.loads(path.read_text()) == {"versions": runs.facts(), "runs": [vars(result) for result in expected]}


def slowly(result):
    sleep(1)
    return result


@pytest.mark.slow
def test_an_error_ends_it_and_loses_nothing(runs, tmp_path, monkeypatch):
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


#: Runs for ever after the first.
ENDLESS = """
import runs, sys, time
from functools import partial

def job(seed):
    time.sleep(1e6 if seed else 0)
    return runs.Result("task", "a", seed, 1000, 200.0, 2.5)

if __name__ == "__main__":
    runs.run([partial(job, seed) for seed in range(9)], runs.parser("doc", ["task"]).parse_args(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_ends_all_and_keeps_what_is_done(runs, tmp_path):
    script, path = tmp_path / "endless.py", tmp_path / "results.json"
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, script, "--jobs", "1", "--json", path],
        env={**os.environ, "PYTHONPATH": str(Path(runs.__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A process group of its own, as a terminal gives it to each command.
        start_new_session=True,
    )
    while not process.stdout.readline().startswith("1 of 9: task, a, seed 0"):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, f"interrupted: 1 of 9 runs are done, kept in {path}\n")
    assert [result.seed for result in runs.read(path)] == [0]


@pytest.mark.parametrize("option", ["--jobs", "--seeds"])
def test_fewer_than_one_worker_raises_an_error(runs, option, capsys):
    with pytest.raises(SystemExit, match="2"):
        runs.parser("doc", ["task"], seeds=3).parse_args([option, "0"])
    assert f"argument {option}: it must be a positive whole number, not '0'" in capsys.readouterr().err


def test_a_result_of_nan_raises_an_error(runs, tmp_path):
    with pytest.raises(ValueError, match="nan"):
        runs.save([runs.Result("task", "a", 0, 1000, 200.0, math.nan)], tmp_path / "results.json")


def test_a_goal_that_was_never_reached_is_null(runs, tmp_path):
    runs.save([runs.Result("task", "a", 0, 1000, 200.0, math.inf)], tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["score"] is None


def test_results_in_a_file_can_be_resumed(runs, tmp_path):
    path, never = tmp_path / "results.json", runs.Result("task", "c", 0, 1000, 200.0, math.inf)
    assert runs.done_before(path) == []
    before = [*results_of(runs), never]
    runs.save(before, path)
    assert runs.done_before(path) == before
    arguments = runs.parser("doc", ["task"]).parse_args(["--jobs", "1", "--json", str(path)])
    assert runs.run([], arguments, before) == before


def test_a_file_of_other_versions_is_not_resumed(runs, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    runs.save(results_of(runs), path)
    text = path.read_text()
    before = runs.facts()
    monkeypatch.setattr(runs, "facts", lambda: {**before, "torch": "other"})
    expected = f"results.json has results of torch {re.escape(before['torch'])}, not other: give another file to --json"
    with pytest.raises(SystemExit, match=expected):
        runs.done_before(path)
    assert path.read_text() == text


def test_scripts_have_only_options_that_they_need(runs):
    arguments = runs.parser("doc", ["one", "two"], 3, ["a", "b"]).parse_args(["--without", "a"])
    assert (arguments.only, arguments.without, arguments.seeds) == (["one", "two"], ["a"], 3)
    assert not hasattr(runs.parser("doc", ["one"]).parse_args([]), "only")
