"""A real PostgreSQL server for as long as the tests run, and a finished study."""

import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from storages import close
from training import shorten_rollouts

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, load_experiment
from ppo_plus.zoo.tune import Plan, Study, open_storage, tune
from ppo_plus.zoo.tune.task import TuningTask

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="session", autouse=True)
def unsynchronized():
    """SQLite leaves it to the system when to write to the disk, which may be slow, and no machine fails here."""

    def turn_off(connection, _):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", turn_off)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", turn_off)


@pytest.fixture(scope="session")
def server():
    """An own server on loopback, which trusts everybody on this machine."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install 'psycopg[binary]')")
    with running(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(server):
    """URL of its database."""
    return server.url


@pytest.fixture(params=["sqlite", "journal", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """URL of each kind of storage."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres")
    if request.param == "journal":
        return str(tmp_path / "study.log")
    return f"sqlite:///{tmp_path / 'study'}"


@pytest.fixture
def storage(url):
    """Such a storage."""
    opened = open_storage(url)
    yield opened
    close(opened)


def find_binaries():
    """Folder of the server's programs; Debian has one for each version, outside the path."""
    folders = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class Server:
    """A PostgreSQL server.

    :param binaries: folder of its programs
    :param folder: where its files go
    :param account: whose it is; ``None``: of who runs the tests
    """

    def __init__(self, binaries, folder, account):
        self.binaries, self.folder, self.port = binaries, folder, free_port()
        self.options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        self.call("initdb", "-A", "trust", "-U", "postgres", "--no-sync")

    def start(self):
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        self.call("pg_ctl", "start", "-w", "-o", settings, "-l", f"{self.folder}/log")

    def stop(self, mode="fast"):
        """As for a restart: sessions are ended, whatever they are at."""
        self.call("pg_ctl", "stop", "-m", mode)

    def call(self, program, *arguments):
        command = [str(self.binaries / program), "-D", f"{self.folder}/data", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, text=True, stdout=subprocess.DEVNULL, timeout=120, **self.options
        )
        assert done.returncode == 0, command


@contextmanager
def running(binaries):
    """Run a server."""
    # It refuses to run as root, and then its files must not be root's.
    account = pwd.getpwnam("postgres") if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgres", ignore_cleanup_errors=True) as folder:
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        server = Server(binaries, folder, account)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


def free_port():
    """A port that is free at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="session")
def tuned(tmp_path_factory):
    """A whole study, search and confirmation, whose jobs the processes of pytest share. The baselines have little
    chance: the default has few updates, the settings file's entry a low learning rate."""
    import_module("tuning_envs")
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "tuned"
    folder.mkdir(exist_ok=True)
    experiment = load_experiment("Aiming-v0", overrides={"n_envs": 8, "n_steps": 8})
    space = {"learning_rate": {"choices": [0.01, 0.012]}, "policy_kwargs": {"net_arch": {"choices": {"small": [32]}}}}
    plan = Plan(512, n_evals=1, last_evals=1, n_eval_episodes=3, n_finalists=1, seed=3)
    study = Study("whole", open_storage(f"sqlite:///{folder / 'study.db'}"))
    allowed = {"packages": (*ALLOWED_PACKAGES, "tuning_envs"), "gym_packages": ("tuning_envs",)}
    with pytest.MonkeyPatch.context() as patch:
        shorten_rollouts(patch, 256)
        verdict = tune(experiment, space, study, plan, 3, folder, **allowed)
    return study, verdict, folder, TuningTask(experiment, space, plan, **allowed).fitted()
