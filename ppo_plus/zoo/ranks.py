"""Training in several processes: how they are started, and what each has of the experiment.

``ppo-plus train --processes N`` is ``torchrun --nproc-per-node N -m ppo_plus train``; numbers in the settings mean the
whole, and are divided.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch as th
from torch import distributed as dist

from ppo_plus.ranks import Ranks
from ppo_plus.zoo.experiment import Experiment

#: What torchrun tells each process; see ``torch.distributed.run``.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process beside others."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def join(device: str) -> Ranks:
    """Be one of the processes that torchrun has started, if it has, until this one ends; alone otherwise.

    :param device: where the model computes; gloo joins CPUs, NCCL GPUs
    """
    if not launched():
        return Ranks.present()
    on_gpu = device.startswith("cuda") or (device == "auto" and th.cuda.is_available())
    if on_gpu:
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    # Without, gloo's threads end the process with an error of their own.
    atexit.register(Ranks.present().leave)
    return Ranks.present()


def launch(n_processes: int, arguments: Sequence[str]) -> NoReturn:
    """Become torchrun, which starts processes on this machine.

    :param n_processes: how many
    :param arguments: of ``ppo-plus``
    """
    # Each process has one core's work; torchrun says so in many lines where nobody else has.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    command = [sys.executable, *torchrun, "-m", "ppo_plus", *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


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
