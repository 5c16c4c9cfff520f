"""Storages of studies: Optuna's own, opened so that reading and then writing is one atomic step."""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages._rdb.models import TrialHeartbeatModel, TrialModel
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

JOURNAL = "journal:"

#: What Optuna raises when a database is unavailable.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)

Method = Callable[..., Any]
#: Where the result of a call, or its error, is put.
Answer = SimpleQueue[tuple[Any, BaseException | None]]
#: Calls to make, and where their answers are put; ``None``: no more come.
Calls = SimpleQueue[tuple[Callable[[], Any], Answer] | None]

#: Seconds to wait for a connection, another process's lock, or an unavailable server.
TIMEOUT = 60

#: Seconds that a call may take at the end of the process.
END_PATIENCE = 5


class Database(RDBStorage):
    """Optuna's database. A worker counts as dead when its heartbeat has not *changed* for the grace period, as seen by
    the process that looks, on its own monotonic clock.

    Optuna compares the heartbeat's date with the present: dates that a clock ahead of time has left would keep a dead
    worker's trial running until that time has come, and a clock that jumps ahead would end the living ones' trials.
    """

    def __init__(self, url: str, **options: Any):
        super().__init__(url, **options)
        self.clock = time.monotonic
        #: By study and trial: the heartbeat, and since when it is the same.
        self._seen: dict[int, dict[int, tuple[datetime, float]]] = {}

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        trial, beat = TrialModel, TrialHeartbeatModel
        query = (
            sqlalchemy.select(trial.trial_id, beat.heartbeat)
            .join(beat, beat.trial_id == trial.trial_id)
            .where(trial.study_id == study_id, trial.state == TrialState.RUNNING)
        )
        with self.engine.begin() as connection:
            beats = {trial_id: heartbeat for trial_id, heartbeat in connection.execute(query)}
        now, before = self.clock(), self._seen.get(study_id, {})
        seen = {
            trial_id: before[trial_id] if trial_id in before and before[trial_id][0] == heartbeat else (heartbeat, now)
            for trial_id, heartbeat in beats.items()
        }
        self._seen[study_id] = seen
        return [trial_id for trial_id, (_, since) in seen.items() if now - since >= (self.grace_period or 0)]


class StorageError(ValueError):
    """A storage that cannot be used: unavailable, of an unknown kind, or not Optuna's."""


def open_storage(
    url: str, heartbeat_interval: int = 15, grace_period: int = 60, must_exist: bool = False
) -> BaseStorage:
    """Open a storage, and create its tables if it is new.

    :param url: ``sqlite:///file.db``, ``postgresql://user@host/database`` (any URL of SQLAlchemy's), or
        ``journal:file.log``, which has no heartbeats
    :param heartbeat_interval: seconds between two heartbeats of a worker, at least 1
    :param grace_period: seconds without a new heartbeat, on this process's clock, after which a worker counts as dead
    :param must_exist: refuse to create a file
    :return: the storage
    :raises StorageError: it cannot be used; the message is one line, without the password
    """
    if grace_period <= heartbeat_interval:
        raise StorageError(
            f"grace_period={grace_period} must be longer than heartbeat_interval={heartbeat_interval}, or living "
            "workers would count as dead"
        )
    if url.startswith(JOURNAL):
        return _never_interrupted(_open_journal(Path(url.removeprefix(JOURNAL)), must_exist))
    try:
        return _never_interrupted(_open_database(make_url(url), heartbeat_interval, grace_period, must_exist))
    except (SQLAlchemyError, StorageInternalError, ImportError, RuntimeError, OSError) as error:
        why = reason(error)
        if isinstance(error, ImportError) and url.startswith("postgresql"):
            why = "its driver is missing: pip install '.[postgres]' in a checkout, and write postgresql+psycopg://..."
        raise StorageError(f"cannot use the storage {shown(url)!r}: {why}") from None


def shown(url: str) -> str:
    """The URL of a storage without its password, which may also be a parameter."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url  # a journal, or not a URL


def has_heartbeats(storage: BaseStorage) -> bool:
    """Whether a storage can tell dead workers from busy ones."""
    return hasattr(storage, "record_heartbeat")


def record_heartbeat(storage: BaseStorage, trial_id: int) -> None:
    """Record a heartbeat of a trial, if the storage has heartbeats.

    :param storage: the storage
    :param trial_id: Optuna's id of the trial
    """
    if has_heartbeats(storage):
        storage.record_heartbeat(trial_id)  # type: ignore[attr-defined]


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn the errors of an unavailable storage in the block into one line.

    :raises StorageError: the storage is unavailable
    """
    try:
        yield
    except STORAGE_ERRORS as error:
        raise StorageError(f"the storage is unavailable: {reason(error)}") from error


@contextmanager
def heartbeats(storage: BaseStorage, trial_id: int) -> Iterator[None]:
    """Record heartbeats of a trial, from another thread, while the block runs.

    Optuna does so in ``Study.optimize`` only, and there a single failed write ends the heartbeats.

    :param storage: the storage
    :param trial_id: Optuna's id of the trial
    """
    if not has_heartbeats(storage):
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_beat, args=(storage, trial_id, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _beat(storage: BaseStorage, trial_id: int, done: threading.Event) -> None:
    while not done.wait(storage.get_heartbeat_interval()):  # type: ignore[attr-defined]
        try:
            record_heartbeat(storage, trial_id)
        except STORAGE_ERRORS:
            # The next one may succeed; until the grace period is over, nothing is lost.
            continue
    storage.remove_session()


def _prepare_file(path: Path, must_exist: bool) -> None:
    if must_exist and not path.exists():
        raise FileNotFoundError("there is no such file: start a study with `ppo-plus tune`")
    path.parent.mkdir(parents=True, exist_ok=True)


def _open_journal(path: Path, must_exist: bool) -> JournalStorage:
    try:
        _prepare_file(path, must_exist)
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as error:
        raise StorageError(f"cannot use the storage '{JOURNAL}{path}': {reason(error)}") from None


def _open_database(address: URL, heartbeat_interval: int, grace_period: int, must_exist: bool) -> BaseStorage:
    sqlite = address.get_backend_name() == "sqlite"
    if sqlite and address.database in (None, "", ":memory:"):
        raise OSError("processes cannot share a study in memory: use sqlite:///FILE")
    if sqlite:
        _prepare_file(Path(address.database or ""), must_exist)
    options = {
        "connect_args": {"timeout" if sqlite else "connect_timeout": TIMEOUT},
        # Tried when taken from the pool: a server that was restarted in between is no error.
        "pool_pre_ping": True,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        storage = Database(
            address.render_as_string(hide_password=False),
            engine_kwargs=options,
            heartbeat_interval=heartbeat_interval,
            grace_period=grace_period,
        )
    # With Optuna's cache around it: finished trials are read once, however often a study is looked at.
    cached = get_storage(storage)
    if sqlite:
        _lock_at_begin(storage.engine)
    else:
        _wait_for_server(storage.engine)
        _wrap_methods(cached, _repeated_when_cut_off)
    return cached


def _lock_at_begin(engine: sqlalchemy.Engine) -> None:
    """Make SQLite's transactions take the lock at their first statement.

    By default they take it at their first *write*, so that two processes that read a trial's state and then write it
    may both find it waiting. (PostgreSQL has ``SELECT ... FOR UPDATE``, which SQLite ignores.) The recipe is
    SQLAlchemy's: https://docs.sqlalchemy.org/en/20/dialects/sqlite.html#pysqlite-serializable
    """

    @sqlalchemy.event.listens_for(engine, "connect")
    def _leave_transactions_to_us(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def _begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    # Connections that exist already do not have these listeners.
    engine.dispose()


def _wait_for_server(engine: sqlalchemy.Engine) -> None:
    """Make new connections wait for an unavailable server, up to :data:`TIMEOUT`: it may be restarting."""

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def _connect(dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return dialect.connect(*args, **options)
            except dialect.loaded_dbapi.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)


def _wrap_methods(storage: BaseStorage, wrap: Callable[[Method], Method]) -> None:
    """Have all calls of a storage made by what ``wrap`` makes of its methods."""
    for name in {*vars(BaseStorage), *vars(BaseHeartbeat)}:
        if not name.startswith("__") and callable(getattr(storage, name, None)):
            setattr(storage, name, wrap(getattr(storage, name)))


def _repeated_when_cut_off(method: Method) -> Method:
    """Repeat a call that loses its connection, once, on a new connection.

    A call may succeed before the connection drops, so it can run twice. That is safe: of two trials that are added for
    one job, one counts; a trial that was set to running but that no process owns counts as dead after the grace period;
    and a trial that has ended already stays as it is.
    """

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except StorageInternalError as error:
            if not getattr(error.__cause__, "connection_invalidated", False):
                raise
            return method(*args, **options)

    return call


def _never_interrupted(storage: BaseStorage) -> BaseStorage:
    """Make the main thread's calls of a storage in another thread, one after another.

    Ctrl-C and SIGTERM raise ``KeyboardInterrupt`` in the main thread, between any two instructions. Within a
    transaction that may leave the database locked, also for putting the job back, or be lost in a callback of
    SQLAlchemy's. In this way it ends the waiting for a call, at once, and the call itself comes to its end.
    """
    calls: Calls = SimpleQueue()
    # A daemon: a process that ends does not wait for ever for a server that does not answer.
    thread = threading.Thread(target=_answer, args=(calls,), daemon=True)
    thread.start()
    process, ended = os.getpid(), threading.Event()
    weakref.finalize(storage, _end, calls, thread, ended)

    def wrap(method: Method) -> Method:
        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            # The thread is not there in forked processes and at the very end of this one. (`Thread.is_alive` would say
            # so too, but interrupted in the middle it takes the thread for dead from then on.)
            is_there = os.getpid() == process and not ended.is_set()
            if threading.current_thread() is not threading.main_thread() or not is_there:
                return method(*args, **options)
            # Nothing interrupts this queue in the middle: unlike ``Future`` and ``Thread.start``, it is written in C.
            answer: Answer = SimpleQueue()
            calls.put((partial(method, *args, **options), answer))
            result, error = answer.get()
            if error is None:
                return result
            try:
                raise error
            finally:
                del error  # which has this frame in its traceback

        return call

    _wrap_methods(storage, wrap)
    return storage


def _answer(calls: Calls) -> None:
    while (asked := calls.get()) is not None:
        call, answer = asked
        try:
            answer.put((call(), None))
        except BaseException as error:  # whatever it is, the caller waits for it
            answer.put((None, error))
        # Else this thread would keep the storage until the next call.
        del asked, call, answer


def _end(calls: Calls, thread: threading.Thread, ended: threading.Event) -> None:
    """Of a storage that is dropped, or a process that ends: what is being written is written to its end, or a journal
    would stay locked."""
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join(END_PATIENCE)
    ended.set()


def reason(error: BaseException) -> str:
    """The cause of a database's error in one line."""
    error = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__
