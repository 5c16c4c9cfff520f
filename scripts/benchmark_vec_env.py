"""What one step of all environments costs, in microseconds, by kind of vector environment.

    python scripts/benchmark_vec_env.py                       # CartPole-v1, 1, 8 and 64 environments
    python scripts/benchmark_vec_env.py --env HalfCheetah-v5 --n-envs 1 8
    python scripts/benchmark_vec_env.py --json docs/benchmarks/vec_env.json
    python scripts/benchmark_vec_env.py --n-envs 8 --rounds 40 --kinds SB3 Supervised

All are stepped through SB3's ``VecEnv`` interface, with the same kind of random actions, from one process and with its
default number of threads. Rounds are interleaved, so that a busy machine disturbs all alike, and medians are given.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from os import cpu_count
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3 import __version__ as sb3_version
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from ppo_plus import SupervisedVecEnv, __version__
from ppo_plus.rollout.vec_env import as_vec_env

#: A round steps for about so long, and at least so often.
ROUND_SECONDS, ROUND_STEPS = 0.2, 20


def make_sb3(env_id: str, n_envs: int, kind: type[VecEnv], **kwargs: Any) -> VecEnv:
    return make_vec_env(env_id, n_envs, seed=0, vec_env_cls=kind, vec_env_kwargs=kwargs)  # type: ignore[arg-type]


def make_gym(env_id: str, n_envs: int, mode: str) -> VecEnv:
    """Gymnasium's, by ``vectorization_mode``; those with a choice reset as SB3 does."""
    kwargs = {} if mode == "vector_entry_point" else {"autoreset_mode": AutoresetMode.SAME_STEP}
    return as_vec_env(gym.make_vec(env_id, n_envs, vectorization_mode=mode, vector_kwargs=kwargs))


def make_envpool(env_id: str, n_envs: int) -> VecEnv:
    return as_vec_env(import_module("envpool").make(env_id, env_type="gymnasium", num_envs=n_envs, seed=0))


def makers(env_id: str) -> dict[str, Callable[[int], VecEnv]]:
    """How to make each kind that is to be had for this environment."""
    kinds: dict[str, Callable[[int], VecEnv]] = {
        "SB3 DummyVecEnv": partial(make_sb3, env_id, kind=DummyVecEnv),
        "SB3 SubprocVecEnv": partial(make_sb3, env_id, kind=SubprocVecEnv),
        "Supervised, here": partial(make_sb3, env_id, kind=SupervisedVecEnv, processes=False),
        "Supervised, in processes": partial(make_sb3, env_id, kind=SupervisedVecEnv),
        "Supervised, with a time limit": partial(make_sb3, env_id, kind=SupervisedVecEnv, timeout=60),
        "Gymnasium sync": partial(make_gym, env_id, mode="sync"),
        "Gymnasium async": partial(make_gym, env_id, mode="async"),
    }
    if gym.spec(env_id).vector_entry_point is not None:
        kinds["Gymnasium native"] = partial(make_gym, env_id, mode="vector_entry_point")
    if find_spec("envpool") is not None and env_id in import_module("envpool").list_all_envs():
        kinds["EnvPool"] = partial(make_envpool, env_id)
    return kinds


def random_actions(env: VecEnv, n: int = 64) -> list[np.ndarray]:
    """``n`` steps of valid actions, drawn beforehand."""
    env.action_space.seed(0)
    return [np.stack([env.action_space.sample() for _ in range(env.num_envs)]) for _ in range(n)]


def time_steps(env: VecEnv, actions: list[np.ndarray], n_steps: int) -> float:
    """Microseconds per step of all environments."""
    start = time.perf_counter()
    for i in range(n_steps):
        env.step(actions[i % len(actions)])
    return (time.perf_counter() - start) / n_steps * 1e6


def benchmark(env_id: str, n_envs: int, rounds: int, kinds: list[str]) -> dict[str, list[float]]:
    """Microseconds per step, by kind and round.

    :param env_id: an environment that Gymnasium knows
    :param n_envs: number of environments
    :param rounds: how often to measure each kind, taking turns
    :param kinds: what the names of kinds begin with
    """
    envs = {name: make(n_envs) for name, make in makers(env_id).items() if name.startswith(tuple(kinds))}
    actions, n_steps = {}, {}
    for name, env in envs.items():
        env.seed(0)
        env.reset()
        actions[name] = random_actions(env)
        warm = time_steps(env, actions[name], ROUND_STEPS)
        n_steps[name] = max(ROUND_STEPS, int(ROUND_SECONDS * 1e6 / warm))
    times: dict[str, list[float]] = {name: [] for name in envs}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        # Each time another one follows those in processes, which leave cores and caches to others.
        for name in order.permutation(list(envs)):
            times[name].append(time_steps(envs[name], actions[name], n_steps[name]))
    for env in envs.values():
        env.close()
    return times


def versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gym.__version__,
        "stable_baselines3": sb3_version,
        "ppo_plus": __version__,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_count()} cores",
    }
    if find_spec("envpool") is not None:
        found["envpool"] = import_module("envpool").__version__
    return found


def table(results: dict[int, dict[str, list[float]]]) -> list[str]:
    """Markdown: microseconds per step, and in brackets how many times SB3's DummyVecEnv that is in steps per second."""
    names = next(iter(results.values()))
    rows = ["| µs per step | " + " | ".join(f"n = {n}" for n in results) + " |", "|---" * (len(results) + 1) + "|"]
    for name in names:
        cells = []
        for times in results.values():
            own, base = median(times[name]), median(times.get("SB3 DummyVecEnv", times[name]))
            cells.append(f"{own:,.0f} ({base / own:.1f}×)")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="environment id")
    parser.add_argument("--n-envs", type=int, nargs="+", default=[1, 8, 64], help="numbers of environments")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per kind")
    parser.add_argument("--kinds", nargs="+", default=[""], metavar="NAME", help="what their names begin with (all)")
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()

    print(", ".join(f"{key} {value}" for key, value in versions().items()))
    results = {n: benchmark(arguments.env, n, arguments.rounds, arguments.kinds) for n in arguments.n_envs}
    print(f"\n{arguments.env}, median of {arguments.rounds} rounds\n\n" + "\n".join(table(results)))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"versions": versions(), "env": arguments.env, "us_per_step": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
