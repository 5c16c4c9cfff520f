"""Worker processes: started, watched and ended by the tuner."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module

import optuna

from ppo_plus.zoo.tune.interrupts import exit_codes, shielded_children
from ppo_plus.zoo.tune.plan import Task
from ppo_plus.zoo.tune.stages import ERROR, Study
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, has_heartbeats, open_storage
from ppo_plus.zoo.tune.watch import Watch
from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped, Worker

Process = subprocess.Popen[str]


class WorkersDied(Exception):
    """No worker is left, and the study is not finished."""


@dataclass(frozen=True)
class Workers:
    """How worker processes are started.

    :param n: how many
    :param url: URL of the storage
    :param heartbeat_interval: see :func:`ppo_plus.zoo.tune.storage.open_storage`
    :param grace_period: see there
    """

    n: int
    url: str
    heartbeat_interval: int = 15
    grace_period: int = 60


def supervise(study: Study, task: Task, workers: Workers) -> None:
    """Start worker processes, show their progress, and wait until all have ended.

    :param study: the study
    :param task: its task
    :param workers: how they are started
    :raises StudyStopped: a run raised an error that its hyperparameters did not cause
    :raises WorkersDied: no worker is left, and the study is not finished
    """
    processes: list[Process] = []
    try:
        for _ in range(workers.n):
            _start(study, task, workers, processes)
        _wait(study, task, processes)
    except BaseException:
        # They put their jobs back and end.
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.wait()
    if all(process.returncode for process in processes):
        error = study.attributes().get(ERROR)
        if error:
            raise StudyStopped(error)
        codes = ", ".join(str(process.returncode) for process in processes)
        raise WorkersDied(f"every worker ended too early (exit codes {codes}): run the same command to go on")


def run_worker() -> None:
    """The main function of a worker process. It reads what to do from standard input, which the tuner keeps open as
    long as it lives."""
    with exit_codes({StudyStopped: 1, CannotCompile: 1, StorageError: 2}):
        order = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_tuner, daemon=True).start()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        for package in order["gym_packages"]:
            import_module(package)
        workers = Workers(**order["workers"])
        storage = open_storage(workers.url, workers.heartbeat_interval, workers.grace_period, must_exist=True)
        packages = None if order["packages"] is None else tuple(order["packages"])
        Worker(Study(order["study"], storage), packages).work()


def _end_with_tuner() -> None:
    """Interrupt this worker when its tuner is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _start(study: Study, task: Task, workers: Workers, processes: list[Process]) -> None:
    """Start a worker and add it to the processes."""
    order = {
        "workers": asdict(workers),
        "study": study.name,
        "packages": task.packages,
        "gym_packages": task.gym_packages,
    }
    # Ctrl-C is the tuner's: it ends its workers, and says so once.
    with shielded_children():
        process = subprocess.Popen(
            [sys.executable, "-c", "from ppo_plus.zoo.tune.processes import run_worker; run_worker()"],
            # Not as arguments, which everybody on the machine can read: the URL may have a password.
            stdin=subprocess.PIPE,
            # Progress and errors are in the study.
            stdout=subprocess.DEVNULL,
            text=True,
        )
        processes.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which `_wait` finds
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()


def _wait(study: Study, task: Task, processes: list[Process]) -> None:
    """Show progress until all workers have ended."""
    lost: set[int] = set()
    with Watch(study, task.plan).running() as watch:
        while any(process.poll() is None for process in processes):
            _tell_lost(watch, processes, lost)
            # Without the storage there is nothing to show; the workers decide whether they wait for it.
            with suppress(*STORAGE_ERRORS):
                watch.update()
                _check_journal(study, processes)
            time.sleep(1)
        _tell_lost(watch, processes, lost)
        with suppress(*STORAGE_ERRORS):
            watch.update()


def _tell_lost(watch: Watch, processes: list[Process], lost: set[int]) -> None:
    """Print, once for each, which workers ended before the study did."""
    for number, process in enumerate(processes, 1):
        code = process.poll()
        if code and number not in lost:
            lost.add(number)
            what = f"ended with exit code {code}"
            if code < 0:
                what = f"was killed by {_signal_name(-code)}: its trial, if it had one, is run again"
            watch.tell(f"worker {number} of {len(processes)} (process {process.pid}) {what}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _check_journal(study: Study, processes: list[Process]) -> None:
    """Without heartbeats the other workers would wait for a dead worker's trial forever."""
    if not has_heartbeats(study.storage) and any(process.poll() for process in processes):
        raise WorkersDied(
            "a worker died, and a journal file has no heartbeats to find its trial: run the same command to go on"
        )
