"""Jobs that any number of processes do exactly once, kept in an Optuna study, and the storages of studies.

A job is a waiting trial of the study. A process claims it by changing its state from waiting to running, which the
storage allows once. A worker that dies leaves a running trial without heartbeats: the trial is set to failed, and a
new trial with the same parameters takes over its job. (Optuna's ``RetryFailedTrialCallback`` does so as well, but
loses the trial if its process is killed in between, and does not put back the trial of a worker that is interrupted.
``Study.optimize`` draws a new trial whenever none is waiting, so that several processes exceed a budget.)

The trial of a job is found by going through the study's trials in the order of their creation: a trial takes over a
job if it names the job's current trial as the one that it replaces. So all processes agree without a lock, and if two
of them replace the same dead trial, the later one is ignored, as are trials that were added with Optuna itself.

In the storages, claiming a trial is atomic, and servers may restart.
"""

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.storages.journal._file import get_lock_file
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError, SQLAlchemyError

from ppo_plus.require import is_disk_full
from ppo_plus.saving.files import append_lines
from ppo_plus.zoo.installation import without_password
from ppo_plus.zoo.interrupts import check

#: What Optuna raises when a database is unavailable.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)
#: Seconds to wait for a connection, another process's lock, or an unavailable server.
TIMEOUT = 60


class StorageError(ValueError):
    """A storage that cannot be used: unavailable, of an unknown kind, or not Optuna's."""


def open_storage(url: str) -> BaseStorage:
    """Open a storage, and create its file or its tables if it is new.

    :param url: ``file.log`` (a journal), ``sqlite:///file.db`` or ``postgresql+psycopg://user@host/database``
    :raises StorageError: it cannot be used; the message is one line, without the password
    """
    with named_errors(f"cannot use the storage {without_password(url)!r}", (Exception,)):
        is_journal = url.endswith(".log") and "://" not in url
        storage = JournalStorage(_JournalFile(Path(url).absolute())) if is_journal else _open_database(url)
        patience = TIMEOUT if url.startswith("postgresql") else 0
        for name, method in vars(BaseStorage).items():
            if callable(method) and not name.startswith("_"):
                setattr(storage, name, _robust(getattr(storage, name), patience))
        return storage


class _JournalFile(JournalFileBackend):
    """Optuna's file of records, one a line, without the part of a line that a killed process or a full disk left. Its
    lock is one that network file systems have as well: a file that is created exclusively. Optuna removes the lock of a
    process that was killed after 30 seconds."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.lock = path, JournalFileOpenLock(str(path))
        super().__init__(str(path), self.lock)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            with get_lock_file(self.lock), self.path.open("r+b") as file:
                append_lines(file, "".join(f"{json.dumps(log)}\n" for log in logs).encode())
        except RuntimeError as error:  # this process paused for so long that another one took its lock
            raise StorageInternalError(f"{self.path}: {error}") from error


def _open_database(url: str) -> BaseStorage:
    kind = url.partition(":")[0]
    sqlite = kind.partition("+")[0] == "sqlite"
    if not sqlite and kind != "postgresql+psycopg":
        postgresql = "postgresql+psycopg://... (pip install 'psycopg[binary]')"
        raise ValueError(f"{kind} is not supported: use FILE.log, sqlite:///FILE or {postgresql}")
    address = make_url(url)
    if sqlite:
        Path(address.database or "").parent.mkdir(parents=True, exist_ok=True)
    # SQLite's transactions are ours to begin.
    connection = {"timeout": TIMEOUT, "isolation_level": None} if sqlite else {"connect_timeout": TIMEOUT}
    # Two processes that begin a study would both make its tables: in PostgreSQL, the second one tries again.
    alone = get_lock_file(JournalFileOpenLock(address.database)) if sqlite and address.database else nullcontext()
    with alone:
        make = _robust(RDBStorage, 10, (IntegrityError, ProgrammingError))
        database = make(address.render_as_string(hide_password=False), {"connect_args": connection})
    if sqlite:
        # A transaction takes the lock at its first statement, not at its first *write*: two processes that read a
        # trial's state and then write it would both find it waiting. (PostgreSQL has SELECT ... FOR UPDATE.) From
        # https://docs.sqlalchemy.org/en/20/dialects/sqlite.html#pysqlite-serializable
        begin = "BEGIN IMMEDIATE"
        sqlalchemy.event.listen(database.engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    # With Optuna's cache around it: finished trials are read once, however often a study is looked at.
    return get_storage(database)


@contextmanager
def named_errors(
    message: str = "the storage is unavailable", kinds: tuple[type[Exception], ...] = STORAGE_ERRORS
) -> Iterator[None]:
    """Turn errors of a storage into a :class:`StorageError` of one line, a full disk into ``OSError``."""
    try:
        yield
    except kinds as error:
        why = f"{message}: {reason(error)}"
        is_full = "disk is full" in why or is_disk_full(_cause(error))  # SQLite's has no number
        raise (OSError(errno.ENOSPC, why) if is_full else StorageError(why)) from error


def reason(error: BaseException) -> str:
    """The cause of a database's error in one line."""
    cause = getattr(_cause(error), "orig", None) or _cause(error)
    return " ".join(str(cause).split()) or type(cause).__name__


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ or error if isinstance(error, StorageInternalError) else error


def _robust(
    method: Callable[..., Any],
    patience: float,
    kinds: tuple[type[Exception], ...] = (OperationalError, InterfaceError),
) -> Callable[..., Any]:
    """A method of a storage that is called again for ``patience`` seconds after errors of some kinds (lost and refused
    connections). What a call did before is done twice, which is safe: of two trials of one job one counts, a running
    trial that no process owns counts as dead after the grace period, and one that has ended stays unchanged."""

    def call(*args: object, **options: object) -> Any:
        deadline = time.monotonic() + patience
        while True:
            try:
                return method(*args, **options)
            except STORAGE_ERRORS as error:
                if not isinstance(_cause(error), kinds) or time.monotonic() >= deadline:
                    raise
            except OSError as error:  # a journal's
                raise StorageInternalError from error
            check()
            time.sleep(1)

    return call


#: User attributes that identify a job: a screening trial by its number, a run of its settings also by the seed.
JOB, CANDIDATE, SEED = "job", "candidate", "seed"
#: User attributes of a trial: what it replaces, who does it and how it ended.
REPLACES, DEATHS, WORKER, REASON, INTERRUPTED = "replaces", "deaths", "worker", "reason", "interrupted"
#: User attribute of a running trial: anything that changes while its worker lives.
HEARTBEAT = "heartbeat"
#: After so many dead workers a trial has failed: it may be what kills them.
MAX_DEATHS = 3


class Heartbeats:
    """A number in an attribute of a running trial that its worker changes four times in a grace period (in seconds). A
    worker counts as dead when the number has not changed for that period, on the clock of the process that looks.

    (Optuna's own end with the first write that fails, and are dates: a clock that jumps ends living workers' trials.)
    """

    def __init__(self, grace_period: float = 60):
        self.interval, self.grace_period, self.clock = grace_period / 4, grace_period, time.monotonic
        #: By trial and heartbeat: since when it is the same.
        self._seen: dict[tuple[int, Any], float] = {}

    def is_silent(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a running trial, as it was just read, counts as dead."""
        now = self.clock()
        return now - self._seen.setdefault((trial._trial_id, trial.user_attrs.get(HEARTBEAT)), now) >= self.grace_period

    @contextmanager
    def of(self, storage: BaseStorage, trial_id: int) -> Iterator[None]:
        """Record heartbeats of a trial, from another thread, while the block runs."""
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(storage, trial_id, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat(self, storage: BaseStorage, trial_id: int, done: threading.Event) -> None:
        while not done.wait(self.interval):
            try:
                storage.set_trial_user_attr(trial_id, HEARTBEAT, time.monotonic())
            except UpdateFinishedTrialError:
                break  # it counted as dead; the worker's next report raises the same error
            except (*STORAGE_ERRORS, KeyboardInterrupt):
                continue  # until the grace period is over, nothing is lost; an interrupt is for the main thread
        storage.remove_session()


@dataclass(frozen=True)
class Jobs:
    """The jobs of an Optuna study that exists."""

    storage: BaseStorage
    name: str
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    #: Only the jobs below this number; ``None``: all.
    end: int | None = None

    def study(self, sampler: BaseSampler | None = None, pruner: BasePruner | None = None) -> optuna.Study:
        """The study, freshly loaded."""
        return optuna.load_study(study_name=self.name, storage=self.storage, sampler=sampler, pruner=pruner)

    def trials(self) -> list[FrozenTrial]:
        """The current trial of each job."""
        current = holders(self.study().get_trials(deepcopy=False)).values()
        return [trial for trial in current if self.end is None or trial.user_attrs[JOB] < self.end]

    def all_done(self) -> bool:
        """Whether no job is left."""
        return all(map(is_done, self.trials()))

    def fill(self, jobs: Sequence[Mapping[str, Any]], params: Sequence[dict[str, Any]] = ()) -> None:
        """Add the jobs that are missing, given by the user attributes of their trials. Many processes may call it, and
        call it again. Some of the first jobs may have fixed parameters."""
        study, fixed, known = self.study(), dict(enumerate(params)), {job_key(one.user_attrs) for one in self.trials()}
        for place, job in enumerate(jobs):
            if job_key({JOB: place, **job}) not in known:
                study.enqueue_trial(fixed.get(place, {}), user_attrs={JOB: place, **job})

    def claim(self) -> FrozenTrial | None:
        """Claim a waiting job, if there is one: its trial is then running, and belongs to this process. Jobs of dead
        workers are given to new trials before."""
        for trial in self.trials():
            if trial.state == TrialState.RUNNING and self.heartbeats.is_silent(trial):
                self.finish(trial, TrialState.FAIL)
        for trial in filter(is_lost, self.trials()):
            self._replace(trial)
        for trial in (trial for trial in self.trials() if trial.state == TrialState.WAITING):
            with suppress(UpdateFinishedTrialError):
                if self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                    self.storage.set_trial_user_attr(trial._trial_id, WORKER, f"{socket.gethostname()}:{os.getpid()}")
                    return trial
        return None

    def _replace(self, trial: FrozenTrial) -> None:
        """Add a waiting trial with the parameters of one that was lost."""
        died = not trial.user_attrs.get(INTERRUPTED, False)
        kept = {key: value for key, value in trial.user_attrs.items() if key not in (WORKER, INTERRUPTED, HEARTBEAT)}
        kept |= {REPLACES: trial.number, DEATHS: trial.user_attrs.get(DEATHS, 0) + died}
        self.study().enqueue_trial(trial.system_attrs.get("fixed_params", {}) | trial.params, kept)

    def trial(self, trial: FrozenTrial, sampler: BaseSampler | None = None, pruner: BasePruner | None = None) -> Trial:
        """A claimed trial as an Optuna ``Trial``, which suggests with a sampler and reports to a pruner."""
        return Trial(self.study(sampler, pruner), trial._trial_id)

    def finish(
        self, trial: FrozenTrial, state: TrialState, value: float | None = None, **attributes: str | bool
    ) -> None:
        """End a trial that this process owns. One that has ended already stays unchanged: this process counted as dead,
        and the trial may have a successor, or the call is a repetition.

        :param attributes: ``reason``, why it failed (such a trial is done; the job of any other failed one is done
            again), or ``interrupted``, if the worker was asked to end, so that it does not count as a death
        """
        with suppress(UpdateFinishedTrialError):
            for name, given in attributes.items():
                self.storage.set_trial_user_attr(trial._trial_id, name, given)
            self.study().tell(trial.number, value, state, skip_if_finished=True)


def job_key(attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """What identifies a job: its number, or for a run of a later stage the candidate and the seed."""
    return attributes.get(CANDIDATE, attributes.get(JOB)), attributes.get(SEED)


def holders(trials: Sequence[FrozenTrial]) -> dict[tuple[Any, Any], FrozenTrial]:
    """The current trial of each job, by :func:`job_key`."""
    holder: dict[tuple[Any, Any], FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        key = job_key(trial.user_attrs)
        present = holder.get(key)
        if JOB in trial.user_attrs and trial.user_attrs.get(REPLACES) == (present and present.number):
            holder[key] = trial
    return holder


def is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial failed because its worker ended, and its job is still to be done."""
    failed = trial.state == TrialState.FAIL and REASON not in trial.user_attrs
    return failed and (trial.user_attrs.get(INTERRUPTED, False) or trial.user_attrs.get(DEATHS, 0) + 1 < MAX_DEATHS)


def is_done(trial: FrozenTrial) -> bool:
    """Whether the job of a trial is done, with or without success."""
    return trial.state.is_finished() and not is_lost(trial)


def outcome(trial: FrozenTrial) -> str:
    """Human-readable result of a trial whose job is done."""
    match trial.state:
        case TrialState.COMPLETE:
            return f"complete {trial.value:.2f}"
        case TrialState.PRUNED:
            return f"pruned after {trial.last_step:,} steps"
    died = trial.user_attrs.get(DEATHS, 0) + 1
    return f"failed: {trial.user_attrs.get(REASON, f'its worker died, {died} times')}"
