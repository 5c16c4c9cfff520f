"""What the jobs of each stage are, given the results of the one before. Nothing is trained here."""

import re
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import (
    BUDGET,
    SCORES,
    SETTINGS,
    Study,
    best_trial,
    create,
    fitted,
    prepare_confirmation,
    prepare_race,
    prepare_screening,
    stages,
)
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.tuner import estimate
from ppo_plus.zoo.tune.verdict import decide
from ppo_plus.zoo.tune.worker import Worker

PLAN = Plan(2048, race_share=0.5, race_seeds=1, n_finalists=2)
TASK = TuningTask(load_experiment("CartPole-v1"), {"gamma": {"choices": [0.9, 0.99]}}, PLAN).fitted()


@pytest.fixture
def study(tmp_path):
    study = Study("study", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    create(study, TASK, 6)
    return study


def do_all(jobs, scores):
    """Do what is waiting, in order; a score of None is a failed trial."""
    for score in scores:
        trial = jobs.claim()
        jobs.storage.set_trial_user_attr(trial._trial_id, SETTINGS, {"trial": trial.user_attrs[JOB]})
        if score is None:
            jobs.fail(trial, "NaN")
        else:
            jobs.storage.set_trial_user_attr(trial._trial_id, SCORES, [score])
            jobs.tell(trial, TrialState.COMPLETE, score)
    assert jobs.claim() is None


def runs(jobs):
    return [(trial.user_attrs[CANDIDATE], trial.user_attrs[SEED]) for trial in jobs.trials()]


def test_from_stage_to_stage(study):
    screening = prepare_screening(study, TASK, 6)
    do_all(screening, [9.0, 8.0, 5.0, None, 4.0, 3.0])
    # Half of those that have a score, at least as many as finalists: without the baselines, which are confirmed anyway.
    race = prepare_race(study, PLAN, 6)
    assert runs(race) == [(2, 1000), (4, 1000)]
    do_all(race, [1.0, 8.0])
    # Trial 4 has the higher mean over both seeds now. Baselines come first.
    confirmation = prepare_confirmation(study, PLAN, 6)
    seeds = PLAN.confirmation_seeds
    assert runs(confirmation) == [(trial, seed) for seed in seeds for trial in (0, 1, 4, 2)]
    assert confirmation.trials()[2].user_attrs[SETTINGS] == {"trial": 4}
    # Asked again, they are the same.
    assert len(prepare_confirmation(study, PLAN, 6).study().trials) == 40
    assert list(study.stages()) == ["screening", "race", "confirmation"]


def test_a_trial_that_fails_in_the_race_is_out(study):
    do_all(prepare_screening(study, TASK, 6), [9.0, 2.0, 5.0, None, 4.0, 3.0])
    do_all(prepare_race(study, PLAN, 6), [None, 1.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {0, 1, 4}


def test_a_default_that_never_began_is_not_run_again(study):
    screening = prepare_screening(study, TASK, 6)
    screening.fail(screening.claim(), "its worker died")
    do_all(screening, [2.0, 5.0, None, 4.0, 3.0])
    do_all(prepare_race(study, PLAN, 6), [1.0, 8.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {1, 2, 4}


def test_failed_and_pruned_baselines_are_confirmed_too(study):
    """On other seeds they may have a score; without one, nothing can be compared with them."""
    do_all(prepare_screening(study, TASK, 6), [None, None, 5.0, 6.0, 4.0, 3.0])
    do_all(prepare_race(study, PLAN, 6), [1.0, 8.0])
    assert {trial for trial, _ in runs(prepare_confirmation(study, PLAN, 6))} == {0, 1, 2, 3}


def test_baselines_alone_are_not_confirmed(study):
    do_all(prepare_screening(study, TASK, 2), [9.0, 8.0])
    assert runs(prepare_race(study, PLAN, 2)) == runs(prepare_confirmation(study, PLAN, 2)) == []


def test_the_settings_file_decides(study):
    """From the storage to the verdict: the trial that beats the default alone is not exported."""
    do_all(prepare_screening(study, TASK, 6), [1.0, 8.0, 5.0, None, 4.0, 3.0])
    do_all(prepare_race(study, PLAN, 6), [6.0, 5.0])
    confirmation = prepare_confirmation(study, PLAN, 6)
    returns = {0: 1.0, 1: 8.0, 2: 5.0, 4: 4.0}
    while (run := confirmation.claim()) is not None:
        luck = run.user_attrs[SEED] / 1e8
        confirmation.tell(run, TrialState.COMPLETE, returns[run.user_attrs[CANDIDATE]] + luck)
    verdict = decide(study)
    assert list(verdict.baselines) == ["default", "settings file"]
    assert [finalist.name for finalist in verdict.finalists] == ["trial 2", "trial 4"]
    assert verdict.gains[0]["default"].low > 0 > verdict.gains[0]["settings file"].low
    assert verdict.winner is None and str(verdict).startswith("No winner: none of the finalists")


def test_runs_that_are_added_later_are_the_same_for_all(study):
    """Two processes at the same time: of the two trials that they add for a run, one counts, whatever its number."""
    do_all(prepare_screening(study, TASK, 6), [9.0, 8.0, 5.0, None, 4.0, 3.0])
    do_all(prepare_race(study, PLAN, 6), [1.0, 8.0])
    confirmation = prepare_confirmation(study, PLAN, 6)
    wanted = [{key: trial.user_attrs[key] for key in (CANDIDATE, SEED, SETTINGS)} for trial in confirmation.trials()]
    other = Study("other", study.storage).runs("confirmation", 6)
    optuna.create_study(study_name=other.name, storage=study.storage, direction="maximize")
    other.fill([run for run in wanted if run[CANDIDATE] != 1])
    for number in (1, 7):
        other.study().add_trial(create_trial(state=TrialState.WAITING, user_attrs={JOB: number, **wanted[1]}))
    assert len(other.trials()) == 31
    assert set(runs(other)) < set(runs(confirmation))
    other.fill(wanted)
    assert len(other.trials()) == 40 and set(runs(other)) == set(runs(confirmation))


def test_without_a_score_there_is_nothing_to_confirm(study):
    do_all(prepare_screening(study, TASK, 6), [None] * 6)
    assert runs(prepare_race(study, PLAN, 6)) == runs(prepare_confirmation(study, PLAN, 6)) == []
    assert Worker(study).is_over()


def test_a_larger_budget_leaves_the_stages_of_the_smaller_one(study):
    do_all(prepare_screening(study, TASK, 6), [9.0, 2.0, 5.0, None, 4.0, 3.0])
    create(study, TASK, 8)
    assert study.attributes()[BUDGET] == 8
    do_all(prepare_screening(study, TASK, 8), [7.0, 6.0])
    assert runs(prepare_race(study, PLAN, 6)) == [(2, 1000), (4, 1000)]
    assert [trial for trial, _ in runs(prepare_race(study, PLAN, 8))] == [6, 7, 2]
    # And a smaller one changes nothing.
    create(study, TASK, 3)
    assert study.attributes()[BUDGET] == 8


def test_a_time_limits_the_stages_once_the_baselines_have_run(tmp_path, monkeypatch):
    """Time for 60 runs: fewer trials, one finalist. All processes find the same plan in the storage."""
    task = replace(TASK, plan=replace(PLAN, seconds=60.0))
    assert TuningTask.from_json(task.to_json()) == task and "seconds" not in TASK.to_json()["plan"]
    study = Study("timed", open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    create(study, task, 40)
    search = stages(study, task)
    first = next(search)
    assert len(first.trials()) == 2 and estimate(study, task, 2) == ""
    do_all(first, [1.0, 2.0])
    monkeypatch.setattr("ppo_plus.zoo.tune.stages.seconds_of", lambda trials, n_seeds=1: float(len(trials) == 2))
    monkeypatch.setattr("ppo_plus.zoo.tune.tuner.seconds_of", lambda trials, n_seeds=1: 1.0)
    plan, n_trials = fitted(study, task, 40)
    assert (n_trials, plan.n_finalists) == (20, 1)
    runs = "at most 20 runs of the search, 9 of the race and 30 of the confirmation"
    assert re.match(rf"{runs}, with .*: about 0.5 more minutes at most with 2 at a time", estimate(study, task, 2))
    rest = next(search)
    assert len(rest.trials()) == 20 and [next(stages(study, task)).end, rest.end] == [2, 20]
    do_all(rest, [float(i) for i in range(18)])
    race = next(search)
    do_all(race, [1.0] * 9)
    assert len(next(search).trials()) == 30
    assert best_trial(study, plan).user_attrs[JOB] == 19


def test_the_best_trial_is_the_best_of_the_race_or_of_the_search(study):
    assert best_trial(study, PLAN) is None
    do_all(prepare_screening(study, TASK, 6), [9.0, 9.0, 1.0, 4.0, 3.0, 2.0])
    assert best_trial(study, PLAN).user_attrs[JOB] == 3
    do_all(prepare_race(study, PLAN, 6), [0.0, 3.0])
    assert best_trial(study, PLAN).user_attrs[JOB] == 4
