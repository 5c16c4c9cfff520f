"""What one step of all environments costs, in microseconds, by task, number and kind of vector environment.

    python benchmarks/benchmark_vec_env.py --json benchmarks/results/vec_env.json    # all tasks, 1, 8 and 64 envs
    python benchmarks/benchmark_vec_env.py --env HalfCheetah-v5 --n-envs 1 8
    python benchmarks/benchmark_vec_env.py --env CartPole-v1 --n-envs 8 --rounds 40 --kinds SB3 Supervised
    python benchmarks/benchmark_vec_env.py --quick          # only whether it runs: its figures mean nothing

    OMP_NUM_THREADS=1 python benchmarks/benchmark_vec_env.py --workers --json benchmarks/results/workers.json

All are stepped through SB3's ``VecEnv`` interface, with the same kind of random actions, from one process, and may use
all cores. Rounds are interleaved, so that a busy machine disturbs all alike, and medians are given. ``Atari`` is Pong
in SB3's ``AtariWrapper`` where ale-py is installed, else an environment that computes about as much for each image.
``Sleeper`` sleeps for a millisecond in each step.

``--workers`` compares one process with 1, 2, 4 and 8 workers in :data:`WORKLOADS`: steps of all environments, and whole
training (rollouts and updates) by ``PPO_Plus``, compiled before the first round; in SB3's vector environments by SB3's
``PPO``. EnvPool is compared where it is installed.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from os import getloadavg
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from machine import facts  # the modules beside this one
from report.results import write
from report.vec_envs import BASE, WORKERS, table
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env

#: What is stepped where nothing is asked for.
TASKS = ("CartPole-v1", "HalfCheetah-v5", "Atari")
#: A round steps for about so long, and at least so often.
ROUND_SECONDS, ROUND_STEPS = 0.2, 20


@dataclass(frozen=True)
class Workload:
    """What is stepped and trained with ``--workers``: a task, and the algorithms' arguments, by default SB3's."""

    task: str
    n_envs: int
    n_steps: int
    policy: str = "MlpPolicy"
    batch_size: int = 64
    n_epochs: int = 10


WORKLOADS = (
    Workload("CartPole-v1", 64, n_steps=32),
    Workload("HalfCheetah-v5", 8, n_steps=256),
    Workload("HalfCheetah-v5", 32, n_steps=64),
    Workload("Atari", 8, n_steps=64, policy="CnnPolicy", batch_size=256, n_epochs=4),
    Workload("Sleeper", 8, n_steps=32),
)


class Sleeper(gym.Env[np.ndarray, np.int64]):
    """Waits for a millisecond in each step, as for another machine, and computes next to nothing."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (8,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, **kwargs: Any):
        """Gymnasium may hand in arguments, none of which is used."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        return self.np_random.standard_normal(8, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        return self.np_random.standard_normal(8, np.float32), float(action), False, False, {}


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
    :param envpool: arguments of EnvPool's ``make``, if it has the task
    """

    spec: EnvSpec
    wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None
    envpool: dict[str, Any] | None = None


def find_task(name: str) -> Task:
    """A task by its name: ``Atari``, ``Sleeper``, or a Gymnasium id."""
    if name == "Sleeper":
        return Task(EnvSpec("Sleeper-v0", entry_point=Sleeper, disable_env_checker=True))
    if name != "Atari":
        return Task(gym.spec(name), envpool={"task_id": name})
    if find_spec("ale_py") is None or find_spec("cv2") is None:
        return Task(EnvSpec("LikeAtari-v0", entry_point=LikeAtari, disable_env_checker=True))
    gym.register_envs(import_module("ale_py"))
    return Task(gym.spec("PongNoFrameskip-v4"), AtariWrapper, {"task_id": "Pong-v5", "stack_num": 1})


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


def make_gym(task: Task, n_envs: int, mode: str) -> VecEnv:
    """Gymnasium's, by ``vectorization_mode``; those with a choice reset as SB3 does, and share memory."""
    kwargs = {} if mode == "vector_entry_point" else {"autoreset_mode": AutoresetMode.SAME_STEP}
    wrappers = [task.wrapper] if task.wrapper else None
    return as_vec_env(
        gym.make_vec(task.spec, n_envs, vectorization_mode=mode, vector_kwargs=kwargs, wrappers=wrappers)  # type: ignore[arg-type]
    )


def make_envpool(task: Task, n_envs: int) -> VecEnv:
    assert task.envpool is not None
    return as_vec_env(  # type: ignore[no-any-return]
        import_module("envpool").make(**task.envpool, env_type="gymnasium", num_envs=n_envs, seed=0)
    )


def makers(task: Task) -> dict[str, Callable[[int], VecEnv]]:
    """How to make each kind that is to be had for this task."""
    kinds: dict[str, Callable[[int], VecEnv]] = {
        "SB3 DummyVecEnv": partial(make_sb3, task, kind=DummyVecEnv),
        "SB3 SubprocVecEnv": partial(make_sb3, task, kind=SubprocVecEnv),
        "Lean": partial(make_sb3, task, kind=LeanVecEnv),
        "Supervised, in processes": partial(make_sb3, task, kind=SupervisedVecEnv, n_workers="auto"),
        "Supervised, with a time limit": partial(make_sb3, task, kind=SupervisedVecEnv, n_workers="auto", timeout=60),
        **{name: partial(make_sb3, task, kind=SupervisedVecEnv, n_workers=n) for n, name in WORKERS.items()},
        "Gymnasium sync": partial(make_gym, task, mode="sync"),
        "Gymnasium async": partial(make_gym, task, mode="async"),
    }
    if task.spec.vector_entry_point is not None:
        kinds["Gymnasium native"] = partial(make_gym, task, mode="vector_entry_point")
    if find_spec("envpool") and task.envpool and task.envpool["task_id"] in import_module("envpool").list_all_envs():
        kinds["EnvPool"] = partial(make_envpool, task)
    return kinds


@contextmanager
def made(task: Task, n_envs: int, kinds: list[str]) -> Iterator[dict[str, VecEnv]]:
    """Environments of each kind whose name begins with one of ``kinds``, closed after the block."""
    envs = {name: make(n_envs) for name, make in makers(task).items() if name.startswith(tuple(kinds))}
    try:
        yield envs
    finally:
        for env in envs.values():
            env.close()


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


def time_training(model: Any, n_steps: int) -> float:
    """Microseconds per step of one environment."""
    start = time.perf_counter()
    model.learn(n_steps, log_interval=None, reset_num_timesteps=False)
    return (time.perf_counter() - start) / n_steps * 1e6


#: Measures something once, in microseconds.
Measure = Callable[[], float]


def stepping(envs: dict[str, VecEnv], seconds: float) -> dict[str, Measure]:
    """For each kind, what measures its steps for about so many seconds."""
    measures: dict[str, Measure] = {}
    for name, env in envs.items():
        env.seed(0)
        env.reset()
        actions = random_actions(env)
        warm = time_steps(env, actions, ROUND_STEPS)
        measures[name] = partial(time_steps, env, actions, max(ROUND_STEPS, int(seconds * 1e6 / warm)))
    return measures


def training(envs: dict[str, VecEnv], workload: Workload, seconds: float, compile: bool) -> dict[str, Measure]:
    """For each kind, what measures rollouts with their updates for about so many seconds, at least one of each."""
    measures: dict[str, Measure] = {}
    n = workload.n_envs * workload.n_steps
    own = {name: getattr(workload, name) for name in ("n_steps", "batch_size", "n_epochs")}
    for name, env in envs.items():
        algorithm: Any = PPO if name.startswith("SB3") else partial(PPO_Plus, compile=compile)
        model = algorithm(workload.policy, env, seed=0, device="cpu", **own)
        time_training(model, n)  # compiles
        n_rollouts = max(1, int(seconds * 1e6 / (n * time_training(model, n))))
        measures[name] = partial(time_training, model, n_rollouts * n)
    return measures


def in_turns(measures: dict[str, Measure], rounds: int) -> dict[str, list[float]]:
    """What each has measured, by round. Each time another one follows those in processes, which leave cores and caches
    to others."""
    times: dict[str, list[float]] = {name: [] for name in measures}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        for name in order.permutation(list(measures)):
            times[name].append(measures[name]())
    return times


#: By task, number of environments and kind: microseconds, by round.
Results = dict[str, dict[int, dict[str, list[float]]]]


def compare_kinds(arguments: argparse.Namespace) -> dict[str, Results]:
    """Steps of all environments, for all tasks and numbers of environments."""
    results: Results = {}
    for name in arguments.env or TASKS:
        task = find_task(name)
        results[name] = {}
        for n in arguments.n_envs:
            with made(task, n, arguments.kinds) as envs:
                results[name][n] = in_turns(stepping(envs, arguments.seconds), arguments.rounds)
        print("\n".join(["", *table({name: results[name]}, "SB3 DummyVecEnv", "µs per step")]))
    return {"us_per_step": results}


def compare_workers(arguments: argparse.Namespace) -> dict[str, Results]:
    """Steps of all environments and whole training, for all workloads."""
    steps: Results = {}
    trained: Results = {}
    for workload in WORKLOADS:
        if arguments.env and workload.task not in arguments.env:
            continue
        if arguments.quick:
            workload = replace(workload, n_envs=2, n_steps=32)
        task, n = find_task(workload.task), workload.n_envs
        with made(task, n, [BASE, *WORKERS.values(), "SB3", "EnvPool", "Gymnasium async"]) as envs:
            stepped = stepping(envs, arguments.seconds)
            steps.setdefault(workload.task, {})[n] = in_turns(stepped, arguments.rounds)
            trainable = {name: env for name, env in envs.items() if not name.startswith("Gymnasium")}
            learning = training(trainable, workload, arguments.seconds, compile=not arguments.quick)
            trained.setdefault(workload.task, {})[n] = in_turns(learning, arguments.rounds)
    print("\n".join(["", *table(steps, BASE, "µs per step of all"), "", *table(trained, BASE, "µs per step trained")]))
    return {"us_per_step": steps, "training_us_per_step": trained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", help=f"tasks: Atari, Sleeper, or Gymnasium ids ({', '.join(TASKS)})")
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
    parser.add_argument("--workers", action="store_true", help="compare numbers of workers, also in training")
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS, help="of each round and kind (%(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="one short round of 2 environments, to see whether it runs"
    )
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.n_envs, arguments.rounds, arguments.seconds = [2], 1, 0.0

    # Processes are forked from one that has imported what this script imports.
    multiprocessing.set_forkserver_preload(["ppo_plus.ppo", "ppo_plus.envs.make_vec"])
    # Before it makes a load itself.
    about = facts("gymnasium", "numpy", "envpool", "mujoco", "ale_py") | {"load before": f"{getloadavg()[0]:.1f}"}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results = (compare_workers if arguments.workers else compare_kinds)(arguments)
    if arguments.json:
        write(arguments.json, {"versions": about} | results)


if __name__ == "__main__":
    main()
