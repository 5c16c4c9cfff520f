"""The stages of a study: a screening of many trials, a race of the best ones over more seeds, and a confirmation on
seeds that decided nothing before.

Each stage is an Optuna study of its own with one job per trial. What its jobs are follows from the results of the stage
before, so that every worker that gets there finds the same ones.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.tune.jobs import JOB, Jobs, is_done
from ppo_plus.zoo.tune.plan import Plan, Task, counted

#: What the study remembers, as user attributes.
TASK, BUDGET, ERROR, ID = "ppo_plus", "max_total_trials", "error", "id"

#: What jobs and trials are about, as user attributes.
BASELINE, CANDIDATE, SEED, SETTINGS, SCORES = "baseline", "candidate", "seed", "settings", "scores"


@dataclass(frozen=True)
class Study:
    """A study: its name, and where it is.

    :param name: name of the study
    :param storage: the storage, opened
    """

    name: str
    storage: BaseStorage

    def attributes(self) -> dict[str, Any]:
        """What the study remembers."""
        return optuna.load_study(study_name=self.name, storage=self.storage).user_attrs

    @property
    def id(self) -> str | None:
        """What tells the study from all others, wherever they are; ``None`` before it is created."""
        try:
            return self.attributes().get(ID)
        except KeyError:
            return None

    def set(self, key: str, value: Any) -> None:
        """Remember something."""
        optuna.load_study(study_name=self.name, storage=self.storage).set_user_attr(key, value)

    @property
    def screening(self) -> Jobs:
        """The trials of the search."""
        return Jobs(self.storage, self.name)

    def runs(self, stage: str, max_total_trials: int) -> Jobs:
        """The runs of a later stage. A larger budget has stages of its own: others may be best then.

        :param stage: ``"race"`` or ``"confirmation"``
        :param max_total_trials: the budget of the screening
        """
        return Jobs(self.storage, f"{self.name}, {stage} after {max_total_trials}")


def create(study: Study, task: Task, max_total_trials: int) -> None:
    """Create a study, or go on with it.

    :param study: the study
    :param task: what it is about
    :param max_total_trials: its budget; it may grow
    :raises ValueError: there is one of that name which is about something else
    """
    made = make_study(study.storage, study.name)
    data = task.to_json()
    known = study.attributes()
    if TASK in known and known[TASK] != data:
        names = [key for key in data if known[TASK].get(key) != data[key]]
        raise ValueError(
            f"the study {study.name!r} exists and has another {' and another '.join(names)}: "
            "give the same ones to go on with it, or choose another name with --study-name"
        )
    if not made and TASK not in known and study.screening.study().get_trials(deepcopy=False):
        raise ValueError(f"the study {study.name!r} was not made by this tuner: choose another --study-name")
    study.set(BUDGET, max(max_total_trials, known.get(BUDGET, 0)))
    study.set(ERROR, None)
    if ID not in known:
        study.set(ID, uuid4().hex)
    # Last: it is what workers look for.
    study.set(TASK, data)


def standing(study: Study, where: str) -> str:
    """How far a study is, in a line.

    :param study: the study, created
    :param where: its storage, for people
    """
    trials = study.screening.trials()
    if not trials:
        return f"new study {study.name!r} in {where}"
    n_done, budget = sum(map(is_done, trials)), study.attributes()[BUDGET]
    return f"going on with study {study.name!r} in {where}: {n_done} of {counted(budget, 'trial')} done"


def only_study(storage: BaseStorage) -> str:
    """The name of the only study of this tuner in a storage.

    :raises ValueError: there are none, or several
    """
    names = [study.study_name for study in optuna.get_all_study_summaries(storage) if TASK in study.user_attrs]
    if len(names) != 1:
        found = ", ".join(map(repr, names)) or "none yet: start one with `ppo-plus tune`"
        raise ValueError(f"say which study with --study-name; the storage has {found}")
    return names[0]


def make_study(storage: BaseStorage, name: str) -> bool:
    """Create an Optuna study if there is none of that name; ``True`` for the one process that did."""
    try:
        optuna.create_study(study_name=name, storage=storage, direction="maximize")
        return True
    except DuplicatedStudyError:
        return False


def prepare_screening(study: Study, task: Task, budget: int) -> Jobs:
    """The jobs of the first stage: the baselines, and then what the sampler chooses.

    :param study: the study
    :param task: its task
    :param budget: the number of trials
    """
    baselines = list(task.baselines().items())[:budget]
    space = task.search_space()
    jobs: list[dict[str, Any]] = [{BASELINE: name} for name, _ in baselines]
    jobs += [{} for _ in range(budget - len(baselines))]
    study.screening.fill(jobs, [space.params(experiment) for _, experiment in baselines])
    return study.screening


def prepare_race(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the second stage: more seeds for the best trials."""
    ranked = [trial for trial in ranking(screened(study, budget)) if not is_default(trial)]
    jobs = [_run(trial, seed) for trial in ranked[: plan.n_racing(len(ranked))] for seed in plan.racing_seeds]
    return _prepare(study.runs("race", budget), jobs, study.storage)


def prepare_confirmation(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the last stage: the finalists and the default, on unseen seeds."""
    screening = screened(study, budget)
    best = finalists(screening, study.runs("race", budget).trials(), plan)
    default = [trial for trial in screening if is_default(trial) and has_settings(trial)]
    chosen = [*default, *best] if best else []
    jobs = [_run(trial, seed) for seed in plan.confirmation_seeds for trial in chosen]
    return _prepare(study.runs("confirmation", budget), jobs, study.storage)


def screened(study: Study, budget: int) -> list[FrozenTrial]:
    """The trials of a budget. There may be more: somebody may have given the study a larger one meanwhile."""
    return [trial for trial in study.screening.trials() if trial.user_attrs[JOB] < budget]


def has_settings(trial: FrozenTrial) -> bool:
    """Whether it is known what a trial ran: not if its workers died before it began."""
    return SETTINGS in trial.user_attrs


def finalists(screening: Sequence[FrozenTrial], race: Sequence[FrozenTrial], plan: Plan) -> list[FrozenTrial]:
    """The best trials other than the default, by the mean over all their seeds so far.

    :param screening: the trials of the first stage
    :param race: the runs of the second one; a trial of which one failed is out
    :param plan: the plan
    :return: at most ``n_finalists`` of them, the best first
    """
    further = scores_by_candidate(race)
    ranked = [trial for trial in ranking(screening) if not is_default(trial)]
    if plan.race_seeds:
        ranked = [trial for trial in ranked if len(further.get(trial.user_attrs[JOB], ())) == plan.race_seeds]

    def mean(trial: FrozenTrial) -> float:
        return float(np.mean([*trial.user_attrs[SCORES], *further.get(trial.user_attrs[JOB], ())]))

    return sorted(ranked, key=mean, reverse=True)[: plan.n_finalists]


def is_default(trial: FrozenTrial) -> bool:
    """Whether a screening trial is the default."""
    return trial.user_attrs.get(BASELINE) == "default"


def ranking(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that have a score, the best first."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(complete, key=lambda trial: (-trial.values[0], trial.user_attrs[JOB]))


def score_of(trial: FrozenTrial) -> float | None:
    """The score of a trial or run. A pruned one has none: what Optuna calls its value is its last report."""
    return trial.values[0] if trial.state == TrialState.COMPLETE else None


def scores_by_candidate(runs: Sequence[FrozenTrial]) -> dict[int, list[float]]:
    """The scores of the runs that have one, by the job of their screening trial."""
    scores: dict[int, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.user_attrs[JOB]):
        if run.state == TrialState.COMPLETE:
            scores.setdefault(run.user_attrs[CANDIDATE], []).append(run.values[0])
    return scores


def stage_names(study: Study) -> list[tuple[str, Jobs]]:
    """The stages that have begun."""
    budget = study.attributes().get(BUDGET, 0)
    later = [(stage, study.runs(stage, budget)) for stage in ("race", "confirmation")]
    known = optuna.get_all_study_names(study.storage)
    return [("screening", study.screening), *((stage, jobs) for stage, jobs in later if jobs.name in known)]


def all_done(jobs: Jobs) -> bool:
    """Whether nothing is left to do in a stage that has been prepared."""
    return all(is_done(trial) for trial in jobs.trials())


def _run(trial: FrozenTrial, seed: int) -> dict[str, Any]:
    """A run of a screening trial's settings with another seed, as a job."""
    return {CANDIDATE: trial.user_attrs[JOB], SEED: seed, SETTINGS: trial.user_attrs[SETTINGS]}


def _prepare(jobs: Jobs, wanted: list[dict[str, Any]], storage: BaseStorage) -> Jobs:
    """Fill a later stage. All workers get here at about the same time: the one that creates the study does it, and
    should it die over it, the others do."""
    if not make_study(storage, jobs.name):
        deadline = time.monotonic() + 10
        while len(jobs.trials()) < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.2)
    jobs.fill(wanted)
    return jobs
