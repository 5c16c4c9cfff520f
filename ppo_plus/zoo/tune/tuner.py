"""The work on a study. Any number of processes may run the same command: each does jobs, and reports in the end."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from ppo_plus.require import is_disk_full
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.installation import ALLOWED_PACKAGES
from ppo_plus.zoo.interrupts import check
from ppo_plus.zoo.tune.jobs import CANDIDATE, SEED, STORAGE_ERRORS, Jobs, StorageError, named_errors
from ppo_plus.zoo.tune.report import TuningVerdict, write_report
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.study import BASELINE, ERROR, RECORDED, SCORES, Study, create, stages
from ppo_plus.zoo.tune.task import PRUNERS, Diverged, Plan, TuningTask, score

#: Seconds to wait when no job is free.
POLL = 1.0


class StudyStopped(Exception):
    """A run raised an error that its hyperparameters did not cause."""


#: Exit codes of a process that works on a study.
EXIT_CODES: dict[type[Exception], int] = {StudyStopped: 1, StorageError: 2}


@dataclass(frozen=True)
class TuningWorker:
    """One process's part in a study."""

    study: Study
    task: TuningTask
    #: ``restarts`` of each run, and ``timeout``, as of :func:`ppo_plus.zoo.experiment.make_envs`.
    supervision: dict[str, Any] = field(default_factory=dict)
    #: Called after each job, and while this process waits for others.
    show: Callable[[], None] = lambda: None

    def finish(self, folder: Path) -> TuningVerdict:
        """Do jobs until the study is finished, and write its report; an error that settings did not cause stops it."""
        with named_errors():
            for jobs in stages(self.study, self.task):
                while not jobs.all_done():
                    check()
                    self._check()
                    if (claimed := jobs.claim()) is None:
                        time.sleep(POLL)  # others still work, and one of them may die
                    else:
                        self._do(jobs, claimed)
                    self.show()
            self.show()
            return write_report(self.study, self.task, folder)

    def _do(self, jobs: Jobs, claimed: FrozenTrial) -> None:
        try:
            with self.study.heartbeats.of(self.study.storage, claimed._trial_id):
                run = self._repeat if CANDIDATE in claimed.user_attrs else self._search
                jobs.finish(claimed, TrialState.COMPLETE, run(jobs, claimed))
        except optuna.TrialPruned:
            jobs.finish(claimed, TrialState.PRUNED)
        except Diverged as error:
            jobs.finish(claimed, TrialState.FAIL, reason=str(error))
        except UpdateFinishedTrialError:
            return  # this worker was silent for so long that it counted as dead: another one has the job
        except (KeyboardInterrupt, StudyStopped):
            jobs.finish(claimed, TrialState.FAIL, interrupted=True)
            raise
        except (*STORAGE_ERRORS, StorageError):
            raise  # the job cannot be put back now, but without heartbeats it is soon free again
        except Exception as error:
            if not is_disk_full(error):
                self.study.set(ERROR, traceback.format_exc())
            jobs.finish(claimed, TrialState.FAIL, interrupted=True)
            raise

    def _search(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """The mean score of what the sampler suggests, on the seeds of the screening."""
        plan = self.task.plan
        trial = jobs.trial(claimed, sampler=plan.make_sampler(claimed.number), pruner=PRUNERS[plan.pruner](plan))
        settings = self.task.search_space().sample(trial)
        baseline = claimed.user_attrs.get(BASELINE)
        experiment = self.task.baselines()[baseline] if baseline else self.task.candidate(settings)
        recorded = experiment.replace(n_timesteps=plan.n_timesteps).settings()
        trial.set_user_attr(RECORDED, recorded)
        scores = list[float]()
        for seed in plan.seeds("screening"):
            scores.append(self._score(trial, recorded, seed, scores))
        trial.set_user_attr(SCORES, scores)
        return fmean(scores)

    def _repeat(self, jobs: Jobs, claimed: FrozenTrial) -> float:
        """A run of a screening trial's settings with another seed."""
        trial, run = jobs.trial(claimed, pruner=optuna.pruners.NopPruner()), claimed.user_attrs
        return self._score(trial, run[RECORDED], run[SEED], [])

    def _score(self, trial: Trial, settings: dict[str, Any], seed: int, before: list[float]) -> float:
        """The score on one of the trial's seeds, given those ``before``. What is reported is the mean with them."""
        plan = self.task.plan
        total = plan.n_seeds * plan.n_timesteps

        def report(timesteps: int, mean_return: float) -> None:
            step = len(before) * plan.n_timesteps + timesteps
            self._check()
            trial.report(fmean([*before, mean_return]), step)
            if step < total and trial.should_prune():  # at the end pruning saves nothing
                raise optuna.TrialPruned

        return score(self.task.read(settings), plan, seed, report, **self.supervision)

    def _check(self) -> None:
        """:raises StudyStopped: another worker has stopped the study"""
        if error := self.study.attributes().get(ERROR):
            raise StudyStopped(error)


def tune(
    experiment: Experiment,
    space: dict[str, Any] | None,
    study: Study,
    plan: Plan,
    max_total_trials: int,
    folder: str | Path = "logs/tune",
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
    gym_packages: tuple[str, ...] = (),
) -> TuningVerdict:
    """Search for hyperparameters, confirm the best ones on unseen seeds, and export a winner. The same call again
    resumes the study; in several processes, they share its jobs. If it is finished, only the report is written.

    :param experiment: what is tuned; the default and its own settings are the baselines
    :param space: contents of a search-space file; ``None`` for the package's own
    :param max_total_trials: trials of the search, exactly; finished, pruned and failed ones count, each once
    :param folder: where the report goes
    :param packages: what settings may import from; ``None``: from anywhere
    :param gym_packages: what you imported because it registers environments; part of the exported command
    :raises ValueError: an argument is wrong, or the study is about something else
    :raises StudyStopped: a run raised an error that its hyperparameters did not cause
    :raises StorageError: the storage is unavailable; the same call resumes the study
    """
    space = read_space() if space is None else space
    task = TuningTask(experiment, space, plan, packages, gym_packages).checked()
    create(study, task, max_total_trials)
    return TuningWorker(study, task).finish(Path(folder))
