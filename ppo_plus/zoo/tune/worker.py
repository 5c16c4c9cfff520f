"""A worker: does jobs of a study, stage after stage, until nothing is left."""

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import NopPruner
from optuna.trial import FrozenTrial, Trial, TrialState

from ppo_plus import CompileError
from ppo_plus.zoo import interrupts
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.attributes import BASELINE, BUDGET, ERROR, SCORES, SEED, SETTINGS, TASK
from ppo_plus.zoo.tune.jobs import Jobs
from ppo_plus.zoo.tune.objective import Diverged, resolve, score
from ppo_plus.zoo.tune.search import check_search, make_pruner, make_sampler
from ppo_plus.zoo.tune.stages import Study, all_done, prepare_confirmation, prepare_race, prepare_screening
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, named_errors, reason
from ppo_plus.zoo.tune.task import TuningTask

#: Seconds to wait when no job is free.
POLL = 1.0

#: Does a claimed trial of some jobs, and returns its value.
Objective = Callable[[Jobs, FrozenTrial], float]


class StudyStopped(Exception):
    """A run raised an error that its hyperparameters did not cause."""


class CannotCompile(Exception):
    """This machine cannot compile a run that another one has compiled; other workers continue."""


class Worker:
    """One process's part in a study.

    :param study: the study, see :func:`ppo_plus.zoo.tune.stages.create`
    :param packages: the packages that the study may import from in this process; ``None``: any
    :param supervision: arguments of :func:`ppo_plus.zoo.envs.make_envs` for environments that may fail: ``restarts`` of
        each run, and ``timeout``
    :raises ValueError: there is no such study, this tuner did not create it, or it imports from other packages
    :raises StorageError: it is damaged
    """

    def __init__(
        self,
        study: Study,
        packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
        supervision: dict[str, Any] | None = None,
    ):
        self.study, self.supervision = study, supervision or {}
        data = study.attributes().get(TASK)
        if data is None:
            raise ValueError(f"there is no study {study.name!r}: start it with `ppo-plus tune`")
        try:
            self.task = TuningTask.from_json(data, packages)
            self.task.search_space()
            check_search(self.task.plan)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise StorageError(f"the study {study.name!r} cannot be worked on: {shortened(reason(error))}") from None

    def work(self) -> None:
        """Do jobs until the study is finished. An error that its hyperparameters did not cause stops the study."""
        with named_errors():
            for jobs, objective in zip(self._stages(), (self._screen, self._run, self._run), strict=True):
                self._do_all(jobs, objective)

    def is_over(self) -> bool:
        """Whether the study is finished."""
        return "confirmation" in self.study.stages() and all(map(all_done, self._stages()))

    def _stages(self) -> Iterator[Jobs]:
        """The jobs of each stage, prepared when its turn comes."""
        # Read once: if it grew between two stages, the later one would follow from trials that are not done.
        budget = self.study.attributes()[BUDGET]
        yield prepare_screening(self.study, self.task, budget)
        yield prepare_race(self.study, self.task.plan, budget)
        yield prepare_confirmation(self.study, self.task.plan, budget)

    def _do_all(self, jobs: Jobs, objective: Objective) -> None:
        while not all_done(jobs):
            interrupts.check()
            self._check()
            claimed = jobs.claim()
            if claimed is None:
                # Others still work, and one of them may die.
                time.sleep(POLL)
            else:
                self._do(jobs, claimed, objective)

    def _do(self, jobs: Jobs, claimed: FrozenTrial, objective: Objective) -> None:
        try:
            with self.study.heartbeats.of(self.study.storage, claimed._trial_id):
                jobs.tell(claimed, TrialState.COMPLETE, objective(jobs, claimed))
        except optuna.TrialPruned:
            jobs.tell(claimed, TrialState.PRUNED)
        except Diverged as error:
            jobs.fail(claimed, str(error))
        except UpdateFinishedTrialError:
            # This worker was silent for so long that it counted as dead: another one has the job.
            return
        except (KeyboardInterrupt, StudyStopped):
            jobs.interrupt(claimed)
            raise
        except CompileError as error:
            jobs.interrupt(claimed)
            raise CannotCompile(f"this machine cannot compile a run of the study: {reason(error)}") from error
        except (*STORAGE_ERRORS, StorageError):
            # Not the study's fault. The job cannot be put back, but without heartbeats it is soon free again.
            raise
        except Exception:
            self.study.set(ERROR, traceback.format_exc())
            jobs.interrupt(claimed)
            raise

    def _screen(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A trial of the search: what the sampler suggests, on the seeds of the screening."""
        plan = self.task.plan
        trial = jobs.trial(claimed, sampler=make_sampler(plan, claimed.number), pruner=make_pruner(plan))
        space = self.task.search_space()
        settings = space.settings(space.sample(trial))
        baseline = claimed.user_attrs.get(BASELINE)
        experiment = self.task.baselines()[baseline] if baseline else self.task.candidate(settings)
        recorded = resolve(experiment, plan, **self.supervision).replace(n_timesteps=plan.n_timesteps).settings()
        trial.set_user_attr(SETTINGS, recorded)
        scores = [self._score(trial, recorded, seed, i) for i, seed in enumerate(plan.screening_seeds)]
        trial.set_user_attr(SCORES, scores)
        return float(np.mean(scores))

    def _run(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A run of a screening trial's settings with another seed."""
        trial = jobs.trial(claimed, pruner=NopPruner())
        return self._score(trial, claimed.user_attrs[SETTINGS], claimed.user_attrs[SEED], 0)

    def _score(self, trial: Trial, settings: dict, seed: int, n_before: int) -> float:  # type: ignore[type-arg]
        plan = self.task.plan
        total = plan.n_seeds * plan.n_timesteps

        def report(timesteps: int, mean_return: float) -> None:
            step = n_before * plan.n_timesteps + timesteps
            trial.report(mean_return, step)
            self._check()
            # At the end pruning saves nothing.
            if step < total and trial.should_prune():
                raise optuna.TrialPruned

        return score(self.task.read(settings), plan, seed, report, **self.supervision)

    def _check(self) -> None:
        """:raises StudyStopped: another worker has stopped the study"""
        error = self.study.attributes().get(ERROR)
        if error:
            raise StudyStopped(f"\n{error}".strip().rpartition("\n")[2])
