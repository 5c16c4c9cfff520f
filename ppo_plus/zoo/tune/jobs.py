"""Work that is done exactly once by any number of processes, kept in an Optuna study.

A job is a waiting trial of the study. To claim it is to change its state from waiting to running, which the database
lets one process do. A worker that died leaves a running trial without signs of life: the trial is failed, and another
one, with the same parameters, takes its job over.

Which trial stands for a job is a fold over the study's trials in the order of their numbers, the order in which the
database created them: a trial takes a job over if it names the job's present trial as the one that it replaces. So all
processes agree without a lock, and where two of them replace the same dead trial, the later one counts for nothing.
"""

import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import BaseStorage, fail_stale_trials
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ppo_plus.zoo.tune.storage import record_heartbeat

#: A trial whose worker died so often is given up: it may be what kills them.
MAX_DEATHS = 3

#: What a trial knows of itself, as user attributes.
JOB, REPLACES, DEATHS, WORKER, REASON, INTERRUPTED = "job", "replaces", "deaths", "worker", "reason", "interrupted"


class Jobs:
    """The jobs of a study.

    :param storage: where the study is
    :param name: name of the study, which exists
    """

    def __init__(self, storage: BaseStorage, name: str):
        self.storage = storage
        self.name = name

    def study(self, **options: Any) -> optuna.Study:
        """The study, freshly loaded.

        :param options: ``sampler`` and ``pruner``
        """
        return optuna.load_study(study_name=self.name, storage=self.storage, **options)

    def trials(self) -> list[FrozenTrial]:
        """For each job the trial that stands for it now."""
        return list(holders(self.study().get_trials(deepcopy=False)).values())

    def fill(self, jobs: Sequence[Mapping[str, Any]], params: Sequence[Mapping[str, Any]] = ()) -> None:
        """Add the jobs that are missing. It may be called again, and by many processes.

        :param jobs: what each job is, as user attributes of its trials; job ``i`` is the i-th
        :param params: parameters of the first jobs, where they are given; the sampler chooses the others
        """
        study = self.study()
        known = {trial.user_attrs[JOB] for trial in study.get_trials(deepcopy=False)}
        for number, job in enumerate(jobs):
            if number not in known:
                fixed = dict(params[number]) if number < len(params) else {}
                study.enqueue_trial(fixed, user_attrs={**job, JOB: number})

    def claim(self) -> FrozenTrial | None:
        """Take a job, if one is waiting: the trial is then running, and this process owns it."""
        self.revive()
        for trial in self.trials():
            if trial.state == TrialState.WAITING and self._take(trial):
                return trial
        return None

    def trial(self, claimed: FrozenTrial, **options: Any) -> Trial:
        """A claimed trial as the object that suggests and reports.

        :param claimed: what :meth:`claim` returned
        :param options: ``sampler`` and ``pruner``
        """
        return Trial(self.study(**options), claimed._trial_id)

    def revive(self) -> None:
        """Give the jobs of dead workers to new trials, and end trials that wait for nothing."""
        study = self.study()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False)
        standing = holders(trials)
        for trial in standing.values():
            if is_lost(trial):
                study.add_trial(successor(trial))
        for trial in trials:
            if trial.state == TrialState.WAITING and standing[trial.user_attrs[JOB]] is not trial:
                self.fail(trial, "another trial has its job")

    def take_back(self) -> None:
        """Give all running trials to new ones: for a storage without heartbeats, when no worker is at work."""
        for trial in self.trials():
            if trial.state == TrialState.RUNNING:
                self.interrupt(trial)

    def interrupt(self, trial: FrozenTrial | Trial) -> None:
        """Give a trial up so that its job is done later, by another trial, and not held against it.

        :param trial: a running trial
        """
        try:
            self.storage.set_trial_user_attr(trial._trial_id, INTERRUPTED, True)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            # Taken for dead meanwhile: then it has a successor already.
            return

    def tell(self, trial: FrozenTrial, state: TrialState, value: float | None = None) -> None:
        """Finish a trial that this process owns. One that has ended already, because the process was taken for dead or
        because this is a repetition, stays as it is.

        :param trial: what :meth:`claim` returned
        :param state: complete or pruned
        :param value: its value, if it is complete
        """
        try:
            self.study().tell(trial.number, value, state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            return

    def fail(self, trial: FrozenTrial, reason: str) -> None:
        """Finish a trial that failed for a reason of its own: its job is done.

        :param trial: what :meth:`claim` returned
        :param reason: the reason, for people
        """
        try:
            self.storage.set_trial_user_attr(trial._trial_id, REASON, reason)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return

    def _take(self, trial: FrozenTrial) -> bool:
        # The sign of life comes first: a trial that were running without any would never count as dead.
        record_heartbeat(self.storage, trial._trial_id)
        try:
            if not self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                return False
            self.storage.set_trial_user_attr(trial._trial_id, WORKER, worker_name())
        except UpdateFinishedTrialError:
            return False
        return True


def holders(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    """For each job the trial that stands for it.

    :param trials: all trials of a study
    :return: the trials by the number of their job
    """
    holder: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        job = trial.user_attrs[JOB]
        present = holder.get(job)
        if trial.user_attrs.get(REPLACES) == (None if present is None else present.number):
            holder[job] = trial
    return holder


def is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial failed for no reason of its own, and its job is still to be done."""
    failed = trial.state == TrialState.FAIL and REASON not in trial.user_attrs
    return failed and (trial.user_attrs.get(INTERRUPTED, False) or trial.user_attrs.get(DEATHS, 0) + 1 < MAX_DEATHS)


def is_done(trial: FrozenTrial) -> bool:
    """Whether the job of a trial is done, well or not."""
    return trial.state.is_finished() and not is_lost(trial)


def why_failed(trial: FrozenTrial) -> str:
    """Why a trial failed whose job is done, for people."""
    died = trial.user_attrs.get(DEATHS, 0) + 1
    return str(trial.user_attrs.get(REASON, f"its worker died, {died} times"))


def successor(trial: FrozenTrial) -> FrozenTrial:
    """A waiting trial with the parameters of one that was lost."""
    died = not trial.user_attrs.get(INTERRUPTED, False)
    kept = {key: value for key, value in trial.user_attrs.items() if key not in (WORKER, INTERRUPTED)}
    return create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**kept, REPLACES: trial.number, DEATHS: trial.user_attrs.get(DEATHS, 0) + died},
        system_attrs={key: value for key, value in trial.system_attrs.items() if key == "fixed_params"},
    )


def worker_name() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
