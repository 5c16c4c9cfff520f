"""What a training run records and shows, and what it survives."""

from dataclasses import dataclass
from typing import Any


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
