"""Worker processes: started, watched and ended by the tuner."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.interrupts import check, exit_codes, uninterrupted
from ppo_plus.zoo.tune.jobs import WORKER, Jobs, worker_name
from ppo_plus.zoo.tune.plan import Task
from ppo_plus.zoo.tune.stages import ERROR, Study, stage_names
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, has_heartbeats, open_storage
from ppo_plus.zoo.tune.watch import Watch, name
from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped, Worker

Process = subprocess.Popen[str]

#: A run: its stage, the number of its trial, and how many runs of the trial are done before it.
Run = tuple[str, int, int]

#: Seconds that an interrupted worker has to put its job back.
END_PATIENCE = 60

#: What runs are timed with.
clock = time.monotonic


class WorkersDied(Exception):
    """No worker is left, and the study is not finished."""


@dataclass(frozen=True)
class Workers:
    """How worker processes are started.

    :param n: how many
    :param url: URL of the storage
    :param heartbeat_interval: see :func:`ppo_plus.zoo.tune.storage.open_storage`
    :param grace_period: see there
    :param run_timeout: seconds that a run may take; a longer one's trial has failed, and another process takes the
        place of its worker. ``None``: any time. What is usual differs more than tenfold between settings and between
        machines, so no default would tell a hanging environment from a slow run.
    :param supervision: see :class:`ppo_plus.zoo.tune.worker.Worker`
    """

    n: int
    url: str
    heartbeat_interval: int = 15
    grace_period: int = 60
    run_timeout: float | None = None
    supervision: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.run_timeout is not None and not self.run_timeout > 0:
            raise ValueError(f"run_timeout={self.run_timeout} must be more than 0 seconds, or None for any time")


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
        _wait(study, task, workers, processes)
    except BaseException:
        # They put their jobs back and end.
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            _end(process)
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
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return  # the tuner was killed before it had said what to do
        order = json.loads(line)
        threading.Thread(target=_end_with_tuner, daemon=True).start()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        for package in order["gym_packages"]:
            import_module(package)
        workers = Workers(**order["workers"])
        storage = open_storage(workers.url, workers.heartbeat_interval, workers.grace_period, must_exist=True)
        packages = None if order["packages"] is None else tuple(order["packages"])
        Worker(Study(order["study"], storage), packages, workers.supervision).work()


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
    # Or the worker might have no orders, or not be known.
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-c", "from ppo_plus.zoo.tune.processes import run_worker; run_worker()"],
            # Not as arguments, which everybody on the machine can read: the URL may have a password.
            stdin=subprocess.PIPE,
            # Progress and errors are in the study.
            stdout=subprocess.DEVNULL,
            text=True,
            # Ctrl-C is the tuner's, which ends its workers; and the processes of environments can be killed with it.
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which `_wait` finds
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()


def _wait(study: Study, task: Task, workers: Workers, processes: list[Process]) -> None:
    """Show progress until all workers have ended."""
    told: set[int] = set()
    runs = Runs(study, task, workers, processes)
    with Watch(study, task.plan).running() as watch:
        while any(process.poll() is None for process in processes):
            _tell_lost(watch, processes, told)
            # Without the storage there is nothing to show; the workers decide whether they wait for it.
            with suppress(*STORAGE_ERRORS):
                watch.update()
                _check_journal(study, processes)
                for line in runs.end_overdue():
                    watch.tell(line)
            time.sleep(1)
            check()
        _tell_lost(watch, processes, told)
        with suppress(*STORAGE_ERRORS):
            watch.update()


class Runs:
    """Ends runs that take too long.

    The tuner does, not the worker itself: an environment that hangs in C code may keep all threads of its process from
    running.

    :param study: the study
    :param task: its task
    :param workers: how they are started
    :param processes: the workers; a new one takes the place of one that is ended
    """

    def __init__(self, study: Study, task: Task, workers: Workers, processes: list[Process]):
        self.study, self.task, self.workers, self.processes = study, task, workers, processes
        #: By process id: its run, and since when it is at it on this process's clock.
        self._seen: dict[int, tuple[Run, float]] = {}

    def end_overdue(self) -> Iterator[str]:
        """End the runs that have taken too long since they were first seen.

        :return: a line about each
        """
        if self.workers.run_timeout is None:
            return
        present, now = self._present(), clock()
        self._seen = {
            pid: self._seen[pid] if pid in self._seen and self._seen[pid][0] == run else (run, now)
            for pid, (run, _, _) in present.items()
        }
        for pid, (_, since) in self._seen.items():
            if now - since > self.workers.run_timeout:
                yield self._replace(pid, *present[pid][1:])

    def _present(self) -> dict[int, tuple[Run, Jobs, FrozenTrial]]:
        """What each process is at, by its process id."""
        names = {worker_name(process.pid): process.pid for process in self.processes if process.poll() is None}
        present = {}
        for stage, jobs in stage_names(self.study):
            for trial in jobs.trials():
                pid = names.get(trial.user_attrs.get(WORKER, ""))
                if trial.state == TrialState.RUNNING and pid is not None:
                    # A trial may have several runs, one after the other.
                    n_done = (trial.last_step or 0) // self.task.plan.n_timesteps
                    present[pid] = ((stage, trial.number, n_done), jobs, trial)
        return present

    def _replace(self, pid: int, jobs: Jobs, trial: FrozenTrial) -> str:
        # The trial first: if the storage is unavailable, everything stays as it is, and is tried again.
        why = f"a run took longer than {self.workers.run_timeout:g} seconds (--run-timeout)"
        jobs.fail(trial, why)
        process = next(process for process in self.processes if process.pid == pid)
        _kill(process)
        self.processes.remove(process)
        _start(self.study, self.task, self.workers, self.processes)
        # It may have gone on to the next trial in between.
        for _, jobs in stage_names(self.study):
            for other in jobs.trials():
                if other.state == TrialState.RUNNING and other.user_attrs.get(WORKER) == worker_name(pid):
                    jobs.interrupt(other)
        return f"{name(trial)} has failed: {why}; process {self.processes[-1].pid} takes the place of its worker, {pid}"


def _end(process: Process) -> None:
    """Wait for a process that was asked to end, or ends by itself; one that hangs is killed."""
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: Process) -> None:
    """End a process for sure, and the processes of its environments with it."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _tell_lost(watch: Watch, processes: list[Process], told: set[int]) -> None:
    """Print, once for each, which workers ended before the study did."""
    for number, process in enumerate(processes, 1):
        code = process.poll()
        if code and process.pid not in told:
            told.add(process.pid)
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
