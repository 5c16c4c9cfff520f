"""A queue of long training runs, each in its own process, with one file for all results.

A run appends one line to a JSON Lines file when it ends. So the file says what is left to do: a queue that was stopped
resumes where it was, and starts again the run that it was stopped in. A run holds a lock as long as it lasts, so that
several queues can share the work; the system releases the lock when the process ends, however it ends.
"""

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch as th
from machine import facts  # the modules beside this one
from report.plan import Job, read
from report.results import ROOT

from ppo_plus.saving.files import claim as claim
from ppo_plus.saving.files import file_name


def running(results: Path) -> Path:
    """The folder, beside the results, of files that matter only while runs last. Git ignores it."""
    return results.parent / ".running" / results.stem


def lock_path(results: Path, job: Job) -> Path:
    """The lock of a run."""
    return running(results) / f"{job.arm}_{file_name(job.task)}-{job.seed}.lock"


def queue_path(results: Path) -> Path:
    """The file with the process group of the queue that was started last."""
    return running(results) / "queue.pid"


def is_claimed(path: Path) -> bool:
    """Whether a process has the lock. Unlike :func:`claim`, it does not take the lock itself."""
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def work(command: Sequence[str], results: Path, jobs: Iterable[Job]) -> list[Job]:
    """Do what is left of some runs, one after another, each in a separate process with one thread. They belong to
    this process's group, whose id stands in :func:`queue_path`: signals to the group pause and continue all of it.

    :param command: what does a run, before the words that name it
    :param results: the file to which they append their results
    :param jobs: the runs, in order
    :return: those that failed
    """
    running(results).mkdir(parents=True, exist_ok=True)
    queue_path(results).write_text(f"{os.getpgrp()}\n", encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    failed = []
    for job in jobs:
        if read(results, [job]) or is_claimed(lock_path(results, job)):
            continue
        if subprocess.run([*command, *str(job).split()], env=environment, cwd=ROOT).returncode:
            failed.append(job)
            print(f"failed: {job}", flush=True)
    return failed


def versions(*packages: str) -> dict[str, str | None]:
    """What a result depends on. ``commit`` may be rewritten later; ``package`` is the id of the package's files.

    :param packages: what simulates the environments
    """
    found = facts("sb3_contrib", "gymnasium", "numpy", *packages)
    return {
        **found,
        "processor": f"{found['processor']} ({th.backends.cpu.get_cpu_capability()})",
        "commit": git("describe", "--always", "--dirty", "--abbrev=40"),
        "package": _package(),
    }


def _package() -> str | None:
    # Changes that are not committed have no id.
    return None if git("status", "--porcelain", "ppo_plus", "hyperparams") else git("rev-parse", "HEAD:ppo_plus")


def git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def check_steps(parser: argparse.ArgumentParser, arguments: argparse.Namespace, file: Path) -> None:
    """An error if ``--steps`` would shorten runs in the file that ships, where they would count as done."""
    if arguments.steps and arguments.results.resolve() == file.resolve():
        parser.error("--steps needs --results: a shorter run would count as done")


def python(script: str) -> list[str]:
    """How this Python runs a script."""
    return [sys.executable, script]
