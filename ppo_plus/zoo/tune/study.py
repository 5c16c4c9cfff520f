"""A study: its stages, and the worker that does their jobs.

The stages are a screening of many trials, a race of the best ones over more seeds, and a confirmation of the finalists
and the baselines on unseen seeds. Each stage is an Optuna study with one job per trial. The jobs of a stage follow from
the results of the stage before, so all workers find the same ones.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any
from uuid import uuid4

import numpy as np
import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from ppo_plus.require import is_disk_full
from ppo_plus.zoo import interrupts
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, import_packages
from ppo_plus.zoo.tune.jobs import (
    CANDIDATE,
    JOB,
    SEED,
    STORAGE_ERRORS,
    Heartbeats,
    Jobs,
    StorageError,
    is_done,
    named_errors,
    open_storage,
    reason,
)
from ppo_plus.zoo.tune.task import Diverged, Plan, TuningTask, counted, score

#: User attributes of a study.
TASK, BUDGET, ERROR, ID = "ppo_plus", "max_total_trials", "error", "id"
#: User attributes of a trial.
BASELINE, SETTINGS, SCORES = "baseline", "settings", "scores"
#: Seconds that a process waits for another one to add the jobs of a stage.
PATIENCE = 10


@dataclass(frozen=True)
class Study:
    """A study, by its name and its storage. All of its workers need the same grace period of heartbeats."""

    name: str
    storage: BaseStorage
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    def attributes(self) -> dict[str, Any]:
        """The user attributes of the study; empty if there is no such study."""
        try:
            study_id = self.storage.get_study_id_from_name(self.name)
        except KeyError:
            return {}
        return self.storage.get_study_user_attrs(study_id)

    @property
    def budget(self) -> int:
        """The number of trials in the search."""
        return self.attributes().get(BUDGET, 0)  # type: ignore[no-any-return]

    def set(self, key: str, value: Any) -> None:
        """Set a user attribute."""
        self.screening.study().set_user_attr(key, value)

    @property
    def screening(self) -> Jobs:
        """The trials of the search."""
        return Jobs(self.storage, self.name, self.heartbeats)

    def screened(self, budget: int) -> list[FrozenTrial]:
        """The screening trials of a budget. The study has more if its budget has grown meanwhile."""
        return [trial for trial in self.screening.trials() if trial.user_attrs[JOB] < budget]

    def runs(self, stage: str, budget: int) -> Jobs:
        """The runs of ``"race"`` or ``"confirmation"``; a larger budget, with other best trials, has separate ones."""
        return Jobs(self.storage, f"{self.name}, {stage} after {budget}", self.heartbeats)

    def begun_stages(self) -> dict[str, Jobs]:
        """The stages that have begun, by name."""
        known, budget = optuna.get_all_study_names(self.storage), self.budget
        later = {stage: self.runs(stage, budget) for stage in ("race", "confirmation")}
        return {"screening": self.screening, **{stage: jobs for stage, jobs in later.items() if jobs.name in known}}

    def progress(self, where: str) -> str:
        """How far the search is, in a line; ``where`` is the storage."""
        n_done = sum(map(is_done, self.screening.trials()))
        return f"study {self.name!r} in {where}: {n_done} of {counted(self.budget, 'trial')} done"


def create(study: Study, task: TuningTask, max_total_trials: int) -> None:
    """Create a study, or resume it with the same or a larger budget.

    :raises ValueError: a study of that name has another task
    """
    optuna.create_study(study_name=study.name, storage=study.storage, direction="maximize", load_if_exists=True)
    data, known = task.to_json(), study.attributes()
    if TASK in known and known[TASK] != data:
        names = [key for key in data if known[TASK].get(key) != data[key]]
        raise ValueError(
            f"the study {study.name!r} exists and has another {' and another '.join(names)}: "
            "give the same ones to resume it, or choose another name with --study-name"
        )
    study.set(BUDGET, max(max_total_trials, study.budget))
    study.set(ERROR, None)
    if ID not in known:
        study.set(ID, uuid4().hex)
    # Last, because workers wait for it.
    study.set(TASK, data)


def read_task(study: Study, packages: Collection[str] | None = ALLOWED_PACKAGES) -> TuningTask:
    """The task of a study, which may import from some packages; ``None``: from any.

    :raises ValueError: there is no such study, or it is damaged or imports from other packages
    """
    data = study.attributes().get(TASK)
    if data is None:
        raise ValueError(f"there is no study {study.name!r}: start it with the command tune")
    try:
        task = TuningTask.from_json(data, packages)
        task.search_space()
        return task
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise StorageError(f"the study {study.name!r} cannot be worked on: {shortened(reason(error))}") from None


def prepare_screening(study: Study, task: TuningTask, budget: int) -> Jobs:
    """The jobs of the first stage: the baselines, then what the sampler chooses; ``budget`` trials."""
    baselines, space = task.baselines(), task.search_space()
    jobs: list[dict[str, Any]] = [{BASELINE: name} for name in baselines] + [{} for _ in range(budget)]
    study.screening.fill(jobs[:budget], [space.params(experiment) for experiment in baselines.values()])
    return study.screening


def prepare_race(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the second stage: more seeds for the best trials."""
    ranked = ranked_candidates(study.screened(budget))
    jobs = [_run(trial, seed) for trial in ranked[: plan.n_racing(len(ranked))] for seed in plan.seeds("race")]
    return _prepare(study.runs("race", budget), jobs)


def prepare_confirmation(study: Study, plan: Plan, budget: int) -> Jobs:
    """The jobs of the last stage: the baselines and the finalists, on unseen seeds."""
    screening = study.screened(budget)
    best = finalists(screening, study.runs("race", budget).trials(), plan)
    # A baseline whose workers died before it began has no settings.
    baselines = [trial for trial in screening if is_baseline(trial) and SETTINGS in trial.user_attrs]
    chosen = [*baselines, *best] if best else []
    jobs = [_run(trial, seed) for seed in plan.seeds("confirmation") for trial in chosen]
    return _prepare(study.runs("confirmation", budget), jobs)


def finalists(screening: Sequence[FrozenTrial], race: Sequence[FrozenTrial], plan: Plan) -> list[FrozenTrial]:
    """The best trials of the search by the mean over all seeds, best first, without those that failed in the race."""
    ranked = ranked_candidates(screening)
    scores: dict[int, list[float]] = {trial.user_attrs[JOB]: list(trial.user_attrs[SCORES]) for trial in ranked}
    for run in race:
        if run.state == TrialState.COMPLETE:
            scores[run.user_attrs[CANDIDATE]].append(run.values[0])
    whole = [trial for trial in ranked if len(scores[trial.user_attrs[JOB]]) == plan.n_seeds + plan.race_seeds]
    return sorted(whole, key=lambda trial: -fmean(scores[trial.user_attrs[JOB]]))[: plan.n_finalists]


def stages(study: Study, task: TuningTask) -> Iterator[Jobs]:
    """The jobs of each stage, prepared when its turn comes."""
    # Read once: if it grew between two stages, the later one would follow from trials that are not done.
    budget = study.budget
    search = prepare_screening(study, task, budget)
    if task.plan.seconds is not None:
        yield replace(search, end=min(budget, len(task.baselines())))
    plan, n_trials = plan_in_time(study, task, budget)
    yield replace(search, end=n_trials)
    yield prepare_race(study, plan, budget)
    yield prepare_confirmation(study, plan, budget)


def is_over(study: Study, task: TuningTask) -> bool:
    """Whether a study is finished."""
    return "confirmation" in study.begun_stages() and all(jobs.all_done() for jobs in stages(study, task))


def plan_in_time(study: Study, task: TuningTask, budget: int) -> tuple[Plan, int]:
    """The plan and the number of trials; with a time, all workers derive both from the times of the baselines."""
    plan, baselines = task.plan, [trial for trial in study.screened(budget) if is_baseline(trial)]
    seconds = seconds_of(baselines, plan.n_seeds)
    if plan.seconds is None or not seconds:
        return plan, budget
    return plan.within(plan.seconds / seconds, budget, len(baselines))


def seconds_of(trials: Sequence[FrozenTrial], n_seeds: int = 1) -> float:
    """The mean time of a run of these trials, as far as they have ended; 0 if none has."""
    times = [trial.duration.total_seconds() / n_seeds for trial in trials if trial.duration is not None]
    return fmean(times) if times else 0.0


def best_trial(study: Study, plan: Plan) -> FrozenTrial | None:
    """The best trial that is not a baseline: the best one of the race, or of the search if there was no race."""
    stages, screening = study.begun_stages(), study.screened(study.budget)
    raced = finalists(screening, stages["race"].trials(), plan) if "race" in stages else []
    return next(iter([*raced, *ranked_candidates(screening)]), None)


def is_baseline(trial: FrozenTrial) -> bool:
    """Whether a screening trial is a baseline, see :meth:`ppo_plus.zoo.tune.task.TuningTask.baselines`."""
    return BASELINE in trial.user_attrs


def ranking(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that have a score, best first. (The value of a pruned one in Optuna is its last report.)"""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(complete, key=lambda trial: (-trial.values[0], trial.user_attrs[JOB]))


def ranked_candidates(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The :func:`ranking` without the baselines."""
    return [trial for trial in ranking(trials) if not is_baseline(trial)]


def _run(trial: FrozenTrial, seed: int) -> dict[str, Any]:
    """A run of a screening trial's settings with another seed, as a job."""
    return {CANDIDATE: trial.user_attrs[JOB], SEED: seed, SETTINGS: trial.user_attrs[SETTINGS]}


def _prepare(jobs: Jobs, wanted: list[dict[str, Any]]) -> Jobs:
    """Add the missing runs to a later stage. All workers get here at about the same time: the one that creates the
    Optuna study adds them; the others do if it takes too long, because it may have died."""
    try:
        optuna.create_study(study_name=jobs.name, storage=jobs.storage, direction="maximize")
    except DuplicatedStudyError:
        deadline = time.monotonic() + PATIENCE
        while jobs.missing(wanted) and time.monotonic() < deadline:
            time.sleep(0.2)
    jobs.fill(wanted)
    return jobs


#: Seconds to wait when no job is free.
POLL = 1.0


class StudyStopped(Exception):
    """A run raised an error that its hyperparameters did not cause."""


#: Exit codes of a process that works on a study.
EXIT_CODES: dict[type[Exception], int] = {StudyStopped: 1, StorageError: 2}


@dataclass(frozen=True)
class TuningWorker:
    """One process's part in a study. ``supervision`` has ``restarts`` of each run and ``timeout`` for environments that
    may fail."""

    study: Study
    task: TuningTask
    supervision: Mapping[str, Any] = field(default_factory=dict)

    def work(self) -> None:
        """Do jobs until the study is finished. An error that its hyperparameters did not cause stops the study."""
        with named_errors():
            for jobs in stages(self.study, self.task):
                self._do_all(jobs)

    def _do_all(self, jobs: Jobs) -> None:
        while not jobs.all_done():
            interrupts.check()
            self._check()
            claimed = jobs.claim()
            if claimed is None:
                time.sleep(POLL)  # others still work, and one of them may die
            else:
                self._do(jobs, claimed)

    def _do(self, jobs: Jobs, claimed: FrozenTrial) -> None:
        try:
            with self.study.heartbeats.of(self.study.storage, claimed._trial_id):
                run = self._repeat if CANDIDATE in claimed.user_attrs else self._search
                jobs.tell(claimed, TrialState.COMPLETE, run(jobs, claimed))
        except optuna.TrialPruned:
            jobs.tell(claimed, TrialState.PRUNED)
        except Diverged as error:
            jobs.fail(claimed, str(error))
        except UpdateFinishedTrialError:
            return  # this worker was silent for so long that it counted as dead: another one has the job
        except (KeyboardInterrupt, StudyStopped):
            jobs.interrupt(claimed)
            raise
        except (*STORAGE_ERRORS, StorageError):
            raise  # the job cannot be put back now, but without heartbeats it is soon free again
        except Exception as error:
            if not is_disk_full(error):
                self.study.set(ERROR, traceback.format_exc())
            jobs.interrupt(claimed)
            raise

    def _search(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A trial of the search: what the sampler suggests, on the seeds of the screening."""
        plan = self.task.plan
        trial = jobs.trial(claimed, sampler=plan.make_sampler(claimed.number), pruner=plan.make_pruner())
        space = self.task.search_space()
        settings = space.settings(space.sample(trial))
        baseline = claimed.user_attrs.get(BASELINE)
        experiment = self.task.baselines()[baseline] if baseline else self.task.candidate(settings)
        recorded = experiment.replace(n_timesteps=plan.n_timesteps).settings()
        trial.set_user_attr(SETTINGS, recorded)
        scores = [self._score(trial, recorded, seed, i) for i, seed in enumerate(plan.seeds("screening"))]
        trial.set_user_attr(SCORES, scores)
        return float(np.mean(scores))

    def _repeat(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A run of a screening trial's settings with another seed."""
        trial = jobs.trial(claimed, pruner=optuna.pruners.NopPruner())
        return self._score(trial, claimed.user_attrs[SETTINGS], claimed.user_attrs[SEED], 0)

    def _score(self, trial: Trial, settings: dict, seed: int, n_before: int) -> float:  # type: ignore[type-arg]
        """The score on one of the trial's seeds, the first of which are reported already."""
        plan = self.task.plan
        total = plan.n_seeds * plan.n_timesteps

        def report(timesteps: int, mean_return: float) -> None:
            step = n_before * plan.n_timesteps + timesteps
            trial.report(mean_return, step)
            self._check()
            if step < total and trial.should_prune():  # at the end pruning saves nothing
                raise optuna.TrialPruned

        return score(self.task.read(settings), plan, seed, report, **self.supervision)

    def _check(self) -> None:
        """:raises StudyStopped: another worker has stopped the study"""
        error = self.study.attributes().get(ERROR)
        if error:
            raise StudyStopped(f"\n{error}".strip().rpartition("\n")[2])


def run_worker() -> None:
    """The main function of a worker process. It reads its orders from standard input, which the tuner keeps open."""
    with interrupts.exit_codes(EXIT_CODES):
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return  # the tuner was killed before it had written everything
        order = json.loads(line)
        threading.Thread(target=_end_with_tuner, daemon=True).start()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        import_packages(order["gym_packages"])
        study = Study(order["study"], open_storage(order["url"]), Heartbeats(order["grace_period"]))
        TuningWorker(study, read_task(study, order["packages"]), order["supervision"]).work()


def _end_with_tuner() -> None:
    """Interrupt this worker when its tuner is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
