"""Storages that cannot be used say so in one line, without their password."""

import threading

import pytest
from storages import close

from ppo_plus.zoo.tune.storage import StorageError, open_storage


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
