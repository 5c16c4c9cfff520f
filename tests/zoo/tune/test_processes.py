"""Runs that hang are ended, and other workers replace theirs."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from optuna.trial import TrialState
from process_states import is_alive

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.tune import processes
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.processes import Workers, supervise
from ppo_plus.zoo.tune.stages import Study, create
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.task import TuningTask

TESTS = Path(__file__).parents[2]
#: Two rollouts each, on one seed.
PLAN = Plan(128, n_evals=2, last_evals=1, n_eval_episodes=1, n_seeds=2, race_seeds=0, confirm_seeds=0, pruner="none")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


def make(url, marker="nowhere", **fields):
    """A study of two trials of the environment that hangs."""
    import_module("tuning_envs")
    hyperparams = {"n_steps": 64, "batch_size": 64}
    experiment = Experiment("Hanging-v0", 128, env_kwargs={"marker": str(marker)}, hyperparams=hyperparams, **fields)
    space = {"learning_rate": {"low": 1e-4, "high": 1e-2}}
    task = TuningTask(experiment, space, PLAN, (*ALLOWED_PACKAGES, "tuning_envs"), ("tuning_envs",))
    study = Study("study", open_storage(url))
    create(study, task, 2)
    return study, task


@pytest.mark.slow
def test_an_environment_that_hangs_is_restarted_in_its_run(tmp_path, monkeypatch):
    url, marker = f"sqlite:///{tmp_path}/study.db", tmp_path / "hangs"
    study, task = make(url, marker, vec_env="subproc")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS / 'helpers'}")
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


def test_a_worker_that_does_not_end_is_killed(monkeypatch):
    """Ctrl-C would wait for a hanging one for ever."""
    monkeypatch.setattr(processes, "END_PATIENCE", 0)
    process = start_sleeping()
    processes._end(process)
    assert process.returncode == -9


def start_sleeping():
    """A process as a worker's: in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True, env=dict(os.environ)
    )
