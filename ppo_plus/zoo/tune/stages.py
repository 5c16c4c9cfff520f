"""The stages of a study: a screening of many trials, a race of the best ones over more seeds, and a confirmation of the
finalists and the baselines on unseen seeds.

Each stage is an Optuna study with one job per trial. The jobs of a stage follow from the results of the stage before,
so all workers find the same ones.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.tune.attributes import (
    BASELINE,
    BUDGET,
    CANDIDATE,
    ERROR,
    ID,
    JOB,
    SCORES,
    SEED,
    SETTINGS,
    TASK,
    check_types,
)
from ppo_plus.zoo.tune.heartbeats import Heartbeats
from ppo_plus.zoo.tune.jobs import Jobs, is_done
from ppo_plus.zoo.tune.plan import Plan, counted
from ppo_plus.zoo.tune.task import TuningTask

#: Seconds that a process waits for another one to add the jobs of a stage.
PATIENCE = 10


@dataclass(frozen=True)
class Study:
    """A study, by its name and its storage, opened.

    :param heartbeats: how its workers show that they live, the same for all
    """

    name: str
    storage: BaseStorage
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    def attributes(self) -> dict[str, Any]:
        """The user attributes of the study; empty if there is no such study."""
        try:
            study_id = self.storage.get_study_id_from_name(self.name)
        except KeyError:
            return {}
        attributes = self.storage.get_study_user_attrs(study_id)
        check_types(f"the study {self.name!r}", attributes)
        return attributes

    @property
    def id(self) -> str | None:
        """A unique id, also among the studies of other storages; ``None`` before the study is created."""
        return self.attributes().get(ID)

    def set(self, key: str, value: Any) -> None:
        """Set a user attribute."""
        optuna.load_study(study_name=self.name, storage=self.storage).set_user_attr(key, value)

    @property
    def screening(self) -> Jobs:
        """The trials of the search."""
        return Jobs(self.storage, self.name, heartbeats=self.heartbeats)

    def runs(self, stage: str, max_total_trials: int) -> Jobs:
        """The runs of ``"race"`` or ``"confirmation"``. A larger budget has its own, because other trials may be best
        then."""
        name = f"{self.name}, {stage} after {max_total_trials}"
        return Jobs(self.storage, name, (CANDIDATE, SEED), self.heartbeats)

    def stages(self) -> dict[str, Jobs]:
        """The stages that have begun, by name."""
        budget, known = self.attributes().get(BUDGET, 0), optuna.get_all_study_names(self.storage)
        later = {stage: self.runs(stage, budget) for stage in ("race", "confirmation")}
        return {"screening": self.screening, **{stage: jobs for stage, jobs in later.items() if jobs.name in known}}


def create(study: Study, task: TuningTask, max_total_trials: int) -> None:
    """Create a study, or resume it.

    :param max_total_trials: its budget; it may grow
    :raises ValueError: a study of that name has another task
    """
    make_study(study.storage, study.name)
    data, known = task.to_json(), study.attributes()
    if TASK in known and known[TASK] != data:
        names = [key for key in data if known[TASK].get(key) != data[key]]
        raise ValueError(
            f"the study {study.name!r} exists and has another {' and another '.join(names)}: "
            "give the same ones to resume it, or choose another name with --study-name"
        )
    study.set(BUDGET, max(max_total_trials, known.get(BUDGET, 0)))
    study.set(ERROR, None)
    if ID not in known:
        study.set(ID, uuid4().hex)
    # Last, because workers wait for it.
    study.set(TASK, data)


def progress(study: Study, where: str) -> str:
    """The progress of a study in a storage ``where``, in a line."""
    n_done, budget = sum(map(is_done, study.screening.trials())), study.attributes()[BUDGET]
    return f"study {study.name!r} in {where}: {n_done} of {counted(budget, 'trial')} done"


def only_study(storage: BaseStorage) -> str:
    """The name of the only study of this tuner in a storage.

    :raises ValueError: there are none, or several
    """
    names = [name for name in optuna.get_all_study_names(storage) if TASK in Study(name, storage).attributes()]
    if len(names) != 1:
        found = ", ".join(map(repr, names)) or "none yet: start one with `ppo-plus tune`"
        raise ValueError(f"--study-name is needed to choose a study; the storage has {found}")
    return names[0]


def make_study(storage: BaseStorage, name: str) -> bool:
    """Create an Optuna study unless it exists; whether this process created it."""
    try:
        optuna.create_study(study_name=name, storage=storage, direction="maximize")
        return True
    except DuplicatedStudyError:
        return False


def prepare_screening(study: Study, task: TuningTask, budget: int) -> Jobs:
    """The jobs of the first stage: the baselines, then what the sampler chooses; ``budget`` trials."""
    baselines, space = list(task.baselines().items())[:budget], task.search_space()
    jobs: list[dict[str, Any]] = [{BASELINE: name} for name, _ in baselines]
    jobs += [{} for _ in range(budget - len(baselines))]
    study.screening.fill(jobs, [space.params(experiment) for _, experiment in baselines])
    return study.screening


def prepare_race(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the second stage: more seeds for the best trials."""
    ranked = [trial for trial in ranking(screened(study, budget)) if not is_baseline(trial)]
    jobs = [_run(trial, seed) for trial in ranked[: plan.n_racing(len(ranked))] for seed in plan.racing_seeds]
    return _prepare(study.runs("race", budget), jobs)


def prepare_confirmation(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the last stage: the baselines and the finalists, on unseen seeds."""
    screening = screened(study, budget)
    best = finalists(screening, study.runs("race", budget).trials(), plan)
    # A baseline whose workers died before it began has no settings.
    baselines = [trial for trial in screening if is_baseline(trial) and SETTINGS in trial.user_attrs]
    chosen = [*baselines, *best] if best else []
    jobs = [_run(trial, seed) for seed in plan.confirmation_seeds for trial in chosen]
    return _prepare(study.runs("confirmation", budget), jobs)


def screened(study: Study, budget: int) -> list[FrozenTrial]:
    """The trials of a budget. The study has more if its budget has grown meanwhile."""
    return [trial for trial in study.screening.trials() if trial.user_attrs[JOB] < budget]


def finalists(screening: Sequence[FrozenTrial], race: Sequence[FrozenTrial], plan: Plan) -> list[FrozenTrial]:
    """The best trials of the search, best first, by the mean over all their seeds so far. One with a failed run in the
    race is out."""
    further: dict[int, list[float]] = {}
    for run in sorted(race, key=lambda run: run.user_attrs[SEED]):
        if run.state == TrialState.COMPLETE:
            further.setdefault(run.user_attrs[CANDIDATE], []).append(run.values[0])
    ranked = [trial for trial in ranking(screening) if not is_baseline(trial)]
    if plan.race_seeds:
        ranked = [trial for trial in ranked if len(further.get(trial.user_attrs[JOB], ())) == plan.race_seeds]

    def mean(trial: FrozenTrial) -> float:
        return float(np.mean([*trial.user_attrs[SCORES], *further.get(trial.user_attrs[JOB], ())]))

    return sorted(ranked, key=mean, reverse=True)[: plan.n_finalists]


def is_baseline(trial: FrozenTrial) -> bool:
    """Whether a screening trial is a baseline, see :meth:`ppo_plus.zoo.tune.task.TuningTask.baselines`."""
    return BASELINE in trial.user_attrs


def trial_name(trial: FrozenTrial) -> str:
    """Human-readable name of a trial of the screening, or of a run of a later stage."""
    if CANDIDATE in trial.user_attrs:
        return f"trial {trial.user_attrs[CANDIDATE]}, seed {trial.user_attrs[SEED]}"
    return f"trial {trial.user_attrs[JOB]}"


def ranking(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that have a score, best first. (The value of a pruned one in Optuna is its last report.)"""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(complete, key=lambda trial: (-trial.values[0], trial.user_attrs[JOB]))


def all_done(jobs: Jobs) -> bool:
    """Whether a prepared stage is finished."""
    return all(is_done(trial) for trial in jobs.trials())


def _run(trial: FrozenTrial, seed: int) -> dict[str, Any]:
    """A run of a screening trial's settings with another seed, as a job."""
    return {CANDIDATE: trial.user_attrs[JOB], SEED: seed, SETTINGS: trial.user_attrs[SETTINGS]}


def _prepare(jobs: Jobs, wanted: list[dict[str, Any]]) -> Jobs:
    """Add the missing runs to a later stage. All workers get here at about the same time: the one that creates the
    Optuna study adds them; the others do if it takes too long, because it may have died."""
    if not make_study(jobs.storage, jobs.name):
        deadline = time.monotonic() + PATIENCE
        while jobs.missing(wanted) and time.monotonic() < deadline:
            time.sleep(0.2)
    jobs.fill(wanted)
    return jobs
