"""A picture of the README: the same learning in less time.

    python benchmarks/learning_curves.py --json benchmarks/results/learning_curves.json
    python benchmarks/pictures.py    # docs/pictures/learning.svg

CartPole-v1 with SB3's default hyperparameters and 8 environments (2048 transitions a rollout), SB3's
PPO and PPO_Plus compiled, the mean return of the last 20 training episodes over seconds of CPU time in one thread, each
run in its own process. What compiling takes is in it, with a compiler cache that a run before has filled: the mean over
seeds, and their range.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
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
}
N_ENVS, N_STEPS, TIMESTEPS, SEEDS = 8, 256, 51_200, 5


class Curve(BaseCallback):
    """Keeps, at the end of each rollout, timesteps, CPU seconds and the mean return of the last 20 episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float, float]] = []

    def _on_training_start(self) -> None:
        self.start = process_time()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()][-20:]
        self.points.append((self.num_timesteps, process_time() - self.start, float(np.mean(returns))))


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
    _alone("PPO_Plus", 0)
    for seed in range(SEEDS):
        for contender, runs in curves.items():
            runs.append(_alone(contender, seed))
            print(f"{contender}, seed {seed}: {runs[-1][-1]}", flush=True)
    return {
        "versions": facts(),
        "env": "CartPole-v1",
        "columns": ["timesteps", "CPU seconds", "return"],
        "runs": curves,
    }


def _alone(contender: str, seed: int) -> list[tuple[int, float, float]]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(learn, contender, seed).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file for the measurements")
    arguments = parser.parse_args()
    write(arguments.json, measure(), indent=None)


if __name__ == "__main__":
    main()
