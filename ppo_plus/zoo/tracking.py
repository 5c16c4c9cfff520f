"""Tracking of runs by Weights & Biases, through TensorBoard's files."""

import argparse
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppo_plus.zoo.experiment import Experiment


def run_name(experiment: "Experiment") -> str:
    """Name of a tracked run, as rl_zoo3 names them.

    :raises ImportError: Weights & Biases is not installed
    """
    if find_spec("wandb") is None:
        raise ImportError("--track needs Weights & Biases: pip install wandb")
    return f"{experiment.env_id}__ppo_plus__{experiment.seed}__{int(time.time())}"


def track(args: argparse.Namespace, experiment: "Experiment", name: str) -> None:
    """Start tracking; what is written for TensorBoard from now on is uploaded.

    :param args: the arguments of ``ppo-plus train``
    :param experiment: what is trained
    :param name: name of the run
    """
    import wandb

    wandb.init(
        name=name,
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        group=args.wandb_group,
        tags=args.wandb_tags,
        config={"env": experiment.env_id, "seed": experiment.seed, **experiment.settings()},
        sync_tensorboard=True,
    )
