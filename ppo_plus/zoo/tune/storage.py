"""Optuna's databases, in which claiming a trial is atomic, no signal interrupts a call, and servers may restart."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, get_storage
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, ProgrammingError, SQLAlchemyError

from ppo_plus.zoo.installation import pip_install
from ppo_plus.zoo.interrupts import check, uninterrupted

#: What Optuna raises when a database is unavailable.
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError)

#: A part of SQLite's message of a full disk.
FULL = "disk is full"

#: How often a new database is opened before an error of another process's tables is one of the database.
N_OPENED = 10

#: Seconds to wait for a connection, another process's lock, or an unavailable server.
TIMEOUT = 60


class StorageError(ValueError):
    """A storage that cannot be used: unavailable, of an unknown kind, or not Optuna's."""


def open_storage(url: str) -> BaseStorage:
    """Open a storage, and create its tables if it is new.

    :param url: ``sqlite:///file.db`` or ``postgresql+psycopg://user@host/database`` (any URL of SQLAlchemy's)
    :raises StorageError: it cannot be used; the message is one line, without the password
    """
    try:
        address = make_url(url)
        sqlite = address.get_backend_name() == "sqlite"
        if sqlite:
            if address.database in (None, "", ":memory:"):
                raise OSError("processes cannot share a study in memory: use sqlite:///FILE")
            Path(address.database or "").parent.mkdir(parents=True, exist_ok=True)
        options = {"connect_args": {"timeout" if sqlite else "connect_timeout": TIMEOUT}}
        database = _made_once(lambda: RDBStorage(address.render_as_string(hide_password=False), engine_kwargs=options))
        if sqlite:
            _lock_at_begin(database.engine)
        # With Optuna's cache around it: finished trials are read once, however often a study is looked at.
        storage = get_storage(database)
        for name, method in vars(BaseStorage).items():
            if callable(method) and not name.startswith("_"):
                setattr(storage, name, _robust(getattr(storage, name), patience=0 if sqlite else TIMEOUT))
        return storage
    except (SQLAlchemyError, StorageInternalError, ImportError, RuntimeError, OSError, UnicodeError) as error:
        why = reason(error)
        if isinstance(error, ImportError) and url.startswith("postgresql"):
            why = f"its driver is missing: {pip_install(extra='postgres')}, and write postgresql+psycopg://..."
        if FULL in why:
            raise OSError(errno.ENOSPC, f"the storage {shown(url)!r} cannot be written: {why}") from None
        raise StorageError(f"cannot use the storage {shown(url)!r}: {why}") from None


def _made_once(make: Callable[[], RDBStorage]) -> RDBStorage:
    """A database, whose tables another process may create at the same time: then it is opened again."""
    for _ in range(N_OPENED - 1):
        try:
            return make()
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            if not any(sign in reason(error) for sign in ("already exists", "duplicate key", "UNIQUE constraint")):
                raise
        time.sleep(0.2)
    return make()


def shown(url: str) -> str:
    """The URL of a storage without its password, which may also be a parameter."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url  # not a URL


@contextmanager
def named_errors() -> Iterator[None]:
    """Turn errors of an unavailable storage into a :class:`StorageError` of one line, a full disk into ``OSError``."""
    try:
        yield
    except STORAGE_ERRORS as error:
        if FULL in reason(error):
            raise OSError(errno.ENOSPC, f"the storage cannot be written: {reason(error)}") from error
        raise StorageError(f"the storage is unavailable: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The cause of a database's error in one line."""
    cause = getattr(_cause(error), "orig", None) or _cause(error)
    return " ".join(str(cause).split()) or type(cause).__name__


def _cause(error: BaseException) -> BaseException:
    return error.__cause__ or error if isinstance(error, StorageInternalError) else error


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


def _robust(method: Callable[..., Any], patience: float) -> Callable[..., Any]:
    """A method of a storage that is not interrupted, and called again if its connection is lost or refused.

    An interrupt within a transaction might leave the database locked for everybody else, or be lost in a callback of
    SQLAlchemy's. A call may succeed before the connection drops, so it can run twice. That is safe: of two trials that
    are added for one job, one counts; a trial that was set to running but that no process owns counts as dead after the
    grace period; and a trial that has ended already stays unchanged. Calls are repeated for ``patience`` seconds.
    """

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + patience
        while True:
            try:
                with uninterrupted():
                    return method(*args, **options)
            except STORAGE_ERRORS as error:
                if not isinstance(_cause(error), (OperationalError, InterfaceError)) or time.monotonic() >= deadline:
                    raise
            except (ValueError, TypeError, LookupError) as error:
                if method.__name__ == "get_study_id_from_name" or not method.__name__.startswith("get_"):
                    raise  # an argument's
                raise StorageError(f"the storage is damaged: {reason(error)}") from error
            check()
            time.sleep(1)

    return call
