"""A worker: one process that does jobs of a study, stage after stage, until nothing is left."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from ppo_plus.envs.supervised.workers import DISK_FULL
from ppo_plus.zoo import interrupts
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.installation import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.jobs import CANDIDATE, SEED, Heartbeats, Jobs
from ppo_plus.zoo.tune.objective import Diverged, score
from ppo_plus.zoo.tune.stages import BASELINE, ERROR, SCORES, SETTINGS, TASK, Study, stages
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, named_errors, open_storage, reason
from ppo_plus.zoo.tune.task import TuningTask

#: Seconds to wait when no job is free.
POLL = 1.0


class StudyStopped(Exception):
    """A run raised an error that its hyperparameters did not cause."""


#: Exit codes of a process that works on a study.
EXIT_CODES: dict[type[Exception], int] = {StudyStopped: 1, StorageError: 2}


class Worker:
    """One process's part in a study, which may import from some packages; ``None``: from any. ``supervision`` has
    ``restarts`` of each run and ``timeout`` for environments that may fail.

    :raises ValueError: there is no such study, or it is damaged or imports from other packages
    """

    def __init__(
        self, study: Study, packages: Collection[str] | None = ALLOWED_PACKAGES, supervision: Mapping[str, Any] = {}
    ):
        self.study, self.supervision = study, supervision
        data = study.attributes().get(TASK)
        if data is None:
            raise ValueError(f"there is no study {study.name!r}: start it with the command tune")
        try:
            self.task = TuningTask.from_json(data, packages)
            self.task.search_space()
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise StorageError(f"the study {study.name!r} cannot be worked on: {shortened(reason(error))}") from None

    def work(self) -> None:
        """Do jobs until the study is finished. An error that its hyperparameters did not cause stops the study."""
        with named_errors():
            for jobs in stages(self.study, self.task):
                self._do_all(jobs)

    def is_over(self) -> bool:
        """Whether the study is finished."""
        return "confirmation" in self.study.stages() and all(jobs.all_done() for jobs in stages(self.study, self.task))

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
            if getattr(error, "errno", None) not in DISK_FULL:
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
        scores = [self._score(trial, recorded, seed, i) for i, seed in enumerate(plan.screening_seeds)]
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
        for package in order["gym_packages"]:
            import_module(package)
        study = Study(order["study"], open_storage(order["url"]), Heartbeats(order["grace_period"]))
        Worker(study, order["packages"], order["supervision"]).work()


def _end_with_tuner() -> None:
    """Interrupt this worker when its tuner is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
