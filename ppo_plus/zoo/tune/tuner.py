"""The tuner: creates a study or goes on with it, has workers do it, and reports."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from ppo_plus.zoo.cli.tune import STORAGE_VARIABLE
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.models import make_model
from ppo_plus.zoo.tune.plan import Plan, Task, make_task, tell_budget
from ppo_plus.zoo.tune.report import check_folder, write_report
from ppo_plus.zoo.tune.search import check_search
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.stages import ERROR, Study, create, stage_names
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, has_heartbeats, named_errors
from ppo_plus.zoo.tune.verdict import Verdict
from ppo_plus.zoo.tune.watch import Watch
from ppo_plus.zoo.tune.worker import StudyStopped, Worker


class WorkersDied(Exception):
    """No worker is left, and the study has not ended."""


@dataclass(frozen=True)
class Workers:
    """How worker processes are started.

    :param n: how many
    :param url: URL of the storage
    :param options: further arguments of ``ppo-plus tune worker``
    """

    n: int
    url: str
    options: tuple[str, ...] = ()


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
) -> Verdict:
    """Search for hyperparameters, confirm the best ones on unseen seeds, and export a winner. Called again with the
    same arguments it goes on where it was; when nothing is left to do, it only writes the report.

    :param experiment: what is tuned; its own settings are tried first, after the default
    :param space: contents of a search-space file; ``None`` for the package's own
    :param study: name and storage
    :param plan: how much is spent on what
    :param max_total_trials: trials of the search, exactly; finished, pruned and failed ones count, each once
    :param folder: where the report goes
    :param workers: processes that do the work; ``None``: this process
    :param packages: what settings may import from; ``None``: from anywhere
    :param gym_packages: what you imported because it registers environments; part of the exported command
    :return: what was found
    :raises ValueError: something does not fit, the study is about something else, or the folder is another study's
    :raises StudyStopped: a run met an error which is no property of its hyperparameters
    :raises WorkersDied: no worker is left, and the study has not ended
    :raises StorageError: the storage went away; the same call goes on
    """
    task = check(experiment, read_space() if space is None else space, plan, packages, gym_packages)
    begin(study, task, max_total_trials, Path(folder))
    tell_budget(plan.n_timesteps, task)
    return finish(study, task, Path(folder), workers)


def begin(study: Study, task: Task, max_total_trials: int, folder: Path) -> None:
    """Create a study, or go on with it; for the parameters see :func:`tune`."""
    if max_total_trials < 1:
        raise ValueError(f"max_total_trials={max_total_trials} must be at least 1")
    check_folder(study, folder)
    create(study, task, max_total_trials)
    if not has_heartbeats(study.storage):
        # Nobody can tell which of these are alive: the one who starts a study says that none is.
        for _, jobs in stage_names(study):
            jobs.take_back()


def finish(study: Study, task: Task, folder: Path, workers: Workers | None) -> Verdict:
    """Do what is left of a study, and report; for the parameters see :func:`tune`."""
    with named_errors():
        if workers is None:
            Worker(study, task.packages).work()
        elif not Worker(study, task.packages).is_over():
            _supervise(study, task.plan, workers)
        return write_report(study, task, folder)


def check(
    experiment: Experiment,
    space: dict[str, Any],
    plan: Plan,
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES,
    gym_packages: tuple[str, ...] = (),
) -> Task:
    """The task of a study, once it is known that its baselines can be built, and a model with each value of the search
    space; nothing is trained or stored.

    :raises Exception: they cannot; whatever environment, policy or algorithm has to say
    """
    check_search(plan)
    task = make_task(experiment, space, plan, packages, gym_packages)
    for baseline in task.baselines().values():
        envs = make_envs(baseline)
        make_model(baseline, envs)
        envs.close()
    _check_space(task)
    return task


#: Settings that some others count only with.
CONDITIONS: dict[str, dict[str, Any]] = {"sde_sample_freq": {"use_sde": True}, "kl_control": {"target_kl": 0.01}}


def _check_space(task: Task) -> None:
    """Build a model with each value of the search space: a mistake in it would else show in the middle of the study.

    :raises ValueError: a value that cannot be
    """
    given = task.experiment.replace(vec_env="dummy")
    envs = make_envs(given)
    for name, value, settings in task.search_space().examples():
        try:
            candidate = task.candidate({**CONDITIONS.get(name, {}), **settings}).replace(vec_env="dummy")
            if candidate.replace(policy_kwargs=given.policy_kwargs, hyperparams=given.hyperparams) == given:
                make_model(candidate, envs)
            else:
                own = make_envs(candidate)
                make_model(candidate, own)
                own.close()
        except (ValueError, TypeError, RuntimeError, AssertionError) as error:
            raise ValueError(f"search space: {name}: {value!r} cannot be used: {error}") from error
    envs.close()


def _supervise(study: Study, plan: Plan, workers: Workers) -> None:
    """Start worker processes, show what they do, and wait for their end."""
    processes = [_start(study, workers) for _ in range(workers.n)]
    lost: set[int] = set()
    try:
        with Watch(study, plan).running() as watch:
            while any(process.poll() is None for process in processes):
                _tell_lost(watch, processes, lost)
                # Where the storage is away the workers decide what becomes of them.
                with suppress(*STORAGE_ERRORS):
                    watch.update()
                    _check_journal(study, processes)
                time.sleep(1)
            _tell_lost(watch, processes, lost)
            with suppress(*STORAGE_ERRORS):
                watch.update()
    except BaseException:
        # Ctrl-C reaches the workers as well; they put their jobs back and end.
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


def _start(study: Study, workers: Workers) -> "subprocess.Popen[bytes]":
    command = ["tune", "worker", "--study-name", study.name, *workers.options]
    return subprocess.Popen(
        [sys.executable, "-c", "from ppo_plus.zoo.cli import main; main()", *command],
        env={**os.environ, STORAGE_VARIABLE: workers.url},
        # What a worker has to say is in the study; its errors are shown at the end.
        stdout=subprocess.DEVNULL,
    )


def _tell_lost(watch: Watch, processes: "list[subprocess.Popen[bytes]]", lost: set[int]) -> None:
    """Say it, once, where a worker has ended before the study."""
    for number, process in enumerate(processes, 1):
        code = process.poll()
        if code and number not in lost:
            lost.add(number)
            what = f"ended with exit code {code}"
            if code < 0:
                what = f"was killed by {_signal_name(-code)}: a trial that it was at is done again"
            watch.tell(f"worker {number} of {len(processes)} (process {process.pid}) {what}")


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one


def _check_journal(study: Study, processes: "list[subprocess.Popen[bytes]]") -> None:
    """Without heartbeats the others would wait for a dead worker's trial for ever."""
    if not has_heartbeats(study.storage) and any(process.poll() for process in processes):
        raise WorkersDied("a worker died, and a journal file cannot tell its trial: run the same command to go on")
