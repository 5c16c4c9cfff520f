"""The folder of a run, laid out as rl_zoo3 does::

logs/ppo_plus/CartPole-v1_1/
    CartPole-v1.zip                  the last model
    best_model.zip                   the one that was best in evaluation
    rl_model_10000_steps.zip         models saved on the way
    checkpoints/                     what `ppo-plus train --resume` goes on from, until training has ended
    <model>_vecnormalize.zip         the normalization statistics of each of them
    evaluations.npz                  returns of all evaluations
    0.monitor.csv, …                 training episodes of each environment
    learning_curve.png
    CartPole-v1/config.yml           the settings: `ppo-plus train -conf` and rl_zoo3 read them
    CartPole-v1/args.yml             the other arguments
    CartPole-v1/command.txt
    CartPole-v1/vecnormalize.pkl     the last model's statistics, where rl_zoo3 looks for them
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ppo_plus.files.atomic import UNFINISHED
from ppo_plus.files.lock import claim
from ppo_plus.zoo.hyperparams import RunLoader, read_mapping

ALGO = "ppo_plus"
#: rl_zoo3's algorithms whose models PPO_Plus can load.
RL_ZOO3_ALGOS = ("ppo", "ppo_lstm")


@dataclass(frozen=True)
class RunFolder:
    """Where the files of one run are.

    :param path: the folder
    :param env_id: Gymnasium environment id
    """

    path: Path
    env_id: str

    @property
    def last_model(self) -> Path:
        """The model as it was at the end of training."""
        return self.path / f"{file_name(self.env_id)}.zip"

    @property
    def best_model(self) -> Path:
        """The model that was best in evaluation."""
        return self.path / "best_model.zip"

    @property
    def checkpoints(self) -> Path:
        """Folder of what an interrupted run goes on from."""
        return self.path / "checkpoints"

    @property
    def was_trained_to_its_end(self) -> bool:
        """Whether there is nothing left to go on with: the checkpoints are removed last."""
        return self.last_model.exists() and not self.checkpoints.exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only process that writes here; what a killed one left unfinished is removed.

        :raises BlockingIOError: another process is
        """
        with claim(self.checkpoints / ".lock") as held:
            if not held:
                raise BlockingIOError(f"{self.path}: another process is training this run")
            for unfinished in self.path.rglob(UNFINISHED):
                unfinished.unlink()
            yield

    def checkpoint(self, timesteps: int | None = None) -> Path:
        """A checkpoint.

        :param timesteps: after how many timesteps; ``None``: the last one
        :raises FileNotFoundError: there is none; the message says which there are
        """
        found = {int(path.name.split("_")[2]): path for path in self.path.glob("rl_model_*_steps.zip")}
        if not found:
            raise FileNotFoundError(f"{self.path} has no checkpoint: train with --save-freq")
        if timesteps is not None and timesteps not in found:
            steps = ", ".join(map(str, sorted(found)))
            raise FileNotFoundError(f"{self.path} has no checkpoint after {timesteps} timesteps: choose from {steps}")
        return found[timesteps or max(found)]

    @property
    def settings(self) -> Path:
        """Folder of what was asked for."""
        return self.path / file_name(self.env_id)

    @property
    def command(self) -> Path:
        """The command that began it."""
        return self.settings / "command.txt"


def file_name(env_id: str) -> str:
    """An environment id without the characters that have a meaning in paths: ``ALE-Pong-v5``."""
    return env_id.replace("/", "-").replace(":", "-")


def new_folder(log_folder: Path, env_id: str, unique: bool = False) -> RunFolder:
    """Create the folder of the next run, one number above the last; safe when several runs start at once.

    :param log_folder: folder of all runs
    :param env_id: Gymnasium environment id
    :param unique: add a UUID to its name
    """
    parent = log_folder / ALGO
    suffix = f"_{uuid.uuid4()}" if unique else ""
    for number in count(last_run(parent, env_id) + 1):
        path = parent / f"{file_name(env_id)}_{number}{suffix}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return RunFolder(path, env_id)


def find_folder(log_folder: Path, env_id: str, number: int = 0, algos: Sequence[str] = (ALGO,)) -> RunFolder:
    """The folder of a run that there is.

    :param log_folder: folder of all runs
    :param env_id: Gymnasium environment id
    :param number: of the run; 0: the last one; -1: ``log_folder`` is the run's folder itself
    :param algos: names of the folders in ``log_folder`` to look in, the first that has runs of the environment counts
    :raises FileNotFoundError: there is none; the message says which there are
    """
    if number < 0:
        return RunFolder(log_folder, env_id)
    parents = [log_folder / algo for algo in algos]
    parent = next((parent for parent in parents if runs_of(parent, env_id)), parents[0])
    runs = runs_of(parent, env_id)
    if not runs:
        elsewhere = [algo for algo in RL_ZOO3_ALGOS if runs_of(log_folder / algo, env_id)]
        remedy = f"use --algo {elsewhere[0]}" if elsewhere else f"train one with `ppo-plus train --env {env_id}`"
        raise FileNotFoundError(f"there is no run of {env_id} in {parent}: {remedy}")
    number = number or max(runs)
    if number not in runs:
        numbers = ", ".join(map(str, sorted(runs)))
        raise FileNotFoundError(f"there is no run {number} of {env_id} in {parent}: choose --exp-id from {numbers}")
    return RunFolder(runs[number], env_id)


def runs_of(parent: Path, env_id: str) -> dict[int, Path]:
    """The folders of an environment's runs, by their numbers.

    :param parent: folder of an algorithm's runs
    :param env_id: Gymnasium environment id
    """
    pattern = re.compile(rf"{re.escape(file_name(env_id))}_(\d+)(_[0-9a-f-]{{36}})?")
    matches = [pattern.fullmatch(path.name) for path in sorted(parent.glob(f"{file_name(env_id)}_*"))]
    return {int(match[1]): parent / match[0] for match in reversed(matches) if match}


def last_run(parent: Path, env_id: str) -> int:
    """Highest number of a run's folder; 0 if there is none."""
    return max(runs_of(parent, env_id), default=0)


@dataclass(frozen=True)
class Options:
    """Where a run starts from, what it records and shows, and what it does where environments fail. None of it changes
    what is learned from environments that do not.

    :param log_folder: folder of all runs
    :param uuid: add a UUID to the name of the run's folder
    :param eval_freq: environment steps between evaluations; 0 or less: none
    :param eval_episodes: episodes of each evaluation
    :param n_eval_envs: environments that evaluation uses side by side, over all processes, at least one in each
    :param save_freq: environment steps between checkpoints, and between models that are saved; 0 or less: no models,
        and checkpoints every ten minutes only
    :param keep_checkpoints: how many checkpoints to keep, the newest
    :param trained_agent: a model (``.zip``) to train on, with the networks that it has; ``None``: a new one
    :param keep_timesteps: with a trained agent: go on counting timesteps from its
    :param trust_model: read it even if that runs code in it
    :param tensorboard_log: folder for TensorBoard; ``None``: none
    :param log_interval: rollouts between two logs; ``None``: no logs
    :param progress: show progress
    :param restart_envs: how many times a fresh environment may take the place of one that failed, over all training
        environments, and over all of evaluation
    :param env_timeout: seconds that an environment may take for a step or a reset; ``None``: any
    :param verbose: 0: no tables of numbers, 1: SB3's, 2: debugging
    """

    log_folder: str = "logs"
    uuid: bool = False
    eval_freq: int = 25_000
    eval_episodes: int = 5
    n_eval_envs: int = 1
    save_freq: int = -1
    keep_checkpoints: int = 3
    trained_agent: str | None = None
    keep_timesteps: bool = False
    trust_model: bool = False
    tensorboard_log: str | None = None
    log_interval: int | None = 1
    restart_envs: int = 0
    env_timeout: float | None = None
    progress: bool = True
    verbose: int = 0

    def supervision(self) -> dict[str, Any]:
        """The arguments of :func:`ppo_plus.zoo.envs.make_envs` for environments that may fail."""
        return {"restarts": self.restart_envs, "timeout": self.env_timeout}


def saved_arguments(folder: RunFolder) -> dict[str, Any]:
    """What a run was started with, besides its settings; parameter and errors as for :func:`saved_experiment`."""
    return read_mapping(folder.settings / "args.yml", RunLoader)


def find_run(path: Path) -> RunFolder:
    """The folder of a run.

    :param path: the folder
    :raises FileNotFoundError: it is none
    """
    saved = next(path.glob("*/args.yml"), None)
    if saved is None:
        raise FileNotFoundError(f"--resume {path}: this is no run's folder, such as logs/ppo_plus/CartPole-v1_1")
    return RunFolder(path, read_mapping(saved, RunLoader)["env"])
