"""Runs that hang are ended, and other workers replace theirs."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from optuna.trial import TrialState
from states import is_alive

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.tune import processes, worker
from ppo_plus.zoo.tune.attributes import REASON, WORKER
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.processes import Workers, supervise
from ppo_plus.zoo.tune.stages import Study, create
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.worker import Worker

TESTS = Path(__file__).parents[2]
#: Two rollouts each, on one seed.
PLAN = Plan(128, n_evals=2, last_evals=1, n_eval_episodes=1, n_seeds=2, race_seeds=0, confirm_seeds=0, pruner="none")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


def make(url, marker="nowhere", **fields):
    """A study of two trials of the environment that hangs."""
    import_module("hanging")
    hyperparams = {"n_steps": 64, "batch_size": 64}
    experiment = Experiment("Hanging-v0", 128, env_kwargs={"marker": str(marker)}, hyperparams=hyperparams, **fields)
    space = {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    task = TuningTask(experiment, space, PLAN, (*ALLOWED_PACKAGES, "hanging"), ("hanging",))
    study = Study("study", open_storage(url))
    create(study, task, 2)
    return study, task


@pytest.mark.slow
@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_a_run_that_hangs_fails_and_the_study_continues(url, vec_env, tmp_path, monkeypatch, capsys):
    """Here the timer's signal is sent once the process hangs, so that no other run is too long, however busy the
    machine."""
    marker = tmp_path / "hangs"
    study, task = make(url, marker, vec_env=vec_env)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS}")

    def end_timer():
        while not marker.exists():
            time.sleep(0.1)
        (pid,) = {trial.user_attrs[WORKER] for trial in study.screening.trials() if trial.state == TrialState.RUNNING}
        os.kill(int(pid.split(":")[1]), signal.SIGALRM)

    with ThreadPoolExecutor() as pool:
        timer = pool.submit(end_timer)
        supervise(study, task, Workers(1, url, run_timeout=600))
        timer.result()
    hung, other = study.screening.trials()
    assert (hung.state, other.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert hung.user_attrs[REASON] == "a run took longer than 600 seconds (--run-timeout)"
    assert hung.user_attrs[WORKER] != other.user_attrs[WORKER]
    assert not is_alive(int(marker.read_text()))
    out = capsys.readouterr().out
    assert "trial 0 has failed: a run took longer than 600 seconds" in out and "replaces its worker" in out


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


HANGS = """
import ctypes, sys, time
from ppo_plus.zoo.tune.worker import limited
for _ in range(4):
    with limited(0.2):
        time.sleep(0.1)  # each by itself
time.sleep(0.3)
print("in time", flush=True)
with limited(0.2):
    ctypes.PyDLL(None).sleep(600)  # no thread of Python can run meanwhile
"""


def test_a_process_ends_with_a_run_that_is_too_long():
    ended = subprocess.run([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True, timeout=600)
    assert (ended.returncode, ended.stdout) == (-signal.SIGALRM, "in time\n")


def test_each_run_of_a_trial_has_its_own_limit(url, monkeypatch):
    study, _ = make(url)
    left = []

    def score(experiment, plan, seed, report, **_):
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        time.sleep(0.01)
        return 1.0

    monkeypatch.setattr(worker, "score", score)
    before = signal.getsignal(signal.SIGALRM)
    try:
        Worker(study, (*ALLOWED_PACKAGES, "hanging"), run_timeout=600).work()
    finally:
        signal.signal(signal.SIGALRM, before)
    # Two trials on two seeds.
    assert len(left) == 4 and all(599.99 < seconds <= 600 for seconds in left)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_worker_that_does_not_end_is_killed(monkeypatch):
    """Ctrl-C would wait for a hanging one for ever."""
    monkeypatch.setattr(processes, "END_PATIENCE", 0)
    process = start_sleeping()
    processes._end(process)
    assert process.returncode == -9


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_limits_that_are_none(seconds):
    with pytest.raises(ValueError, match="run_timeout=.* must be more than 0 seconds"):
        Workers(1, "sqlite:///none.db", run_timeout=seconds)


def start_sleeping():
    """A process as a worker's: in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True, env=dict(os.environ)
    )
