"""A picture of the README: the same learning in less time.

    python benchmarks/learning_curves.py --json benchmarks/results/learning_curves.json
    python benchmarks/pictures.py    # docs/pictures/learning.svg

CartPole-v1 with SB3's default hyperparameters and 8 environments (2048 transitions a rollout), SB3's
PPO and PPO_Plus compiled, the mean return of the last 20 training episodes over seconds of CPU time in one thread, each
run in its own process: the mean over seeds, and their range. The seconds include compiling, with an empty compiler
cache (the first run on a machine) and with the cache that this run has filled.
"""

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from machine import facts  # the modules beside this one
from report.results import write
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from ppo_plus import PPO_Plus

CONTENDERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "SB3's PPO": (PPO, {}),
    "PPO_Plus": (PPO_Plus, {"compile": True}),
    "PPO_Plus, first run on a machine": (PPO_Plus, {"compile": True}),
}
#: In this order, so that each run that finds a filled compiler cache follows the one that fills it.
TURNS = ("SB3's PPO", "PPO_Plus, first run on a machine", "PPO_Plus")
N_ENVS, N_STEPS, TIMESTEPS, SEEDS = 8, 256, 51_200, 5


def cpu_seconds() -> float:
    """The CPU time of this process, and of the compilers that it has run."""
    return sum(os.times()[:4])


class Curve(BaseCallback):
    """Keeps, at the end of each rollout, timesteps, CPU seconds and the mean return of the last 20 episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float, float]] = []

    def _on_training_start(self) -> None:
        self.start = cpu_seconds()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()][-20:]
        self.points.append((self.num_timesteps, cpu_seconds() - self.start, float(np.mean(returns))))


def learn(contender: str, seed: int) -> list[tuple[int, float, float]]:
    """The curve of one run."""
    th.set_num_threads(1)
    algorithm, arguments = CONTENDERS[contender]
    env = make_vec_env("CartPole-v1", N_ENVS, seed=1000 * seed)
    model = algorithm("MlpPolicy", env, n_steps=N_STEPS, seed=seed, device="cpu", **arguments)
    curve = Curve()
    model.learn(TIMESTEPS, callback=curve, log_interval=None)
    return curve.points


def measure() -> dict[str, Any]:
    """The curves of all runs, one after another, each in a fresh process."""
    curves: dict[str, list[list[tuple[int, float, float]]]] = {contender: [] for contender in CONTENDERS}
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            for contender in TURNS:
                with ProcessPoolExecutor(1, get_context("spawn"), use_cache, (cache,)) as process:
                    curve = process.submit(learn, contender, seed).result()
                curves[contender].append(curve)
                print(f"{contender}, seed {seed}: {curve[-1]}", flush=True)
    return {
        "versions": facts(),
        "env": "CartPole-v1",
        "columns": ["timesteps", "CPU seconds", "return"],
        "runs": curves,
    }


def use_cache(folder: str) -> None:
    """Keep what is compiled in this folder; TorchInductor keeps some of it in the temporary one."""
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TMPDIR": folder}
    tempfile.tempdir = folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file for the measurements")
    arguments = parser.parse_args()
    write(arguments.json, measure())


if __name__ == "__main__":
    main()
