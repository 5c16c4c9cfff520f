"""A file has its old or its new content, whatever happens while it is written. One process at a time has a lock, and
its end releases it."""

import errno
import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext

import pytest
from envs import ACTIONS, vec

from ppo_plus import PPO_Plus
from ppo_plus.saving.files import claim, replacing, write_text


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "new" / "notes.txt"
    write_text(path, "one")
    (tmp_path / "opened").write_text("")
    assert path.stat().st_mode == (tmp_path / "opened").stat().st_mode
    os.chmod(path, 0o640)
    write_text(path, "zwei ü")
    assert path.read_text(encoding="utf-8") == "zwei ü" and left_in(path.parent) == ["notes.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as file:
        file.write(b"half")
        assert (tmp_path / "a").read_text() == "old"  # which a kill would leave
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "old" and left_in(tmp_path) == ["a"]


def test_a_link_stays_one(tmp_path):
    write_text(tmp_path / "a", "old")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a").read_text() == "new"


@pytest.fixture
def limited_files():
    """The system refuses to write files beyond 20 kB, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_where_a_model_cannot_be_written_the_earlier_one_stays(tmp_path, limited_files, suffix):
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=8, batch_size=8, seed=0, device="cpu")
    model.save(tmp_path / f"model{suffix}")
    model.learn(8)
    limited_files()
    with pytest.raises(OSError):
        model.save(tmp_path / f"model{suffix}")
    assert left_in(tmp_path) == ["model.zip"]
    assert PPO_Plus.load(tmp_path / "model").num_timesteps == 0


def test_a_model_saves_into_a_new_folder_and_an_open_file_but_not_in_place_of_a_folder(tmp_path):
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=8, batch_size=8, seed=0, device="cpu")
    model.save(str(tmp_path / "runs" / "model.v1"))  # has a suffix: as in SB3 it stays as it is
    (tmp_path / "runs" / "ppo.v1").mkdir()
    with pytest.raises(OSError, match="ppo.v1"):
        model.save(tmp_path / "runs" / "ppo.v1")
    assert left_in(tmp_path / "runs") == ["model.v1", "ppo.v1"]
    with open(tmp_path / "open.zip", "wb") as file:
        model.save(file)
        assert not file.closed
    for path in (tmp_path / "runs" / "model.v1", tmp_path / "open.zip"):
        assert PPO_Plus.load(path).n_steps == 8


HOLD = """
import sys, time
from ppo_plus.saving.files import claim
with claim(sys.argv[1]) as held:
    print(held, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EIO])
def test_file_systems_without_locks_have_none(number, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with nullcontext() if number != errno.EIO else pytest.raises(OSError, match="error"):
        with claim(tmp_path / "lock") as held:
            assert held


def test_a_killed_process_has_no_lock(tmp_path):
    path = tmp_path / "folder" / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    with claim(path) as held:
        assert not held
    assert path.read_text() == f"{process.pid}\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(2):
        with claim(path) as held:
            assert held
