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
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import optuna

from ppo_plus.zoo.interrupts import check, exit_codes, uninterrupted
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, Heartbeats, is_done, outcome
from ppo_plus.zoo.tune.stages import ERROR, Study, stages
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, open_storage
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.worker import CannotCompile, StudyStopped, Worker

Process = subprocess.Popen[str]

#: Seconds that an interrupted worker has to put its job back.
END_PATIENCE = 60


class WorkersDied(Exception):
    """No worker is left, and the study is not finished."""


#: Exit codes of a tuner and of a worker.
EXIT_CODES: dict[type[Exception], int] = {StudyStopped: 1, CannotCompile: 1, WorkersDied: 1, StorageError: 2}


@dataclass(frozen=True)
class Workers:
    """How worker processes are started.

    :param n: how many
    :param url: URL of the study's storage
    :param supervision: see :class:`ppo_plus.zoo.tune.worker.Worker`
    """

    n: int
    url: str
    supervision: dict[str, Any] = field(default_factory=dict)


def supervise(study: Study, task: TuningTask, workers: Workers) -> None:
    """Start worker processes, print a line for each finished run, and wait until all have ended.

    :raises StudyStopped: a run raised an error that its hyperparameters did not cause
    :raises WorkersDied: no worker is left, and the study is not finished
    """
    processes: list[Process] = []
    reported: set[Any] = set()
    next(stages(study, task))  # adds the jobs of the search, which several workers would add twice
    list(_news(study, reported))
    try:
        for _ in range(workers.n):
            _start(study, task, workers, processes)
        while True:
            is_over = all(process.poll() is not None for process in processes)
            for process in processes:
                if process.returncode and process.pid not in reported:
                    reported.add(process.pid)
                    code = process.returncode
                    what = f"was killed by signal {-code}: its trial, if it had one, is run again"
                    print(f"worker process {process.pid} {what if code < 0 else f'ended with exit code {code}'}")
            # Without the storage there is nothing to print; the workers decide whether they wait for it.
            with suppress(*STORAGE_ERRORS):
                for line in _news(study, reported):
                    print(line, flush=True)
            if is_over:
                break
            time.sleep(1)
            check()
    except BaseException:
        for process in processes:
            process.terminate()  # so that it puts its job back and ends
        raise
    finally:
        for process in processes:
            _end(process)
    if all(process.returncode for process in processes):
        error = study.attributes().get(ERROR)
        if error:
            raise StudyStopped(error)
        codes = ", ".join(str(process.returncode) for process in processes)
        raise WorkersDied(f"every worker ended too early (exit codes {codes}): run the same command to resume")


def run_worker() -> None:
    """The main function of a worker process. It reads what to do from standard input, which the tuner keeps open as
    long as it lives."""
    with exit_codes(EXIT_CODES):
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return  # the tuner was killed before it had written everything
        order = json.loads(line)
        threading.Thread(target=_end_with_tuner, daemon=True).start()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        for package in order["gym_packages"]:
            import_module(package)
        study = Study(order["study"], open_storage(order["url"]), Heartbeats(order["grace_period"]))
        Worker(study, order["packages"], order["supervision"]).work()


def _end_with_tuner() -> None:
    """Interrupt this worker when its tuner is gone, however that ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _start(study: Study, task: TuningTask, workers: Workers, processes: list[Process]) -> None:
    """Start a worker and add it to the processes."""
    order: dict[str, Any] = {"study": study.name, "grace_period": study.heartbeats.grace_period}
    order |= {"url": workers.url, "supervision": workers.supervision}
    order |= {"packages": task.packages, "gym_packages": task.gym_packages}
    # Else the worker might be left without orders, or not be ended with the others.
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-c", "from ppo_plus.zoo.tune.processes import run_worker; run_worker()"],
            stdin=subprocess.PIPE,  # not arguments, which everyone on the machine can read: the URL may have a password
            stdout=subprocess.DEVNULL,  # progress and errors are in the study
            text=True,
            # Ctrl-C is the tuner's, which ends its workers; and the processes of environments can be killed with it.
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which `supervise` finds
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()


def _news(study: Study, reported: set[Any]) -> Iterator[str]:
    """A line for each run that is done and has not been reported."""
    for stage, jobs in study.stages().items():
        for trial in jobs.trials():
            if is_done(trial) and (stage, trial.number) not in reported:
                reported.add((stage, trial.number))
                found = trial.user_attrs
                name = f"{found[CANDIDATE]}, seed {found[SEED]}" if CANDIDATE in found else found[JOB]
                yield f"{stage}, trial {name}: {outcome(trial)}"


def _end(process: Process) -> None:
    """Wait for a process that was asked to end, or ends by itself; one that hangs is killed, and the processes of its
    environments with it."""
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
