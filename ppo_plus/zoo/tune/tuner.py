"""The tuner: creates a study or resumes it, lets workers do it, and writes the report."""

import signal
from pathlib import Path
from typing import Any

from ppo_plus.zoo.experiment import ALLOWED_PACKAGES, Experiment
from ppo_plus.zoo.interrupts import deferred
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.processes import Workers, supervise
from ppo_plus.zoo.tune.report import check_folder, write_report
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.stages import Study, create
from ppo_plus.zoo.tune.storage import named_errors
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.verdict import TuningVerdict
from ppo_plus.zoo.tune.worker import Worker


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
        worker = Worker(study, task.packages)
        if workers is None:
            worker.work()
        elif not worker.is_over():
            supervise(study, task, workers)
        return write_report(study, task, folder)
