"""What a worker does with a study that is missing, was edited, or whose runs fail."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.tune.jobs import JOB
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BUDGET, ERROR, SCORES, SETTINGS, TASK, Study, create
from ppo_plus.zoo.tune.storage import StorageError, open_storage
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.tuner import tune
from ppo_plus.zoo.tune.worker import StudyStopped, Worker

ROOT = Path(__file__).parents[3]
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}}
PLAN = Plan(2048, n_evals=1, last_evals=1, n_eval_episodes=1, race_seeds=0, confirm_seeds=10, pruner="none")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A study with a finished trial and a waiting one."""
    path = tmp_path_factory.mktemp("study") / "study.db"
    storage = open_storage(f"sqlite:///{path}")
    study = Study("study", storage)
    create(study, TuningTask(Experiment("CartPole-v1", 2048), SPACE, PLAN), 2)
    study.screening.fill([{}, {}])
    claimed = study.screening.claim()
    trial = study.screening.trial(claimed)
    trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    trial.set_user_attr(SETTINGS, {"n_timesteps": 2048})
    trial.set_user_attr(SCORES, [1.5])
    study.screening.tell(claimed, TrialState.COMPLETE, 1.5)
    storage._backend.engine.dispose()
    return path


@pytest.fixture
def edit(database, tmp_path, monkeypatch):
    """Copy the study, edit a row of it, and open it as another process does."""
    monkeypatch.setattr("ppo_plus.zoo.tune.worker.score", lambda *_: pytest.fail("something runs"))
    path = tmp_path / "study.db"
    path.write_bytes(database.read_bytes())

    def change(statement, *values):
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement, values).rowcount > 0
        return Study("study", open_storage(f"sqlite:///{path}"))

    return change


OF_STUDY = "UPDATE study_user_attributes SET value_json = ? WHERE key = ?"


def nested(path, value):
    """A change within the task."""

    def apply(task):
        *parents, last = path.split("/")
        for name in parents:
            task = task[name]
        if value is ...:
            del task[last]
        else:
            task[last] = value

    return apply


TASKS = {
    "no plan": (nested("plan", ...), "cannot be worked on: 'plan'"),
    "plan is text": (nested("plan", "x"), "cannot be worked on: "),
    "environment is a number": (nested("env_id", 7), "cannot be worked on: "),
    "unknown key of the plan": (nested("plan/x", 1), "cannot be worked on: .*unexpected keyword argument 'x'"),
    "number as text": (nested("plan/n_evals", "ten"), "n_evals='ten' must be a whole number"),
    "share is text": (nested("plan/race_share", "x"), "cannot be worked on: "),
    "unknown sampler": (nested("plan/sampler", "os.system"), "sampler='os.system' must be one of"),
    "unknown pruner": (nested("plan/pruner", "x"), "pruner='x' must be one of"),
    "bad setting": (nested("settings/env_wrapper", "os.system"), "'os.system' is in none of the packages"),
    "space of numbers": (nested("space", {"learning_rate": 7}), "learning_rate must be a mapping"),
    "space is unknown": (nested("space", {"os.system": {"choices": [1]}}), "unknown key 'os.system'"),
    "any package": (nested("packages", None), "imports from any package"),
}


def edited(edit, database, change):
    """The study with a change within its task."""
    with closing(sqlite3.connect(database)) as connection:
        ((text,),) = connection.execute("SELECT value_json FROM study_user_attributes WHERE key = ?", [TASK])
    task = json.loads(text)
    change(task)
    return edit(OF_STUDY, json.dumps(task), TASK)


@pytest.mark.parametrize(("change", "message"), TASKS.values(), ids=TASKS)
def test_tasks(edit, database, change, message):
    with pytest.raises(StorageError, match=message) as error:
        Worker(edited(edit, database, change))
    assert "\n" not in str(error.value) and len(str(error.value)) < 1_000


@pytest.mark.parametrize(("name", "value"), [("env_id", "evil_module:Env-v0"), ("callback", ["os.system"])])
def test_a_run_replaces_nothing_that_was_checked(edit, database, name, value):
    """Gymnasium imports what stands before the colon."""
    task = Worker(edited(edit, database, nested(f"run/{name}", value))).task
    assert (task.experiment.env_id, task.experiment.callback) == ("CartPole-v1", ())
    assert "evil_module" not in sys.modules


def test_settings_of_a_run(edit):
    """They were checked when its trial was recorded, and may have been edited since."""
    worker = Worker(edit(OF_STUDY, "1", BUDGET))
    runs = worker.study.runs("confirmation", 1)
    optuna.create_study(study_name=runs.name, storage=runs.storage, direction="maximize")
    runs.fill([{JOB: 5, "candidate": 0, "seed": 7, SETTINGS: {"n_timesteps": 1, "env_wrapper": "os.system"}}])
    with pytest.raises(ValueError, match="'os.system' is in none of the packages"):
        worker._do_all(runs)


def test_a_task_that_is_a_number(edit):
    with pytest.raises(StorageError, match="the study 'study' cannot be worked on"):
        Worker(edit(OF_STUDY, "7", TASK))


def test_an_error_that_is_blank_stops_a_study(edit):
    with pytest.raises(StudyStopped):
        Worker(edit(OF_STUDY, '" \\n "', ERROR)).work()


@pytest.mark.slow
def test_what_a_worker_finds_instead_of_a_study(tuned):
    study, _, _, task = tuned
    with pytest.raises(ValueError, match="there is no study 'none': start it"):
        Worker(Study("none", study.storage))
    other = Study("other version", study.storage)
    optuna.create_study(study_name=other.name, storage=other.storage, direction="maximize")
    with pytest.raises(ValueError, match="there is no study 'other version': start it"):
        Worker(other)
    other.set(TASK, {key: value for key, value in task.to_json().items() if key != "run"})
    with pytest.raises(ValueError, match="the study 'other version' cannot be worked on: 'run'"):
        Worker(other, None)


@pytest.mark.slow
def test_a_programming_error_stops_the_study_and_is_not_counted(tmp_path, monkeypatch):
    study = Study("bug", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    experiment = Experiment("CartPole-v1", 2048)
    plan = Plan(2048, n_evals=1, last_evals=1, n_eval_episodes=1, race_seeds=0, confirm_seeds=0)
    with monkeypatch.context() as patch:
        patch.setattr("ppo_plus.zoo.tune.worker.score", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(experiment, SPACE, study, plan, 2, tmp_path)
        assert "ZeroDivisionError" in study.attributes()[ERROR]
        with pytest.raises(Exception, match="ZeroDivisionError"):
            Worker(study).work()
    tune(experiment, SPACE, study, plan, 2, tmp_path)
    assert [trial.state for trial in study.screening.trials()] == [TrialState.COMPLETE] * 2


@pytest.mark.slow
@pytest.mark.parametrize("said", ["", '{"workers": '])
def test_a_worker_without_a_tuner_ends_in_silence(said):
    """The tuner may be killed before it has said what to do."""
    code = "from ppo_plus.zoo.tune.worker import run_worker; run_worker()"
    options = {"input": said, "capture_output": True, "text": True, "timeout": 600}
    ended = subprocess.run([sys.executable, "-c", code], **options, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
