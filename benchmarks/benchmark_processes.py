"""Whether several processes train faster than one, on one machine: whole training, and updates by width and minibatch.

    python benchmarks/benchmark_processes.py --json benchmarks/results/processes.json
    python benchmarks/benchmark_processes.py --processes 4 --only updates --widths 64 1024 --batch-sizes 64 4096

torchrun starts the processes, of which each has one thread. **Updates**: of networks with two hidden layers, by their
width and the size of the whole minibatch. **Training**, all of it: NatureCNN, images of Atari's shape that are
replayed, 16 environments, minibatches of 256; by SB3 and by PPO_Plus in one process, and by PPO_Plus in all. They take
turns in the same processes; where one works alone, others sleep. A speed-up is the time of one process divided by that
of all, in the same round: median [smallest, largest]. *Without messages* each process trains a separate model on its
part: what the cores allow, since two of them share memory and clock, and the minibatches are smaller.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch as th
from benchmark import ATARI, VECTOR, Workload  # the modules beside this one
from machine import facts
from report.processes import ALL, ALONE, APART, N_ENVS, N_MINIBATCHES, N_STEPS, training_table, updates_table
from report.results import write
from report.speed import REFERENCE
from stable_baselines3 import PPO
from torch import distributed as dist

from ppo_plus import PPO_Plus
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.distributed.shared import shared_training
from ppo_plus.distributed.torchrun import launched

IMAGES = replace(ATARI, n_envs=N_ENVS, n_steps=N_STEPS, batch_size=256, n_epochs=4)
WIDTHS, BATCH_SIZES = (64, 256, 1024), (64, 512, 4096)


def part(workload: Workload, ranks: Ranks) -> Workload:
    """The part of a workload that one process has."""
    return replace(workload, n_envs=workload.n_envs // ranks.size, batch_size=workload.batch_size // ranks.size)


def trainee(workload: Workload, ranks: Ranks, algorithm: Any = PPO_Plus, **arguments: Any) -> Any:
    """One model on a workload.

    :param workload: of this process
    :param ranks: the processes that train it together; ``Ranks()``: this one alone
    """
    sizes = {"n_steps": workload.n_steps, "batch_size": workload.batch_size, "n_epochs": workload.n_epochs}
    env = workload.make_env(ranks.rank)
    model = algorithm(workload.policy, env, seed=0, device="cpu", **sizes, **workload.arguments, **arguments)
    if algorithm is PPO_Plus:
        model.ranks, model.shared = ranks, shared_training(ranks)
    return model


def learning(model: Any) -> float:
    """Seconds of one rollout and its update."""
    start = perf_counter()
    model.learn(1, log_interval=None, reset_num_timesteps=False)
    return perf_counter() - start


def updating(model: Any) -> float:
    """Seconds of one update."""
    start = perf_counter()
    model.train()
    return perf_counter() - start


def compare(workload: Workload, time: Callable[[Any], float], rounds: int, sb3: bool) -> dict[str, list[float]]:
    """Seconds of one process and of all in each round, on one workload.

    :param workload: the whole
    :param time: makes a model work, and says for how long
    :param rounds: how many count
    :param sb3: whether SB3's PPO takes its turn, too
    """
    ranks = Ranks.present()
    own = part(workload, ranks)
    makers: dict[str, Callable[[], Any]] = {
        ALL: partial(trainee, own, ranks, compile=True),
        APART: partial(trainee, own, Ranks(), compile=True),
    }
    if ranks.leads:
        makers[ALONE] = partial(trainee, workload, Ranks(), compile=True)
        makers[REFERENCE] = partial(trainee, workload, Ranks(), PPO)
    names = [*([REFERENCE] if sb3 else []), ALONE, ALL, APART]
    models = {name: makers[name]() for name in names if name in makers}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + 1):
        for name in names:
            dist.barrier()
            if name not in models:
                continue  # Rank 0 works alone.
            # The first time fills the rollout, and compiles.
            found = time(models[name]) if i else learning(models[name])
            seconds[name] += [found] if i else []
    return seconds


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """In each process."""
    results: dict[str, Any] = {}
    if "updates" in arguments.only:
        results["updates"] = {
            width: {
                size: compare(updates_of(width, size), updating, arguments.rounds, sb3=False)
                for size in arguments.batch_sizes
            }
            for width in arguments.widths
        }
    if "training" in arguments.only:
        results["training"] = compare(IMAGES, learning, arguments.rounds, sb3=True)
    return results


def updates_of(width: int, batch_size: int) -> Workload:
    """Updates of an actor and a critic with two hidden layers each."""
    arguments = {"policy_kwargs": {"net_arch": [width, width]}}
    return Workload(VECTOR, N_MINIBATCHES, batch_size, batch_size=batch_size, n_epochs=1, arguments=arguments)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--processes", type=int, default=2, help="how many (default: %(default)s)")
    parts = ["updates", "training"]
    options.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to measure (default: all)")
    options.add_argument("--widths", nargs="+", type=int, default=WIDTHS, metavar="N")
    options.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES, metavar="N")
    options.add_argument("--rounds", type=int, default=5, help="how many count (default: %(default)s)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path, help="where to write what was measured")
    arguments = options.parse_args()
    if not launched():
        os.environ["OMP_NUM_THREADS"] = "1"
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.processes)]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    th.set_num_threads(1)
    np.random.seed(arguments.seed)
    dist.init_process_group("gloo")
    try:
        measured = measure(arguments)
    except BaseException:
        Ranks.present().leave()
        raise
    if Ranks.present().leads:
        about = facts() | {"seed": arguments.seed, "rounds": arguments.rounds}
        # As it comes back from a file: with text for keys.
        results = json.loads(json.dumps({"about": about, "processes": arguments.processes, **measured}))
        tables = {"updates": updates_table, "training": training_table}
        for name, make in tables.items():
            if name in results:
                print("\n".join(["", name, "", *make(results)]))
        print(f"\n{json.dumps(results['about'])}")
        if arguments.json:
            write(arguments.json, results)
    Ranks.present().leave()


if __name__ == "__main__":
    main()
