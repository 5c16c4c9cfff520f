"""Training in several processes: what each has of the experiment, whose numbers mean the whole."""

import atexit
import os

import torch as th

from ppo_plus.ranks import Ranks
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.rendezvous import join_group
from ppo_plus.zoo.torchrun import end_with_torchrun, launched


def join(device: str) -> Ranks:
    """Be one of the processes that torchrun has started, if it has, until this one ends; alone otherwise.

    :param device: where the model computes; gloo joins CPUs, NCCL GPUs
    """
    if not launched():
        return Ranks.present()
    # Going on without it, this process would be in the way of those that resume the run.
    end_with_torchrun()
    on_gpu = device.startswith("cuda") or (device == "auto" and th.cuda.is_available())
    if on_gpu:
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    # Beside NCCL, gloo sends what is on the CPU, such as an optimizer's count of steps.
    join_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    # Without, gloo's threads end the process with an error of their own.
    atexit.register(Ranks.present().leave)
    return Ranks.present()


def _take_gpu(local_rank: int) -> None:
    """:raises ValueError: there is none for this process"""
    n_gpus = th.cuda.device_count()
    if local_rank >= n_gpus:
        raise ValueError(
            f"this machine has {n_gpus} GPUs, one for each process: use --processes {n_gpus}, or --device cpu"
        )
    th.cuda.set_device(local_rank)


def share(experiment: Experiment, ranks: Ranks) -> Experiment:
    """What one process has of an experiment: its part of the environments and of each minibatch.

    :param experiment: the whole
    :param ranks: the processes
    :raises ValueError: something cannot be divided
    """
    if not ranks.several:
        return experiment
    batch_size = experiment.hyperparams.get("batch_size", 64)
    for name, value in (("n_envs", experiment.n_envs), ("batch_size", batch_size)):
        if value % ranks.size:
            raise ValueError(
                f"{name}={value} cannot be divided among {ranks.size} processes: use a multiple of {ranks.size}, "
                f"such as {name}={-(-value // ranks.size) * ranks.size}, or fewer processes"
            )
    hyperparams = {**experiment.hyperparams, "batch_size": batch_size // ranks.size}
    return experiment.replace(n_envs=experiment.n_envs // ranks.size, hyperparams=hyperparams)
