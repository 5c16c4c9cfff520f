"""What one action costs, in microseconds: by ``model.predict``, and by the exported policy in onnxruntime.

    python benchmarks/benchmark_export.py
    python benchmarks/benchmark_export.py --quick          # only whether it runs: its figures mean nothing

For one observation of HalfCheetah's shape, a policy of 64 x 64 units, and one thread. Rounds are interleaved, so that a
busy machine disturbs all alike, and medians are given.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from ppo_plus import PPO_Plus


class LikeHalfCheetah(gym.Env[np.ndarray, np.ndarray]):
    """Spaces of HalfCheetah-v5, and nothing else."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (17,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        return np.zeros(17, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(17, np.float32), 0.0, False, False, {}


def microseconds(function: Callable[[], Any], n_calls: int) -> float:
    """The mean of one round."""
    start = time.perf_counter()
    for _ in range(n_calls):
        function()
    return (time.perf_counter() - start) / n_calls * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few calls")
    n_rounds, n_calls = (1, 10) if parser.parse_args().quick else (21, 2000)
    import onnxruntime  # of the extra export

    th.set_num_threads(1)
    model = PPO_Plus("MlpPolicy", LikeHalfCheetah(), n_steps=64, device="cpu", seed=0)
    with TemporaryDirectory() as folder:
        path = model.export(Path(folder) / "policy.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
    obs = np.random.default_rng(0).standard_normal((1, 17), np.float32)
    ways: dict[str, Callable[[], Any]] = {
        "model.predict": lambda: model.predict(obs, deterministic=True),
        "onnxruntime": lambda: session.run(None, {"observation": obs}),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(n_rounds):
        for name, way in ways.items():
            times[name].append(microseconds(way, n_calls))
    for name, measured in times.items():
        print(f"{name}: {median(measured):.1f} µs")


if __name__ == "__main__":
    main()
