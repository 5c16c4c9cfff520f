"""Storages that cannot be used say so in one line, without their password."""

import os
import subprocess
import sys
import threading

import pytest
from optuna.study import StudyDirection
from storages import close

from ppo_plus.zoo.tune.storage import StorageError, open_storage


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


@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "journal:{}/none.log"])
def test_a_file_that_must_exist_is_not_created(url, tmp_path):
    with pytest.raises(StorageError, match="none.*no such file: start a study"):
        open_storage(url.format(tmp_path / "new"), must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_opening_starts_no_thread(url):
    before = set(threading.enumerate())
    close(open_storage(url))
    assert set(threading.enumerate()) <= before


#: Writes until the process ends, which it does in the middle.
ENDING = """
import os, signal, sys, time
import optuna
from optuna.study import StudyDirection
from ppo_plus.zoo.interrupts import exit_codes
from ppo_plus.zoo.tune.storage import open_storage

optuna.logging.set_verbosity(optuna.logging.WARNING)
with exit_codes({}):
    storage = open_storage(f"journal:{sys.argv[1]}")
    study = storage.create_new_study([StudyDirection.MAXIMIZE], "study")
    sync = os.fsync
    def interrupted(file):
        for _ in range(20):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.1)
        sync(file)
    os.fsync = interrupted
    storage.set_study_user_attr(study, "told", True)
"""


def test_a_process_that_ends_while_it_writes_leaves_no_lock(tmp_path):
    path = tmp_path / "study.log"
    ended = subprocess.run([sys.executable, "-c", ENDING, path], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")
    assert [file.name for file in tmp_path.iterdir()] == ["study.log"]
    assert open_storage(f"journal:{path}").get_all_studies()[0].user_attrs == {"told": True}


def test_a_forked_process_can_use_it(tmp_path):
    opened = open_storage(f"journal:{tmp_path / 'study.log'}")
    opened.create_new_study([StudyDirection.MAXIMIZE], "study")
    pid = os.fork()
    if not pid:
        os._exit(len(opened.get_all_studies()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
