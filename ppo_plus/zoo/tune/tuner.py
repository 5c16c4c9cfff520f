"""The tuner, which creates a study or resumes it, starts worker processes and watches them, and writes the report."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.interrupts import check, deferred, uninterrupted
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, STORAGE_ERRORS, is_done, named_errors, outcome
from ppo_plus.zoo.tune.report import TuningVerdict, check_folder, write_report
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.study import (
    ERROR,
    Study,
    StudyStopped,
    TuningWorker,
    create,
    is_over,
    plan_in_time,
    prepare_screening,
    seconds_of,
)
from ppo_plus.zoo.tune.task import Plan, TuningTask

Process = subprocess.Popen[str]
#: Seconds that an interrupted worker has to put its job back.
END_PATIENCE = 60


class WorkersDied(Exception):
    """No worker is left, and the study is not finished."""


@dataclass(frozen=True)
class Workers:
    """Worker processes to start."""

    n: int  # how many
    url: str  # URL of the study's storage
    supervision: dict[str, Any] = field(default_factory=dict)  # see `zoo.tune.study.TuningWorker`


def tune(
    experiment: Experiment,
    space: dict[str, Any] | None,
    study: Study,
    plan: Plan,
    max_total_trials: int,
    folder: str | Path = "logs/tune",
    workers: Workers | None = None,
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
    gym_packages: tuple[str, ...] = (),
) -> TuningVerdict:
    """Search for hyperparameters, confirm the best ones on unseen seeds, and export a winner. The same call again
    resumes the study; if it is finished, only the report is written.

    :param experiment: what is tuned; the default and its own settings are the baselines
    :param space: contents of a search-space file; ``None`` for the package's own
    :param study: name and storage
    :param plan: how much is spent on what
    :param max_total_trials: trials of the search, exactly; finished, pruned and failed ones count, each once
    :param folder: where the report goes
    :param workers: processes that do the work; ``None``: this process
    :param packages: what settings may import from; ``None``: from anywhere
    :param gym_packages: what you imported because it registers environments; part of the exported command
    :return: the verdict
    :raises ValueError: an argument is wrong, the study is about something else, or the folder is another study's
    :raises StudyStopped: a run raised an error that its hyperparameters did not cause
    :raises WorkersDied: no worker is left, and the study is not finished
    :raises StorageError: the storage is unavailable; the same call resumes the study
    """
    task = TuningTask(experiment, read_space() if space is None else space, plan, packages, gym_packages).checked()
    begin(study, task, max_total_trials, Path(folder))
    return finish(study, task, Path(folder), workers)


def begin(study: Study, task: TuningTask, max_total_trials: int, folder: Path) -> None:
    """Create a study of a checked task, or resume it."""
    if max_total_trials < 1:
        raise ValueError(f"max_total_trials={max_total_trials} must be at least 1")
    check_folder(study, folder)
    create(study, task, max_total_trials)


def finish(study: Study, task: TuningTask, folder: Path, workers: Workers | None) -> TuningVerdict:
    """Finish a study and write its report."""
    with deferred([signal.SIGINT]), named_errors():
        if workers is None:
            TuningWorker(study, task).work()
        elif not is_over(study, task):
            supervise(study, task, workers)
        return write_report(study, task, folder)


def supervise(study: Study, task: TuningTask, workers: Workers) -> None:
    """Start worker processes, print a line for each finished run, and wait until all processes have ended."""
    processes: list[Process] = []
    prepare_screening(study, task, study.budget)  # which several workers would do twice
    printed: set[Any] = set(done_runs(study))
    try:
        for _ in range(workers.n):
            _start(study, task, workers, processes)
        while True:
            all_ended = all(process.poll() is not None for process in processes)
            lines: dict[Any, str] = {process: _death(process) for process in processes if process.returncode}
            # Without the storage there is nothing to print; the workers decide whether they wait for it.
            with suppress(*STORAGE_ERRORS):
                lines |= done_runs(study)
                lines[len(study.begun_stages())] = estimate(study, task, workers.n)
            for key, line in lines.items():
                if line and key not in printed:
                    printed.add(key)
                    print(line, flush=True)
            if all_ended:
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
        if {process.returncode for process in processes} == {errno.ENOSPC}:
            raise OSError(errno.ENOSPC, "the disk is full: run the same command to resume")
        codes = ", ".join(str(process.returncode) for process in processes)
        raise WorkersDied(f"every worker ended too early (exit codes {codes}): run the same command to resume")


def _start(study: Study, task: TuningTask, workers: Workers, processes: list[Process]) -> None:
    """Start a worker and add it to the processes."""
    order: dict[str, Any] = {"study": study.name, "grace_period": study.heartbeats.grace_period}
    order |= {"url": workers.url, "supervision": workers.supervision}
    order |= {"packages": task.packages, "gym_packages": task.gym_packages}
    # Else the worker might be left without orders, or not be ended with the others.
    with uninterrupted():
        process = subprocess.Popen(
            [sys.executable, "-c", "from ppo_plus.zoo.tune.study import run_worker; run_worker()"],
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


def _death(process: Process) -> str:
    """A line about a worker that ended too early."""
    if process.returncode < 0:
        reason = f"was killed by signal {-process.returncode}: its trial, if it had one, is run again"
    else:
        reason = f"ended with exit code {process.returncode}"
    return f"worker process {process.pid} {reason}"


def done_runs(study: Study) -> dict[tuple[str, int], str]:
    """The runs that are done, by stage and number, and a line about each."""
    lines = {}
    for stage, jobs in study.begun_stages().items():
        for trial in filter(is_done, jobs.trials()):
            job = trial.user_attrs
            name = f"{job[CANDIDATE]}, seed {job[SEED]}" if CANDIDATE in job else job[JOB]
            lines[stage, trial.number] = f"{stage}, trial {name}: {outcome(trial)}"
    return lines


def estimate(study: Study, task: TuningTask, n_workers: int) -> str:
    """What is left of a study, and how long it takes; empty until the baselines have run, and when nothing is left."""
    n_baselines, n_seeds = min(len(task.baselines()), study.budget), task.plan.n_seeds
    if not replace(study.screening, end=n_baselines).all_done():
        return ""
    plan, n_trials = plan_in_time(study, task, study.budget)
    search, *later = (list(filter(is_done, jobs.trials())) for jobs in study.begun_stages().values())
    n_left = sum(plan.n_runs(n_trials, n_baselines)) - len(search) * n_seeds - sum(map(len, later))
    if n_left <= 0:
        return ""
    minutes = n_left * seconds_of(search, n_seeds) / n_workers / 60
    return (
        f"{plan.describe(n_trials, n_baselines)}: about {minutes:.1f} more minutes at most with {n_workers} at a time"
    )


def _end(process: Process) -> None:
    """Wait for a process to end. One that hangs is killed, together with the processes of its environments."""
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
