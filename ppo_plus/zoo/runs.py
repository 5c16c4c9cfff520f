"""Runs on disk: the folder of a run, which has rl_zoo3's layout (``docs/zoo.md`` lists its files), and its options."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ppo_plus.saving.files import UNFINISHED, claim, file_name
from ppo_plus.zoo.hyperparams import read_mapping
from ppo_plus.zoo.installation import command

ALGO = "ppo_plus"


@dataclass(frozen=True)
class Options:
    """Where a run starts from, what it records and shows, and how it handles failing environments."""

    log_folder: str = "logs"
    eval_freq: int = 25_000  # environment steps between evaluations; 0 or less: no evaluations
    eval_episodes: int = 5
    n_eval_envs: int = 1  # number of evaluation environments, over all processes, at least one in each
    #: Environment steps between checkpoints with permanent models; 0 or less: checkpoints every ten minutes, no models.
    save_freq: int = -1
    keep_checkpoints: int = 3
    trained_agent: str | None = None  # a model (`.zip`) to continue from, with its networks; `None`: a new model
    trust_model: bool = False
    gym_packages: list[str] | None = None  # packages that the command of the run imported
    tensorboard_log: str | None = None
    restart_envs: int = 0  # how many failed environments to replace, over all for training, and over all for evaluation
    env_timeout: float | None = None  # limit of seconds for a step or a reset of an environment
    env_workers: int | str | None = None  # number of processes with environments, or `auto`; `None`: one for each
    progress: bool = True
    verbose: int = 0

    def supervision(self) -> dict[str, Any]:
        """Arguments of :func:`ppo_plus.zoo.experiment.make_envs` for environments that may fail."""
        return {"restarts": self.restart_envs, "timeout": self.env_timeout, "n_workers": self.env_workers}


class RunFolder:
    """The folder of one run of an environment."""

    def __init__(self, path: Path, env_id: str):
        self.path, self.env_id = path, env_id
        self.last_model = path / f"{file_name(env_id)}.zip"
        self.best_model = path / "best_model.zip"
        self.checkpoints = path / "checkpoints"  # what an interrupted run is resumed from
        self.settings = path / file_name(env_id)  # folder of the settings and arguments
        self.command = self.settings / "command.txt"  # the command line that started the run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes to this folder, or ``BlockingIOError``, and remove unfinished files."""
        with claim(self.checkpoints / ".lock") as acquired:
            if not acquired:
                raise BlockingIOError(f"{self.path}: another process is training this run")
            for unfinished in self.path.rglob(UNFINISHED):
                unfinished.unlink()
            yield

    def saved_model(self, timesteps: int | None = None) -> Path:
        """The model that was saved after a number of timesteps (``--save-freq``); ``None``: the last one.

        :raises FileNotFoundError: there is no such model; the message lists the existing ones
        """
        models = {int(path.name.split("_")[2]): path for path in self.path.glob("rl_model_*_steps.zip")}
        if not models:
            raise FileNotFoundError(f"{self.path} has no models of earlier timesteps: train with --save-freq")
        if timesteps is not None and timesteps not in models:
            steps = ", ".join(map(str, sorted(models)))
            raise FileNotFoundError(f"{self.path} has no model after {timesteps} timesteps: choose from {steps}")
        return models[timesteps or max(models)]

    def arguments(self) -> dict[str, Any]:
        """The arguments that the run was started with, besides its settings."""
        return read_mapping(self.settings / "args.yml")


def new_folder(log_folder: Path, env_id: str) -> RunFolder:
    """Create the folder of a new run, numbered after the last one. Several runs may start at the same time."""
    parent = log_folder / ALGO
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(max(runs_of(parent, env_id), default=0) + 1):
        path = parent / f"{file_name(env_id)}_{number}"
        with suppress(FileExistsError):
            path.mkdir()
            break
    return RunFolder(path, env_id)


def find_folder(log_folder: Path, env_id: str, number: int = 0, algos: Sequence[str] = (ALGO,)) -> RunFolder:
    """The folder of an existing run.

    :param number: number of the run; 0: the last one, or ``log_folder`` if that is a run's folder; -1: ``log_folder``
    :param algos: folders in ``log_folder`` to search; the first that has runs of the environment is used
    :raises FileNotFoundError: there is no such run; the message lists the existing ones
    """
    itself = RunFolder(log_folder, env_id)
    if number < 0 or (number == 0 and (itself.settings / "args.yml").is_file()):
        return itself
    parents = [log_folder / algo for algo in algos]
    parent = next((parent for parent in parents if runs_of(parent, env_id)), parents[0])
    if not (runs := runs_of(parent, env_id)):
        remedy = f"train one: {command('train', '--env', env_id, '-f', str(log_folder))}"
        raise FileNotFoundError(f"there is no run of {env_id} in {parent}: {remedy}")
    number = number or max(runs)
    if number not in runs:
        numbers = ", ".join(map(str, sorted(runs)))
        raise FileNotFoundError(f"there is no run {number} of {env_id} in {parent}: choose --exp-id from {numbers}")
    return RunFolder(runs[number], env_id)


def runs_of(parent: Path, env_id: str) -> dict[int, Path]:
    """The folders of an environment's runs, by number, in the folder of an algorithm's runs."""
    pattern = re.compile(rf"{re.escape(file_name(env_id))}_(\d+)")
    return {int(match[1]): path for path in parent.glob("*") if (match := pattern.fullmatch(path.name))}


def open_run(
    path: Path, option: str = "--resume", remedy: str = "give one like logs/ppo_plus/CartPole-v1_1"
) -> RunFolder:
    """The run in a folder, or ``FileNotFoundError`` with the option that names the folder, and a remedy."""
    if (path / "command.txt").is_file():
        path = path.parent  # the folder of its settings was given
    # On the hub, rl_zoo3's is beside the model.
    saved = next(iter([*path.glob("*/args.yml"), *path.glob("args.yml")]), None)
    arguments = {} if saved is None else read_mapping(saved)
    if saved is None or "env" not in arguments:
        raise FileNotFoundError(f"{option} {path}: not the folder of a run; {remedy}")
    folder = RunFolder(path, arguments["env"])
    folder.settings = saved.parent
    return folder
