"""A queue of long training runs, one process and one file each.

A run leaves one JSON file, written as a whole when it is done. So the files say what is left to do: a queue that was
stopped goes on where it was, with the run begun anew that it was stopped in. A run holds a lock while it lasts, so that
several queues can share the work; the lock ends with its process, however that ends.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch as th
from machine import processor  # the scripts beside this one
from runs import facts

from ppo_plus.files.lock import claim as claim
from ppo_plus.files.whole import write_text

ROOT = Path(__file__).resolve().parent.parent
#: The folder, beside the results, of what only matters while runs are going on. Git ignores it.
RUNNING = ".running"


@dataclass(frozen=True)
class Job:
    """One run: who learns what with which seed."""

    arm: str
    task: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm} {self.task} {self.seed}"


@dataclass(frozen=True)
class Cell:
    """Runs that differ by their seed only."""

    arm: str
    task: str
    seeds: Sequence[int]


def in_order(stages: Iterable[Iterable[Cell]]) -> list[Job]:
    """All runs, each once: stage by stage, and within a stage the low seeds of every cell before the high ones, so that
    whenever it ends, every cell has about as many seeds."""
    jobs: list[Job] = []
    for stage in stages:
        # Sorting keeps the order of the cells.
        jobs += sorted((Job(cell.arm, cell.task, seed) for cell in stage for seed in cell.seeds), key=lambda j: j.seed)
    return list(dict.fromkeys(jobs))


def result_path(folder: Path, job: Job) -> Path:
    """Where the result of a run is, once it is done."""
    return folder / job.arm / f"{job.task}-{job.seed}.json"


def lock_path(folder: Path, job: Job) -> Path:
    """The lock of a run."""
    return folder / RUNNING / f"{job.arm}_{job.task}-{job.seed}.lock"


def queue_path(folder: Path) -> Path:
    """Where the process group of the queue that was started last stands."""
    return folder / RUNNING / "queue.pid"


def write(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file with a line per entry. It is there as a whole or not at all."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in data.items())
    write_text(path, f"{{\n{lines}\n}}\n")


def read(folder: Path, jobs: Iterable[Job]) -> dict[Job, dict[str, Any]]:
    """The results that there are."""
    paths = {job: result_path(folder, job) for job in jobs}
    return {job: json.loads(path.read_text(encoding="utf-8")) for job, path in paths.items() if path.exists()}


def is_claimed(path: Path) -> bool:
    """Whether a process holds the lock. Unlike :func:`claim` it disturbs nobody who looks as well."""
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def work(command: Sequence[str], folder: Path, jobs: Iterable[Job]) -> list[Job]:
    """Do what is left of some runs, one after another, each in a process of its own with one thread. They belong to
    this process's group, whose id stands in :func:`queue_path`: signals to the group pause and continue all of it.

    :param command: what does a run, before the words that name it
    :param folder: where results go
    :param jobs: the runs, in order
    :return: those that failed
    """
    queue_path(folder).parent.mkdir(parents=True, exist_ok=True)
    queue_path(folder).write_text(f"{os.getpgrp()}\n", encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    failed = []
    for job in jobs:
        if result_path(folder, job).exists() or is_claimed(lock_path(folder, job)):
            continue
        if subprocess.run([*command, *str(job).split()], env=environment, cwd=ROOT).returncode:
            failed.append(job)
            print(f"failed: {job}", flush=True)
    return failed


def versions() -> dict[str, str | None]:
    """What a result depends on. ``commit`` may be rewritten later; ``package`` is the id of the package's files."""
    return {
        **facts(),
        "processor": f"{processor()} ({th.backends.cpu.get_cpu_capability()})",
        "commit": _git("describe", "--always", "--dirty", "--abbrev=40"),
        "package": _package(),
    }


def _package() -> str | None:
    # With changes that are not committed there is no id.
    return None if _git("status", "--porcelain", "ppo_plus", "hyperparams") else _git("rev-parse", "HEAD:ppo_plus")


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def python(script: str) -> list[str]:
    """How this Python runs a script."""
    return [sys.executable, script]
