"""Storages that cannot be used say so in one line, without their password."""

import pytest

from ppo_plus.zoo.tune.storage import StorageError, has_heartbeats, open_storage


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:1/x", "refused"),
        ("postgresql+psycopg2://me:secret@127.0.0.1:1/x", "'..postgres.' in a checkout, and write postgresql.psycopg:"),
        ("mysql://me@127.0.0.1:1/x?password=secret", "cannot use"),
        ("postgresql+nope://me:secret@127.0.0.1:1/x", "nope"),
        ("sqlite:////proc/nowhere/study.db", "/proc/nowhere"),
        ("sqlite://", "memory"),
        ("study.db", "URL"),
        ("journal:/proc/nowhere/study.log", "/proc/nowhere"),
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


def test_only_databases_have_heartbeats(url, tmp_path):
    assert has_heartbeats(open_storage(url))
    assert not has_heartbeats(open_storage(f"journal:{tmp_path / 'new' / 'study.log'}"))


@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "journal:{}/none.log"])
def test_a_file_that_must_exist_is_not_created(url, tmp_path):
    with pytest.raises(StorageError, match="none.*no such file: start a study"):
        open_storage(url.format(tmp_path / "new"), must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_nobody_may_count_as_dead_between_two_signs_of_life(tmp_path):
    with pytest.raises(StorageError, match="grace_period=15 must be longer"):
        open_storage(f"sqlite:///{tmp_path / 'study.db'}", 15, 15)
