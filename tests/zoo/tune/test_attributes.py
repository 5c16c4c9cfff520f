"""A study that was edited, or damaged by a disk: one clear line, and nothing runs."""

import json
import re
import sqlite3
import sys
from contextlib import closing

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from parametrization import in_turn

from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.tune.attributes import BUDGET, ERROR, ID, JOB, MAX_TRIALS, SCORES, SETTINGS, TASK
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.report import write_report
from ppo_plus.zoo.tune.stages import Study, create, make_study, only_study
from ppo_plus.zoo.tune.storage import StorageError, open_storage
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.worker import StudyStopped, Worker

SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}}
PLAN = Plan(2048, n_evals=1, last_evals=1, n_eval_episodes=1, race_seeds=0, confirm_seeds=10, pruner="none")
DEEP = "[" * 900 + "]" * 900
TOO_DEEP = "[" * 200_000


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


def error_of(study, tmp_path):
    """The line that a worker and the report end with."""
    lines = []
    for work in (lambda: Worker(study).work(), lambda: write_report(study, Worker(study).task, tmp_path)):
        with pytest.raises(StorageError) as error:
            work()
        lines.append(str(error.value))
    assert all("\n" not in line and len(line) < 1_000 for line in lines)
    return lines[0]


OF_STUDY = "UPDATE study_user_attributes SET value_json = ? WHERE key = ?"
OF_TRIAL = "UPDATE trial_user_attributes SET value_json = ? WHERE key = ?"


NO_JSON = {"nothing": "", "half": '{"a"', "less": "{", "nonsense": "nonsense", "deep": TOO_DEEP, "long": "9" * 5_000}
PLACES = {TASK: OF_STUDY, JOB: OF_TRIAL, BUDGET: OF_STUDY, SCORES: OF_TRIAL}


@pytest.mark.parametrize(("text", "key"), in_turn(NO_JSON, PLACES))
def test_what_is_no_json(edit, key, text, tmp_path):
    assert "the study 'study' is damaged: " in error_of(edit(PLACES[key], NO_JSON[text], key), tmp_path)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (TASK, ["7", "null", '"text"', "[]", DEEP, f'{{"a": {DEEP}}}']),
        (BUDGET, ["null", "-1", "2.5", '"2"', "true", "1e300", str(10**30), str(MAX_TRIALS + 1), "[]"]),
        (ERROR, ["7", "{}"]),
        (ID, ["7", "null"]),
    ],
)
def test_attributes_of_a_study(edit, key, values, tmp_path):
    for value in values:
        assert f"the study 'study' is damaged: its '{key}' must be" in error_of(edit(OF_STUDY, value, key), tmp_path)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (JOB, ["-1", "0.5", "true", '"0"', "[0]", "{}", str(10**40), "NaN"]),
        (SETTINGS, ["7", "null", "[]", f'{{"a": {DEEP}}}']),
        (SCORES, ["7", "null", "[]", '["1"]', "[NaN]", "[Infinity]", "[1e999]", "[null]", "{}", '"1"']),
    ],
)
def test_attributes_of_a_trial(edit, key, values, tmp_path):
    for value in values:
        line = error_of(edit(OF_TRIAL, value, key), tmp_path)
        assert f"trial 0 of the study 'study' is damaged: its '{key}' must be" in line


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM trial_user_attributes WHERE key = 'scores'", "trial 0 .* is damaged: it has no 'scores'"),
        ("DELETE FROM trial_values", "trial 0 .* is damaged: its value must be a finite number"),
        ("UPDATE trial_values SET value_type = 'INF_POS', value = NULL", "its value must be a finite number"),
        ("UPDATE trial_params SET distribution_json = '{}'", "is damaged: "),
        (
            """UPDATE trial_params SET distribution_json = '{"name": "os.system", "attributes": {}}'""",
            "Unknown distrib",
        ),
        ("UPDATE trial_system_attributes SET value_json = '[1]' WHERE key = 'fixed_params'", "'fixed_params' must be"),
        ("UPDATE trials SET state = 'GONE'", "is damaged: "),
    ],
)
def test_rows_of_trials(edit, statement, message, tmp_path):
    line = error_of(edit(statement), tmp_path)
    assert re.search(message, line), line


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
    "no plan": (nested("plan", ...), "its task: 'plan'"),
    "plan is text": (nested("plan", "x"), "its task: plan has the wrong type"),
    "settings is a list": (nested("settings", []), "its task: settings has the wrong type"),
    "environment is a number": (nested("env_id", 7), "its task: env_id has the wrong type"),
    "unknown key": (nested("os.system", "x"), "its task: task has the unknown key 'os.system'"),
    "unknown key of the plan": (nested("plan/x", 1), "its task: .*unexpected keyword argument 'x'"),
    # It would take the place of the one that was checked; Gymnasium imports what stands before the colon.
    "another environment": (nested("run/env_id", "evil_module:Env-v0"), "its task: run has the unknown key 'env_id'"),
    "another callback": (nested("run/callback", ["os.system"]), "its task: run has the unknown key 'callback'"),
    "device is a list": (nested("run/device", []), "its task: device has the wrong type"),
    "number as text": (nested("plan/n_evals", "ten"), "n_evals='ten' must be a whole number"),
    "number as list": (nested("plan/seed", [1]), r"seed=\[1\] must be a whole number"),
    "huge share": (nested("plan/race_share", 1e300), "race_share=1e.300 must be between 0 and 1"),
    "share is text": (nested("plan/race_share", "x"), "race_share='x' must be a number"),
    "huge confirmation": (nested("plan/confirm_seeds", 4_000_000), "confirm_seeds=4000000 must be at most 1000"),
    "huge race": (nested("plan/race_seeds", 10**9), "race_seeds=1000000000 must be at most 1000"),
    "huge number": (nested("plan/n_timesteps", 10**400), "n_timesteps=10+... must be at most"),
    "huge evaluation": (nested("plan/n_eval_envs", 10**9), "n_eval_envs=1000000000 must be at most"),
    "more evaluations than steps": (nested("plan/n_evals", 10**9), "n_evals=1000000000 must be at most n_timesteps"),
    "unknown sampler": (nested("plan/sampler", "os.system"), "sampler='os.system' must be one of"),
    "sampler is a list": (nested("plan/sampler", ["tpe"]), "its task: "),
    "unknown pruner": (nested("plan/pruner", "x"), "pruner='x' must be one of"),
    "huge setting": (nested("settings/n_envs", 10**400), "n_envs must be"),
    "bad setting": (nested("settings/env_wrapper", "os.system"), "'os.system' is in none of the packages"),
    "space of numbers": (nested("space", {"learning_rate": 7}), "learning_rate must be a mapping"),
    "space is unknown": (nested("space", {"os.system": {"choices": [1]}}), "unknown key 'os.system'"),
    "any package": (nested("packages", None), "imports from any package"),
}


@pytest.mark.parametrize(("change", "message"), TASKS.values(), ids=TASKS)
def test_tasks(edit, database, change, message, tmp_path):
    with closing(sqlite3.connect(database)) as connection:
        ((text,),) = connection.execute("SELECT value_json FROM study_user_attributes WHERE key = ?", [TASK])
    task = json.loads(text)
    change(task)
    study = edit(OF_STUDY, json.dumps(task), TASK)
    with pytest.raises(StorageError, match=message) as error:
        Worker(study)
    assert "\n" not in str(error.value) and len(str(error.value)) < 1_000
    assert "evil_module" not in sys.modules


def test_settings_of_a_run(edit):
    """They were checked when its trial was recorded, and may have been edited since."""
    worker = Worker(edit(OF_STUDY, "1", BUDGET))
    runs = worker.study.runs("confirmation", 1)
    make_study(runs.storage, runs.name)
    runs.fill([{JOB: 5, "candidate": 0, "seed": 7, SETTINGS: {"n_timesteps": 1, "env_wrapper": "os.system"}}])
    with pytest.raises(StorageError, match="is damaged: .*'os.system' is in none of the packages"):
        worker._do_all(runs, worker._run)


def test_runs_of_a_trial_that_is_not_there(edit, tmp_path):
    study = edit("UPDATE study_user_attributes SET value_json = '2' WHERE key = ?", BUDGET)
    runs = study.runs("confirmation", 2)
    make_study(study.storage, runs.name)
    runs.fill([{JOB: 5, "candidate": 99, "seed": 7, SETTINGS: {}}])
    with pytest.raises(StorageError, match="it has no trial 99, but runs of it"):
        write_report(study, Worker(study).task, tmp_path)


def test_an_error_that_is_blank_stops_a_study(edit):
    with pytest.raises(StudyStopped):
        Worker(edit(OF_STUDY, '" \\n "', ERROR)).work()


def test_other_trials_than_jobs_may_have_any_attributes(edit):
    study = edit("UPDATE studies SET study_name = 'study'")
    distributions = {"learning_rate": FloatDistribution(1e-4, 1e-2, log=True)}
    for attrs in ({SCORES: "mine"}, {"reason": 7}):
        study.screening.study().add_trial(
            create_trial(value=1.0, params={"learning_rate": 1e-3}, distributions=distributions, user_attrs=attrs)
        )
    assert [trial.number for trial in study.screening.trials()] == [0, 1]


def test_the_only_study_of_a_storage_may_be_damaged(edit):
    with pytest.raises(StorageError, match="the study 'study' is damaged"):
        only_study(edit(OF_STUDY, "7", TASK).storage)
