"""What one step of all environments costs, in microseconds, by task, number and kind of vector environment.

    python benchmarks/benchmark_vec_env.py --json benchmarks/results/vec_env.json    # all tasks, 1, 8 and 64 envs
    python benchmarks/benchmark_vec_env.py --env HalfCheetah-v5 --n-envs 1 8
    python benchmarks/benchmark_vec_env.py --env CartPole-v1 --n-envs 8 --rounds 40 --kinds SB3 Supervised
    python benchmarks/benchmark_vec_env.py --quick          # only whether it runs: its figures mean nothing

All are stepped through SB3's ``VecEnv`` interface, with the same kind of random actions, from one process, and may use
all cores. Rounds are interleaved, so that a busy machine disturbs all alike, and medians are given. ``Atari`` is Pong
in SB3's ``AtariWrapper`` where ale-py is installed, else an environment that computes about as much for each image.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from os import getloadavg
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from machine import facts  # the modules beside this one
from report.markdown import markdown
from report.results import write
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from ppo_plus import SupervisedVecEnv
from ppo_plus.envs.checks import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env

#: What is stepped where nothing is asked for.
TASKS = ("CartPole-v1", "HalfCheetah-v5", "Atari")
#: A round steps for about so long, and at least so often.
ROUND_SECONDS, ROUND_STEPS = 0.2, 20


class LikeAtari(gym.Env[np.ndarray, np.int64]):
    """Four frames of 210 x 160 pixels a step, of which one of 84 x 84 is made."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self, **kwargs: Any):
        """Gymnasium may hand in arguments, none of which is used."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.frame = self.np_random.integers(0, 256, (210, 160, 3), np.uint8)
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        for _ in range(4):
            self.frame = np.roll(self.frame, int(action) + 1, axis=0)
        return self._image(), 0.0, bool(self.np_random.random() < 1e-3), False, {}

    def _image(self) -> np.ndarray:
        gray = self.frame @ np.array([0.299, 0.587, 0.114], np.float32)
        return gray[21:189:2, :160:2][:, np.arange(84) % 80, None].astype(np.uint8)


@dataclass(frozen=True)
class Task:
    """What is stepped.

    :param spec: how Gymnasium makes it, also in other processes
    :param wrapper: of each environment
    """

    spec: EnvSpec
    wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None


def find_task(name: str) -> Task:
    """A task by its name: ``Atari``, or a Gymnasium id."""
    if name != "Atari":
        return Task(gym.spec(name))
    if find_spec("ale_py") is None or find_spec("cv2") is None:
        return Task(EnvSpec("LikeAtari-v0", entry_point=LikeAtari, disable_env_checker=True))
    gym.register_envs(import_module("ale_py"))
    return Task(gym.spec("PongNoFrameskip-v4"), AtariWrapper)


def make_sb3(task: Task, n_envs: int, kind: type[VecEnv], **kwargs: Any) -> VecEnv:
    make = partial(gym.make, task.spec)
    return make_vec_env(
        make,
        n_envs,
        seed=0,
        wrapper_class=task.wrapper,
        vec_env_cls=kind,  # type: ignore[arg-type]
        vec_env_kwargs=kwargs,
    )


def make_supervised_each(task: Task, n_envs: int) -> VecEnv:
    return make_sb3(task, n_envs, SupervisedVecEnv, n_workers=n_envs)


def make_gym(task: Task, n_envs: int, mode: str) -> VecEnv:
    """Gymnasium's, by ``vectorization_mode``; those with a choice reset as SB3 does, and share memory."""
    kwargs = {} if mode == "vector_entry_point" else {"autoreset_mode": AutoresetMode.SAME_STEP}
    wrappers = [task.wrapper] if task.wrapper else None
    return as_vec_env(
        gym.make_vec(task.spec, n_envs, vectorization_mode=mode, vector_kwargs=kwargs, wrappers=wrappers)  # type: ignore[arg-type]
    )


def makers(task: Task) -> dict[str, Callable[[int], VecEnv]]:
    """How to make each kind that is to be had for this task."""
    kinds: dict[str, Callable[[int], VecEnv]] = {
        "SB3 DummyVecEnv": partial(make_sb3, task, kind=DummyVecEnv),
        "SB3 SubprocVecEnv": partial(make_sb3, task, kind=SubprocVecEnv),
        "Lean": partial(make_sb3, task, kind=LeanVecEnv),
        "Supervised, in processes": partial(make_sb3, task, kind=SupervisedVecEnv),
        "Supervised, with a time limit": partial(make_sb3, task, kind=SupervisedVecEnv, timeout=60),
        "Supervised, one each": partial(make_supervised_each, task),
        "Gymnasium sync": partial(make_gym, task, mode="sync"),
        "Gymnasium async": partial(make_gym, task, mode="async"),
    }
    if task.spec.vector_entry_point is not None:
        kinds["Gymnasium native"] = partial(make_gym, task, mode="vector_entry_point")
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


def benchmark(
    task: Task, n_envs: int, rounds: int, kinds: list[str], seconds: float = ROUND_SECONDS
) -> dict[str, list[float]]:
    """Microseconds per step, by kind and round.

    :param task: what is stepped
    :param n_envs: number of environments
    :param rounds: how often to measure each kind, taking turns
    :param kinds: what the names of kinds begin with
    :param seconds: how long a round is of each kind, about
    """
    envs = {name: make(n_envs) for name, make in makers(task).items() if name.startswith(tuple(kinds))}
    actions, n_steps = {}, {}
    for name, env in envs.items():
        env.seed(0)
        env.reset()
        actions[name] = random_actions(env)
        warm = time_steps(env, actions[name], ROUND_STEPS)
        n_steps[name] = max(ROUND_STEPS, int(seconds * 1e6 / warm))
    times: dict[str, list[float]] = {name: [] for name in envs}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        # Each time another one follows those in processes, which leave cores and caches to others.
        for name in order.permutation(list(envs)):
            times[name].append(time_steps(envs[name], actions[name], n_steps[name]))
    for env in envs.values():
        env.close()
    return times


def table(results: dict[int, dict[str, list[float]]]) -> list[str]:
    """Markdown: microseconds per step, and in brackets how many times SB3's DummyVecEnv that is in steps per second."""
    names = next(iter(results.values()))
    rows = []
    for name in names:
        cells = []
        for times in results.values():
            own, base = median(times[name]), median(times.get("SB3 DummyVecEnv", times[name]))
            cells.append(f"{own:,.0f} ({base / own:.1f}×)")
        rows.append([name, *cells])
    return markdown(["µs per step", *(f"n = {n}" for n in results)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=list(TASKS), help="tasks: Atari, or Gymnasium ids (%(default)s)")
    parser.add_argument("--n-envs", type=int, nargs="+", default=[1, 8, 64], help="numbers of environments")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per kind")
    parser.add_argument(
        "--kinds",
        nargs="+",
        # Each further kind in processes has 64 of them, which together need more memory than most machines have.
        default=["SB3", "Gymnasium"],
        metavar="NAME",
        help="what their names begin with (%(default)s); further: Lean, Supervised",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round of 2 environments, to see whether it runs"
    )
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()
    seconds = ROUND_SECONDS
    if arguments.quick:
        arguments.n_envs, arguments.rounds, seconds = [2], 1, 0.0

    # Before it makes a load itself.
    about = facts("gymnasium", "numpy", "mujoco", "ale_py") | {"load before": f"{getloadavg()[0]:.1f}"}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results: dict[str, dict[int, dict[str, list[float]]]] = {}
    for name in arguments.env:
        task = find_task(name)
        measure = partial(benchmark, task, rounds=arguments.rounds, kinds=arguments.kinds, seconds=seconds)
        results[name] = {n: measure(n_envs=n) for n in arguments.n_envs}
        print(f"\n{name} ({task.spec.id}), median of {arguments.rounds} rounds\n\n" + "\n".join(table(results[name])))
    if arguments.json:
        write(arguments.json, {"versions": about, "us_per_step": results})


if __name__ == "__main__":
    main()
