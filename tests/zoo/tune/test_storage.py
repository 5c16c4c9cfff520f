"""Storages that cannot be used say so in one line, without their password."""

import errno
import subprocess
import sys
import threading

import optuna
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import IntegrityError, OperationalError
from storages import close

from ppo_plus.zoo.tune import storage as storage_module
from ppo_plus.zoo.tune.storage import StorageError, named_errors, open_storage


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:1/x", "refused"),
        (
            "postgresql+psycopg2://me:secret@127.0.0.1:1/x",
            "pip install 'psycopg.binary.', and write postgresql.psycopg:",
        ),
        ("mysql://me@127.0.0.1:1/x?password=secret", "cannot use"),
        ("postgresql+nope://me:secret@127.0.0.1:1/x", "nope"),
        ("sqlite:////proc/nowhere/study.db", "/proc/nowhere"),
        ("sqlite://", "memory"),
        ("study.db", "URL"),
    ],
)
def test_unusable(url, message):
    with pytest.raises(StorageError, match=message) as error:
        open_storage(url)
    assert "cannot use the storage" in str(error.value)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "study.db").write_text("something else " * 100)
    with pytest.raises(StorageError, match="not a database"):
        open_storage(f"sqlite:///{tmp_path / 'study.db'}")


def test_opening_starts_no_thread(url):
    before = set(threading.enumerate())
    close(open_storage(url))
    assert set(threading.enumerate()) <= before


OPEN = "from ppo_plus.zoo.tune.storage import open_storage; print('ready', flush=True); open_storage(input())"


@pytest.mark.slow
def test_processes_that_open_an_empty_database_at_once(server):
    for name in ("first", "second"):
        with sqlalchemy.create_engine(server.url, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        command, pipes = [sys.executable, "-c", OPEN], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes = [subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **pipes) for _ in range(3)]
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        for process in processes:
            process.stdin.write(f"{server.url.removesuffix('postgres')}{name}\n")
            process.stdin.flush()
        assert [(process.communicate(timeout=120)[1], process.returncode) for process in processes] == [("", 0)] * 3


def test_tables_of_another_process_are_not_an_error(tmp_path, monkeypatch):
    calls, make = [], storage_module.RDBStorage
    errors = [
        IntegrityError("", {}, Exception('duplicate key value violates unique constraint "pg_type_typname_nsp_index"')),
        OperationalError("", {}, Exception("table studies already exists")),
    ]

    def make_later(*args, **kwargs):
        calls.append(args)
        if errors:
            raise errors.pop(0)
        return make(*args, **kwargs)

    monkeypatch.setattr(storage_module, "RDBStorage", make_later)
    close(open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    assert len(calls) == 3


DAMAGES = [
    ("trial_params", "distribution_json", '{"name": "IntDistribution"}'),
    ("study_user_attributes", "value_json", "{"),
    ("trials", "state", "RUNNI"),
    ("trials", "datetime_start", "x"),
]


@pytest.mark.parametrize(("table", "column", "value"), DAMAGES)
def test_a_damaged_database_is_an_error_of_one_line(tmp_path, table, column, value):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=(storage := open_storage(url)), study_name="a")
    study.set_user_attr("a", 1)
    study.ask().suggest_int("n", 0, 3)
    close(storage)
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = '{value}'")
    with pytest.raises(StorageError, match="the storage is (damaged|unavailable)") as raised, named_errors():
        study = optuna.load_study(study_name="a", storage=(storage := open_storage(url)))
        assert study.user_attrs and study.trials
    close(storage)
    assert "\n" not in str(raised.value)


def test_a_new_database_on_a_full_disk(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OperationalError("", {}, Exception("database or disk is full"))

    monkeypatch.setattr(storage_module, "RDBStorage", fail)
    with pytest.raises(OSError, match="study.db' cannot be written: .*disk is full") as raised:
        open_storage(f"sqlite:///{tmp_path / 'study.db'}")
    assert raised.value.errno == errno.ENOSPC


def test_a_full_disk_is_one():
    with pytest.raises(OSError, match="disk is full") as raised, named_errors():
        raise StorageInternalError from OperationalError("", {}, Exception("database or disk is full"))
    assert raised.value.errno == errno.ENOSPC
