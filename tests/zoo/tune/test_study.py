"""The jobs of each stage, which follow from the results of the one before, and what a worker reads from a storage."""

import json
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, StorageError, open_storage
from ppo_plus.zoo.tune.report import decide, export_best
from ppo_plus.zoo.tune.study import (
    BUDGET,
    ERROR,
    RECORDED,
    SCORES,
    TASK,
    Study,
    create,
    prepare_confirmation,
    prepare_screening,
    read_task,
)
from ppo_plus.zoo.tune.task import Plan, TuningTask
from ppo_plus.zoo.tune.tuner import StudyStopped, TuningWorker, estimate, tune

PLAN = Plan(2048, n_finalists=2)
SMALL_TASK = TuningTask(load_experiment("CartPole-v1"), {"gamma": {"choices": [0.9, 0.99]}}, PLAN).fitted()


@pytest.fixture
def study(tmp_path):
    study = Study("study", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    create(study, SMALL_TASK, 6)
    return study


def do_all(jobs, scores):
    """Do what is waiting, in order; a score of None is a failed trial."""
    for score in scores:
        trial = jobs.claim()
        jobs.storage.set_trial_user_attr(trial._trial_id, RECORDED, {"trial": trial.user_attrs[JOB]})
        if score is None:
            jobs.finish(trial, TrialState.FAIL, reason="NaN")
        else:
            jobs.storage.set_trial_user_attr(trial._trial_id, SCORES, [score])
            jobs.finish(trial, TrialState.COMPLETE, score)
    assert jobs.claim() is None


def runs(jobs):
    return [(trial.user_attrs[CANDIDATE], trial.user_attrs[SEED]) for trial in jobs.trials()]


def test_from_stage_to_stage(study):
    screening = prepare_screening(study, SMALL_TASK, 6)
    do_all(screening, [9.0, 8.0, 5.0, None, 4.0, 3.0])
    confirmation = prepare_confirmation(study, PLAN, 6)
    # Baselines come first, and are confirmed anyway.
    seeds = PLAN.seeds("confirmation")
    assert runs(confirmation) == [(trial, seed) for seed in seeds for trial in (0, 1, 2, 4)]
    assert confirmation.trials()[3].user_attrs[RECORDED] == {"trial": 4}
    # Asked again, they are the same.
    assert len(prepare_confirmation(study, PLAN, 6).study().trials) == 40
    assert list(study.begun_stages()) == ["screening", "confirmation"]


@pytest.mark.parametrize(
    ("budget", "scores", "confirmed"),
    [
        # On other seeds baselines may have a score; without one, nothing can be compared with them.
        (6, [None, None, 5.0, 6.0, 4.0, 3.0], {0, 1, 2, 3}),
        (6, [None] * 6, set()),
        (2, [9.0, 8.0], set()),
    ],
)
def test_what_is_confirmed(study, budget, scores, confirmed):
    do_all(prepare_screening(study, SMALL_TASK, budget), scores)
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, budget))} == confirmed


def test_a_default_that_never_began_is_not_run_again(study):
    screening = prepare_screening(study, SMALL_TASK, 6)
    screening.finish(screening.claim(), TrialState.FAIL, reason="its worker died")
    do_all(screening, [2.0, 5.0, None, 4.0, 3.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {1, 2, 4}


@pytest.mark.slow
def test_the_settings_file_decides(study):
    """From the storage to the verdict: the trial that beats the default alone is not exported."""
    do_all(prepare_screening(study, SMALL_TASK, 6), [1.0, 8.0, 5.0, None, 4.0, 3.0])
    confirmation = prepare_confirmation(study, PLAN, 6)
    returns = {0: 1.0, 1: 8.0, 2: 5.0, 4: 4.0}
    while (run := confirmation.claim()) is not None:
        luck = run.user_attrs[SEED] / 1e8
        confirmation.finish(run, TrialState.COMPLETE, returns[run.user_attrs[CANDIDATE]] + luck)
    verdict = decide(study)
    assert list(verdict.baselines) == ["default", "settings file"]
    assert [finalist.name for finalist in verdict.finalists] == ["trial 2", "trial 4"]
    assert verdict.finalists[0].gains["default"].low > 0 > verdict.finalists[0].gains["settings file"].low
    assert verdict.winner is None and str(verdict).startswith("No winner: none of the finalists")


def test_runs_that_are_added_later_are_the_same_for_all(study):
    """Two processes at the same time: of the two trials that they add for a run, one counts, whatever its number."""
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 8.0, 5.0, None, 4.0, 3.0])
    confirmation = prepare_confirmation(study, PLAN, 6)
    wanted = [{key: trial.user_attrs[key] for key in (CANDIDATE, SEED, RECORDED)} for trial in confirmation.trials()]
    other = Study("other", study.storage).confirmation(6)
    optuna.create_study(study_name=other.name, storage=study.storage, direction="maximize")
    other.fill([run for run in wanted if run[CANDIDATE] != 1])
    for number in (1, 7):
        other.study().add_trial(create_trial(state=TrialState.WAITING, user_attrs={JOB: number, **wanted[1]}))
    assert len(other.trials()) == 31
    assert set(runs(other)) < set(runs(confirmation))
    other.fill(wanted)
    assert len(other.trials()) == 40 and set(runs(other)) == set(runs(confirmation))


def test_a_larger_budget_leaves_the_confirmation_of_the_smaller_one(study):
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 2.0, 5.0, None, 4.0, 3.0])
    create(study, SMALL_TASK, 8)
    assert study.attributes()[BUDGET] == 8
    do_all(prepare_screening(study, SMALL_TASK, 8), [7.0, 6.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {0, 1, 2, 4}
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 8))} == {0, 1, 6, 7}
    # And a smaller one changes nothing.
    create(study, SMALL_TASK, 3)
    assert study.attributes()[BUDGET] == 8


def test_another_task_is_an_error_that_names_the_difference(study):
    plan = replace(PLAN, seed=5)
    other = TuningTask(
        SMALL_TASK.experiment, {"gamma": {"choices": [0.8]}, "n_epochs": {"choices": [4]}}, plan
    ).fitted()
    message = (
        "the study 'study' exists with other values: space gamma={'choices': [0.8]} (the study has {'choices': [0.9, "
        "0.99]}), plan seed=5 (the study has 0), space n_epochs={'choices': [4]} (the study has nothing): give the same"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        create(study, other, 6)


def test_an_estimate_follows_the_baselines(study, monkeypatch):
    """At most 6 runs of the search and 40 of the confirmation; 2 are done, in 30 seconds each."""
    monkeypatch.setattr(FrozenTrial, "duration", timedelta(seconds=30))
    assert estimate(study, SMALL_TASK, 2) == ""
    prepare_screening(study, SMALL_TASK, 6)
    do_all(study.screening(2), [9.0, 9.0])
    assert estimate(study, SMALL_TASK, 2) == "about 11.0 more minutes at most with 2 at a time"


def test_without_a_winner_the_best_trial_is_exported(study, tmp_path):
    assert export_best(study, SMALL_TASK, decide(study), tmp_path) is None
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 9.0, 1.0, 4.0, 3.0, 2.0])
    path = export_best(study, SMALL_TASK, decide(study), tmp_path)
    assert path.name == "CartPole-v1_not_confirmed.yml" and "trial: 3" in path.read_text()


ROOT = Path(__file__).parents[3]
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}}
ONE_EVALUATION = Plan(2048, n_evals=1, last_evals=1, n_eval_episodes=1, confirm_seeds=10, pruner="none")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A study with a finished trial and a waiting one."""
    path = tmp_path_factory.mktemp("study") / "study.db"
    storage = open_storage(f"sqlite:///{path}")
    study = Study("study", storage)
    create(study, TuningTask(Experiment("CartPole-v1", 2048), SPACE, ONE_EVALUATION), 2)
    study.screening().fill([{}, {}])
    claimed = study.screening().claim()
    trial = study.screening().trial(claimed)
    trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    trial.set_user_attr(RECORDED, {"n_timesteps": 2048})
    trial.set_user_attr(SCORES, [1.5])
    study.screening().finish(claimed, TrialState.COMPLETE, 1.5)
    storage._backend.engine.dispose()
    return path


@pytest.fixture
def edit(database, tmp_path, monkeypatch):
    """Copy the study, edit a row of it, and open it as another process does."""
    monkeypatch.setattr("ppo_plus.zoo.tune.tuner.score", lambda *_: pytest.fail("something runs"))
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
    "environment is a number": (nested("env_id", 7), "cannot be worked on: "),
    "unknown key of the plan": (nested("plan/x", 1), "cannot be worked on: .*unexpected keyword argument 'x'"),
    "number as text": (nested("plan/n_evals", "ten"), "n_evals='ten' must be an integer"),
    "unknown sampler": (nested("plan/sampler", "os.system"), "sampler='os.system' must be one of"),
    "bad setting": (nested("settings/env_wrapper", "os.system"), "'os.system' is in none of the packages"),
    "space is unknown": (nested("space", {"os.system": {"choices": [1]}}), "unknown key 'os.system'"),
    "a package": (nested("env_id", "evil:Nice-v0"), "the study imports evil: use --gym-packages evil"),
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
        read_task(edited(edit, database, change))
    assert "\n" not in str(error.value) and len(str(error.value)) < 1_000


def test_what_a_worker_finds_instead_of_a_study(edit):
    study = edit(OF_STUDY, "7", TASK)
    with pytest.raises(StorageError, match="the study 'study' cannot be worked on"):
        read_task(study)
    for name in ("none", "of another program"):
        with pytest.raises(ValueError, match=f"there is no study '{name}': start it"):
            read_task(Study(name, study.storage))
        optuna.create_study(study_name="of another program", storage=study.storage, load_if_exists=True)
    study.set(ERROR, " \n ")
    with pytest.raises(StudyStopped):
        TuningWorker(study, SMALL_TASK).work()


@pytest.mark.parametrize(("name", "value"), [("env_id", "evil_module:Env-v0"), ("callback", ["os.system"])])
def test_a_run_replaces_nothing_that_was_checked(edit, database, name, value):
    """Gymnasium imports what stands before the colon."""
    task = read_task(edited(edit, database, nested(f"run/{name}", value)))
    assert (task.experiment.env_id, task.experiment.callback) == ("CartPole-v1", ())
    assert "evil_module" not in sys.modules


@pytest.mark.slow
def test_a_programming_error_stops_the_study_and_is_not_counted(tmp_path, monkeypatch):
    study = Study("bug", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    experiment = Experiment("CartPole-v1", 2048)
    plan = Plan(2048, n_evals=1, last_evals=1, n_eval_episodes=1, confirm_seeds=0)
    with monkeypatch.context() as patch:
        patch.setattr("ppo_plus.zoo.tune.tuner.score", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(experiment, SPACE, study, plan, 2, tmp_path)
        assert "ZeroDivisionError" in study.attributes()[ERROR]
        with pytest.raises(Exception, match="ZeroDivisionError"):
            TuningWorker(study, read_task(study)).work()
    tune(experiment, SPACE, study, plan, 2, tmp_path)
    assert [trial.state for trial in study.screening().trials()] == [TrialState.COMPLETE] * 2
