"""The jobs of each stage, which follow from the results of the one before."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.tune import Study
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, open_storage
from ppo_plus.zoo.tune.report import decide, estimate, export_best
from ppo_plus.zoo.tune.study import BUDGET, ERROR, RECORDED, SCORES, create, prepare_confirmation, prepare_screening
from ppo_plus.zoo.tune.task import Plan, TuningTask
from ppo_plus.zoo.tune.tuner import StudyStopped, TuningWorker, tune

PLAN = Plan(2048, n_finalists=2)
SMALL_TASK = TuningTask(load_experiment("CartPole-v1"), {"gamma": {"choices": [0.9, 0.99]}}, PLAN).fitted()


@pytest.fixture
def study():
    study = Study("study", InMemoryStorage())
    create(study, SMALL_TASK, 6)
    return study


def do_all(jobs, scores, alike=()):
    """Do what is waiting, in order. A score of None: it fails. Trials that are ``alike`` have equal settings."""
    for score in scores:
        trial = jobs.claim()
        job = trial.user_attrs[JOB]
        jobs.storage.set_trial_user_attr(trial._trial_id, RECORDED, {"trial": alike[0] if job in alike else job})
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


def test_equal_settings_are_one_finalist(study):
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 8.0, 5.0, 5.0, 4.0, 3.0], alike=(2, 3))
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {0, 1, 2, 4}


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


def test_a_larger_budget_adds_to_the_confirmation_of_the_smaller_one(study):
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 2.0, 5.0, None, 4.0, 3.0])
    create(study, SMALL_TASK, 8)
    assert study.attributes()[BUDGET] == 8
    do_all(prepare_screening(study, SMALL_TASK, 8), [7.0, 6.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {0, 1, 2, 4}
    # Those of the smaller budget stay, and so does what they have confirmed.
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 8))} == {0, 1, 2, 4, 6, 7}
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
    # What has failed says nothing of other runs.
    duration = property(lambda trial: timedelta(seconds=30 * (trial.state == TrialState.COMPLETE)))
    monkeypatch.setattr(FrozenTrial, "duration", duration)
    assert estimate(study, SMALL_TASK, 2) == ""
    prepare_screening(study, SMALL_TASK, 6)
    do_all(study.screening(2), [9.0, 9.0])
    assert estimate(study, SMALL_TASK, 2) == "about 11.0 more minutes with 2 at a time"
    do_all(study.screening(), [None] * 4)
    assert estimate(study, SMALL_TASK, 2) == "about 10.0 more minutes with 2 at a time"


def test_without_a_winner_the_best_trial_is_exported(study, tmp_path):
    assert export_best(study, SMALL_TASK, decide(study), tmp_path) is None
    do_all(prepare_screening(study, SMALL_TASK, 6), [9.0, 9.0, 1.0, 4.0, 3.0, 2.0])
    path = export_best(study, SMALL_TASK, decide(study), tmp_path)
    assert path.name == "CartPole-v1_not_confirmed.yml" and "trial: 3" in path.read_text()


SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}}


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
        with pytest.raises(StudyStopped, match="ZeroDivisionError"):
            TuningWorker(study, SMALL_TASK).finish(tmp_path)
    monkeypatch.setattr("ppo_plus.zoo.tune.tuner.score", lambda *_: 1.0)
    tune(experiment, SPACE, study, plan, 2, tmp_path)
    assert [trial.state for trial in study.screening().trials()] == [TrialState.COMPLETE] * 2
