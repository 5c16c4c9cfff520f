"""A picture of the README: the same learning in less time.

    python benchmarks/learning_curves.py --json benchmarks/results/learning_curves.json
    python benchmarks/learning_curves.py --json benchmarks/results/learning_curves.json --draw docs/pictures

``learning.svg``: CartPole-v1 with SB3's default hyperparameters and 8 environments (2048 transitions a rollout), SB3's
PPO and PPO_Plus compiled, the mean return of the last 20 training episodes over seconds of CPU time in one thread, each
run in its own process. What compiling takes is in it, with a compiler cache that a run before has filled: the mean over
seeds, and their range.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch as th
from drawing import BLUE, ORANGE, picture  # the scripts beside this one
from runs import facts
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


def draw(curves: dict[str, Any], folder: Path) -> None:
    """Draw ``learning.svg``.

    :param curves: what :func:`measure` returned
    :param folder: where the picture goes
    """
    with picture(folder / "learning.svg") as axes:
        for (contender, runs), color in zip(curves["runs"].items(), (ORANGE, BLUE), strict=True):
            _draw_curve(axes, np.array(runs), contender, color)
        axes.set(title=f"{curves['env']}, SB3's hyperparameters, {len(runs)} seeds", xlabel="seconds of CPU time")
        axes.set(ylabel="return", xlim=(0, None), ylim=(0, 510))
        axes.legend(frameon=False, loc="lower right")


def _draw_curve(axes: Any, runs: np.ndarray, label: str, color: str) -> None:
    """The mean over seeds, all of which have the same timesteps, at the mean of their times; and their range."""
    seconds, returns = runs[:, :, 1].mean(axis=0), runs[:, :, 2]
    axes.plot(seconds, returns.mean(axis=0), color=color, label=label)
    axes.fill_between(seconds, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.2, linewidth=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file for the measurements")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="measure nothing; draw what is in that file")
    arguments = parser.parse_args()

    if arguments.draw:
        draw(json.loads(arguments.json.read_text()), arguments.draw)
    else:
        # Before hours of work, not after.
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(measure()) + "\n")


if __name__ == "__main__":
    main()
