"""Runs that hang are ended by whoever watches them."""

import os
import subprocess
import sys
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from optuna.trial import TrialState
from states import is_alive

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.tune import processes
from ppo_plus.zoo.tune.jobs import REASON, WORKER, worker_name
from ppo_plus.zoo.tune.plan import Plan, Task
from ppo_plus.zoo.tune.processes import Runs, Workers, supervise
from ppo_plus.zoo.tune.stages import Study, create
from ppo_plus.zoo.tune.storage import open_storage

TESTS = Path(__file__).parents[2]
#: Two rollouts each, on one seed.
PLAN = Plan(128, n_evals=2, last_evals=1, n_eval_episodes=1, n_seeds=2, race_seeds=0, confirm_seeds=0, pruner="none")


@pytest.fixture(params=["sqlite:///{}/study.db", "journal:{}/study.log"])
def url(request, tmp_path):
    return request.param.format(tmp_path)


def make(url, marker="nowhere", **fields):
    """A study of two trials of the environment that hangs."""
    import_module("hanging")
    hyperparams = {"n_steps": 64, "batch_size": 64}
    experiment = Experiment("Hanging-v0", 128, env_kwargs={"marker": str(marker)}, hyperparams=hyperparams, **fields)
    space = {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    task = Task(experiment, space, PLAN, (*ALLOWED_PACKAGES, "hanging"), ("hanging",))
    study = Study("study", open_storage(url))
    create(study, task, 2)
    return study, task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "vec_env"), [("sqlite:///{}/study.db", "dummy"), ("journal:{}/study.log", "subproc")], indirect=["url"]
)
def test_a_run_that_hangs_fails_and_the_study_goes_on(url, vec_env, tmp_path, monkeypatch, capsys):
    """Time passes only while the process hangs, so that no other run is ever too long, however busy the machine."""
    marker = tmp_path / "hangs"
    study, task = make(url, marker, vec_env=vec_env)
    ticks = count(step=1000)
    now = [0]

    def clock():
        if marker.exists() and is_alive(int(marker.read_text())):
            now[0] = next(ticks)
        return now[0]

    monkeypatch.setattr(processes, "clock", clock)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    supervise(study, task, Workers(1, url, run_timeout=600))
    hung, other = study.screening.trials()
    assert (hung.state, other.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert hung.user_attrs[REASON] == "a run took longer than 600 seconds (--run-timeout)"
    assert hung.user_attrs[WORKER] != other.user_attrs[WORKER]
    assert not is_alive(int(marker.read_text()))
    out = capsys.readouterr().out
    assert "trial 0 has failed: a run took longer than 600 seconds" in out and "takes the place of its worker" in out


@pytest.mark.slow
def test_an_environment_that_hangs_is_restarted_in_its_run(tmp_path, monkeypatch):
    url, marker = f"sqlite:///{tmp_path}/study.db", tmp_path / "hangs"
    study, task = make(url, marker, vec_env="subproc")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")
    # More restarts than one, since a busy machine may seem to hang.
    supervise(study, task, Workers(1, url, supervision={"restarts": 100, "timeout": 10}))
    assert [trial.state for trial in study.screening.trials()] == [TrialState.COMPLETE] * 2
    assert not is_alive(int(marker.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("said", ["", '{"workers": '])
def test_a_worker_without_a_tuner_ends_in_silence(said):
    """The tuner may be killed before it has said what to do."""
    code = "from ppo_plus.zoo.tune.processes import run_worker; run_worker()"
    options = {"input": said, "capture_output": True, "text": True, "timeout": 600}
    ended = subprocess.run([sys.executable, "-c", code], **options, env={**os.environ, "PYTHONPATH": str(TESTS.parent)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_run_is_timed_by_itself(url, monkeypatch):
    """Not with the trial's earlier runs, nor with the time before it was seen."""
    study, task = make(url)
    study.screening.fill([{}, {}])
    monkeypatch.setattr(processes, "_start", lambda study, task, workers, running: running.append(start_sleeping()))
    running = [start_sleeping(), start_sleeping()]
    for process in running:
        claimed = study.screening.claim()
        study.storage.set_trial_user_attr(claimed._trial_id, WORKER, worker_name(process.pid))
    runs = Runs(study, task, Workers(2, url, run_timeout=10), running)
    now = [0.0]
    monkeypatch.setattr(processes, "clock", lambda: now[0])

    def after(seconds, step=None):
        if step is not None:
            study.storage.set_trial_intermediate_value(claimed._trial_id, step, 1.0)
        now[0] += seconds
        return list(runs.end_overdue())

    first, second = running
    try:
        assert after(100) == after(10, step=127) == []
        # The second one's first run is done.
        (line,) = after(1, step=128)
        assert f"takes the place of its worker, {first.pid}" in line
        assert first.returncode is not None and second.poll() is None and len(running) == 2
        assert after(9, step=255) == []
        (line,) = after(2)
        assert f"takes the place of its worker, {second.pid}" in line
        assert after(1000) == []
        assert all(REASON in trial.user_attrs for trial in study.screening.trials())
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_what_a_killed_worker_went_on_with_is_done_again(url, monkeypatch):
    """It ended its trial between the last look and the kill, and claimed the next one."""
    study, task = make(url)
    study.screening.fill([{}, {}])
    monkeypatch.setattr(processes, "_start", lambda study, task, workers, running: running.append(start_sleeping()))
    running = [start_sleeping()]
    first = study.screening.claim()
    study.storage.set_trial_user_attr(first._trial_id, WORKER, worker_name(running[0].pid))
    runs = Runs(study, task, Workers(1, url, run_timeout=10), running)
    monkeypatch.setattr(processes, "clock", count(step=100).__next__)
    kill = processes._kill

    def kill_late(process):
        second = study.screening.claim()
        study.storage.set_trial_user_attr(second._trial_id, WORKER, worker_name(process.pid))
        kill(process)

    monkeypatch.setattr(processes, "_kill", kill_late)
    assert list(runs.end_overdue()) == []
    try:
        assert len(list(runs.end_overdue())) == 1
        again = study.screening.claim()
        assert again.user_attrs["job"] == 1 and again.user_attrs["deaths"] == 0
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_a_worker_that_does_not_end_is_killed(monkeypatch):
    """Ctrl-C would wait for a hanging one for ever."""
    monkeypatch.setattr(processes, "END_PATIENCE", 0)
    process = start_sleeping()
    processes._end(process)
    assert process.returncode == -9


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_limits_that_are_none(seconds):
    with pytest.raises(ValueError, match="run_timeout=.* must be more than 0 seconds"):
        Workers(1, "journal:none", run_timeout=seconds)


def start_sleeping():
    """A process as a worker's: in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True, env=dict(os.environ)
    )
