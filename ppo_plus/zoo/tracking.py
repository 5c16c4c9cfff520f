"""Tracking of runs by Weights & Biases, through TensorBoard's files."""

import argparse
import time

from ppo_plus.zoo.experiment import Experiment


def track(args: argparse.Namespace, experiment: Experiment) -> str:
    """Start tracking.

    :param args: the arguments of ``ppo-plus train``
    :param experiment: what is trained
    :return: folder for TensorBoard, which is uploaded from
    :raises ImportError: the package is not installed
    """
    try:
        import wandb
    except ImportError:
        raise ImportError("--track needs Weights & Biases: pip install wandb") from None
    name = f"{experiment.env_id}__ppo_plus__{experiment.seed}__{int(time.time())}"
    wandb.init(
        name=name,
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        group=args.wandb_group,
        tags=args.wandb_tags,
        config={"env": experiment.env_id, "seed": experiment.seed, **experiment.settings()},
        sync_tensorboard=True,
    )
    return f"runs/{name}"
