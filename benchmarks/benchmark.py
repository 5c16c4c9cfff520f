"""How fast PPO_Plus trains beside SB3's PPO (with masks and memory: sb3-contrib's) and, where installed, SBX's.

    python benchmarks/benchmark.py --json benchmarks/results/speed.json
    python benchmarks/benchmark.py --only CartPole-v1-x8 HalfCheetah-v5-x1 --rounds 9
    python benchmarks/benchmark.py --threads --json benchmarks/results/threads.json
    python benchmarks/benchmark.py --quick          # only whether it runs: its figures mean nothing

**Time** is that of whole training, rollouts and updates together, per environment step. Contenders get the same
hyperparameters, seeds and number of threads and take turns in rounds; a speed-up is SB3's time divided by the
contender's in the same round: median over rounds [smallest, largest]. **Start-up** is the first ``learn`` of one
rollout in a fresh process, libraries imported and model made before it; where the contender compiles ahead, with a
filled and with an empty compiler cache. **Memory** is the peak of the process, and how much of it training added.
**Where the time goes** comes from a separate round with clocks around methods. ``--threads`` leaves environments out:
they replay random observations.
"""

import argparse
import itertools
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import machine  # the modules beside this one
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from report.results import write
from report.speed import (
    ACT,
    COLLECT,
    COMPILED,
    ENV,
    REFERENCE,
    REST,
    SBX,
    SECTIONS,
    UPDATE,
    Measured,
    Results,
    comparison,
    details_table,
    time_cell,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

#: One thread each, torch's and XLA's; libraries read it when they are imported, so it is set before processes start.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

#: Where the algorithms are found, and their own arguments.
CONTENDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    REFERENCE: ("stable_baselines3", "PPO", {}),
    "PPO_Plus eager": ("ppo_plus", "PPO_Plus", {"compile": False}),
    COMPILED: ("ppo_plus", "PPO_Plus", {"compile": True}),
    SBX: ("sbx", "PPO", {}),
}


@dataclass(frozen=True)
class Workload:
    """A task and its hyperparameters; those not named are SB3's defaults.

    :param env: a Gymnasium id, or a space of observations to replay (see :class:`Replay`)
    :param n_envs: number of environments
    :param n_steps: steps of each per rollout
    :param rollouts: how many rollouts, with their updates, make a round
    :param arguments: further arguments of the algorithms
    :param own: further arguments of PPO_Plus alone
    :param own_policy: its policy, where it is another one
    :param reference: module and class of the algorithm that stands in the reference's column
    :param wrapper: wrapper of each environment
    """

    env: str | spaces.Space[Any]
    n_envs: int
    n_steps: int
    batch_size: int = 64
    n_epochs: int = 10
    rollouts: int = 3
    policy: str = "MlpPolicy"
    arguments: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    own_policy: str = ""
    reference: tuple[str, str] = ("stable_baselines3", "PPO")
    wrapper: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None

    def make_env(self, seed: int) -> VecEnv:
        if not isinstance(self.env, str):
            return Replay(self.env, self.n_envs, seed)
        return make_vec_env(self.env, self.n_envs, seed=seed, wrapper_class=self.wrapper)

    def shrunk(self) -> "Workload":
        """The least that still takes every path: two epochs of two minibatches."""
        n_steps = max(2, 128 // self.n_envs)
        return replace(self, n_steps=n_steps, batch_size=n_steps * self.n_envs // 2, n_epochs=2, rollouts=1)


class Replay(DummyVecEnv):
    """Environments that cost next to nothing: a few random observations over and over, in episodes that never end."""

    def __init__(self, observation_space: spaces.Space[Any], n_envs: int, seed: int):
        blanks: list[gym.Env[Any, Any]] = [gym.Env() for _ in range(n_envs)]
        for env in blanks:
            env.observation_space, env.action_space = observation_space, spaces.Discrete(6)
        super().__init__([partial(blanks.__getitem__, i) for i in range(n_envs)])
        batch = batch_space(observation_space, n_envs)
        batch.seed(seed)
        self.observations = itertools.cycle([batch.sample() for _ in range(16)])
        rewards = np.random.default_rng(seed).normal(size=n_envs).astype(np.float32)
        self.outcome: tuple[Any, ...] = rewards, np.zeros(n_envs, dtype=bool), [{}] * n_envs

    def reset(self) -> Any:
        return next(self.observations)

    def step_wait(self) -> Any:
        return next(self.observations), *self.outcome


class Masked(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with a mask that allows everything: what it costs, and not what it brings."""

    def action_masks(self) -> np.ndarray:
        assert isinstance(self.action_space, spaces.Discrete)
        return np.ones(self.action_space.n, dtype=bool)


def image(size: int, channels: int) -> spaces.Box:
    return spaces.Box(0, 255, (channels, size, size), np.uint8)


VECTOR = spaces.Box(-np.inf, np.inf, (8,))
ATARI = Workload(image(84, 4), 8, 128, batch_size=256, n_epochs=4, rollouts=1, policy="CnnPolicy")
VECTORS: dict[str, spaces.Space[Any]] = {"position": VECTOR, "velocity": VECTOR}
RECURRENT: Any = dict(policy="MlpLstmPolicy", reference=("sb3_contrib", "RecurrentPPO"))
SMALL_LSTM: Any = dict(policy_kwargs=dict(lstm_hidden_size=64))
WORKLOADS = {
    "CartPole-v1-x1": Workload("CartPole-v1", 1, 2048),
    "CartPole-v1-x8": Workload("CartPole-v1", 8, 256, rollouts=4),
    "CartPole-v1-x64": Workload("CartPole-v1", 64, 128, rollouts=1),
    "HalfCheetah-v5-x1": Workload("HalfCheetah-v5", 1, 2048),
    "HalfCheetah-v5-x8": Workload("HalfCheetah-v5", 8, 256),
    "Atari-shapes-x8": ATARI,
    "Atari-shapes-bfloat16-x8": replace(ATARI, own={"policy_kwargs": {"autocast": True}}),
    "Dict-x8": Workload(spaces.Dict(VECTORS), 8, 256, policy="MultiInputPolicy"),
    "Dict-image-x8": Workload(
        spaces.Dict(VECTORS | {"camera": image(36, 3)}), 8, 256, rollouts=1, policy="MultiInputPolicy"
    ),
    "CartPole-v1-masked-x8": Workload(
        "CartPole-v1", 8, 256, rollouts=4, reference=("sb3_contrib", "MaskablePPO"), wrapper=Masked
    ),
    "CartPole-v1-LSTM-x8": Workload("CartPole-v1", 8, 256, rollouts=4, **RECURRENT),
    "CartPole-v1-LSTM-x8-batch-256": Workload("CartPole-v1", 8, 256, batch_size=256, rollouts=4, **RECURRENT),
    "CartPole-v1-small-LSTM-x8-batch-256": Workload(
        "CartPole-v1", 8, 256, batch_size=256, arguments=SMALL_LSTM, rollouts=4, **RECURRENT
    ),
    **{
        f"CartPole-v1-{memory}-x8{name}": Workload(
            "CartPole-v1", 8, 256, size, rollouts=4, own_policy=f"Mlp{memory}Policy", **RECURRENT
        )
        for memory in ("Lru", "Attention")
        for name, size in {"": 64, "-batch-256": 256}.items()
    },
    "Pendulum-v1-gSDE-x4": Workload("Pendulum-v1", 4, 512, arguments={"use_sde": True, "sde_sample_freq": 4}),
}

_base = Workload(VECTOR, 8, 256, rollouts=1)


def _wide(units: int, batch_size: int) -> Workload:
    return replace(_base, batch_size=batch_size, arguments={"policy_kwargs": {"net_arch": [units, units]}})


#: Small and large updates with one thread and with one for each core; SB3 has one in any case.
THREADS = {
    f"{what}: {n}": replace(workload, own={"n_threads": n})
    for what, workload in {
        "64 units, batch 64": _base,
        "256 units, batch 256": _wide(256, 256),
        "1024 units, batch 256": _wide(1024, 256),
        "NatureCNN, batch 256": replace(ATARI, n_epochs=1),
    }.items()
    for n in sorted({1, os.cpu_count() or 1})
}


# --- in a contender's process --------------------------------------------------------------------------------------


def clocked(seconds: dict[str, float], section: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose time is added to a section."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        result = function(*args, **kwargs)
        seconds[section] += perf_counter() - start
        return result

    return timed


def attach_clocks(model: Any) -> dict[str, float]:
    """Time the methods of SB3's PPO or PPO_Plus, where it has them; none of them calls another.

    :param model: the model
    :return: seconds by section, which grow as the model works
    """
    seconds = dict.fromkeys(SECTIONS, 0.0)
    buffer, policy = model.rollout_buffer, model.policy
    methods = [(model.env, "step", ENV), (model, "train", UPDATE), (buffer, "add", COLLECT)]
    if hasattr(model, "_plan"):
        from ppo_plus.rollout.collector import Collector

        # PPO_Plus chooses before each rollout which function acts, and does not compile what reads a clock.
        make_plan = model._plan

        def plan(*arguments: Any) -> Any:
            made = make_plan(*arguments)
            return replace(made, act=clocked(seconds, ACT, made.act))

        model._plan = plan
        methods.append((Collector, "finish", COLLECT))
    else:
        methods += [(policy, "forward", ACT), (policy, "predict_values", COLLECT)]
        methods.append((buffer, "compute_returns_and_advantage", COLLECT))
    for owner, name, section in methods:
        if hasattr(owner, name):
            setattr(owner, name, clocked(seconds, section, getattr(owner, name)))
    return seconds


class Trainee:
    """One contender on one workload."""

    def __init__(self, contender: str, workload: Workload, seed: int, device: str):
        th.set_num_threads(1)
        if contender == SBX and workload.arguments.get("use_sde"):
            raise ValueError('gSDE is accepted but "not properly implemented", as its source says')
        if contender == SBX and workload.wrapper is Masked:
            raise ValueError("masks are not supported")
        module, algorithm, arguments = CONTENDERS[contender]
        if contender == REFERENCE:
            module, algorithm = workload.reference
        make = getattr(import_module(module), algorithm)
        policy = workload.policy
        if module == "ppo_plus":
            arguments, policy = arguments | workload.own, workload.own_policy or policy
        env = workload.make_env(seed)
        self.memory_before = peak_memory()
        own = {name: getattr(workload, name) for name in ("n_steps", "batch_size", "n_epochs")}
        self.model = make(policy, env, seed=seed, device=device, **own, **workload.arguments, **arguments)
        self.steps_per_rollout = workload.n_envs * workload.n_steps
        self.rollouts = workload.rollouts

    def learn(self, rollouts: int = 1) -> float:
        """Collect and train so many times; seconds."""
        start = perf_counter()
        self.model.learn(rollouts * self.steps_per_rollout, log_interval=None, reset_num_timesteps=False)
        return perf_counter() - start

    def round(self) -> float:
        """Microseconds per environment step."""
        return 1e6 * self.learn(self.rollouts) / (self.rollouts * self.steps_per_rollout)

    def sections(self) -> dict[str, float]:
        """A round in parts; the clocks stay on, so this comes last."""
        seconds = attach_clocks(self.model)
        total, steps = self.round(), self.rollouts * self.steps_per_rollout
        parts = {section: 1e6 * spent / steps for section, spent in seconds.items()}
        return parts | {REST: total - sum(parts.values())}

    def memory(self) -> dict[str, float]:
        """Megabytes: the process at its peak, and what training added to that."""
        peak = peak_memory()
        return {"peak": peak, "added": peak - self.memory_before}


def peak_memory() -> float:
    """Of this process so far, in megabytes."""
    # It includes what the parent had when it started this process, so the parent loads nothing that this one does not.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


_trainee: Trainee


def _start(cache: str, *arguments: Any) -> None:
    global _trainee
    # Inductor keeps most of its cache under the first and some under the temporary folder.
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TMPDIR": cache}
    tempfile.tempdir = cache
    _trainee = Trainee(*arguments)


def _call(method: str) -> Any:
    return getattr(_trainee, method)()


# --- in the parent -------------------------------------------------------------------------------------------------


class Process(ProcessPoolExecutor):
    """A fresh process with one :class:`Trainee`, which works only when called.

    Each contender has its own: threads, allocator, caches and peak memory of one do not touch the others, and while
    one works the others sleep.
    """

    def __init__(self, *arguments: Any):
        super().__init__(1, get_context("spawn"))
        self.submit(_start, *arguments).result()

    def call(self, method: str) -> Any:
        return self.submit(_call, method).result()


def compare(
    workload: Workload, contenders: list[str], rounds: int, seed: int, device: str, details: bool = True
) -> dict[str, Measured]:
    """Measure contenders in turns; with ``details`` also the start with an empty cache and where the time goes."""
    results = {name: Measured() for name in contenders}
    # Compilers may still be tidying up in the folder when it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache, ExitStack() as stack:
        processes: dict[str, Process] = {}
        for name, result in results.items():
            given = cache, name, workload, seed, device
            try:
                if details and name == COMPILED:
                    with Process(*given) as process:
                        result.start_up_empty = process.call("learn")
                process = stack.enter_context(Process(*given))
                result.start_up = process.call("learn")
                process.call("learn")
                processes[name] = process
            except Exception as error:
                result.error = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        for _ in range(rounds):
            for name, process in processes.items():
                results[name].us_per_step.append(process.call("round"))
        for name, process in processes.items():
            results[name].memory = process.call("memory")
            # On a GPU calls return before their work is done; SBX has other methods.
            if details and device == "cpu" and name != SBX:
                results[name].sections = process.call("sections")
    return results


# --- the whole -----------------------------------------------------------------------------------------------------


def facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    packages = ("sb3_contrib", "gymnasium", "mujoco", "numpy", "sbx-rl", "jax")
    return machine.facts(*packages) | {
        "load before": round(os.getloadavg()[0], 2),
        "device": arguments.device if arguments.device == "cpu" else th.cuda.get_device_name(arguments.device),
        "threads": 1,
        "seeds": arguments.seed,
        "rounds": arguments.rounds,
        "quick": arguments.quick,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", action="store_true", help="updates with one thread and with more")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--seed", type=int, default=0, help="of environments and algorithms")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; SBX chooses for itself")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to see whether it runs")
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    arguments = parser.parse_args()
    known = list(THREADS if arguments.threads else WORKLOADS)
    arguments.only = arguments.only or known
    if set(arguments.only) - set(known):
        parser.error(f"--only takes some of {', '.join(known)}")
    if arguments.quick:
        arguments.rounds = min(arguments.rounds, 2)
    return arguments


def show(table: list[str]) -> None:
    print("\n".join(table) + "\n")


def selected(workloads: dict[Any, Workload], names: Iterable[Any], quick: bool) -> dict[Any, Workload]:
    return {name: workloads[name].shrunk() if quick else workloads[name] for name in names}


def measure(workloads: dict[Any, Workload], contenders: list[str], arguments: argparse.Namespace) -> Results:
    """:func:`compare` for each workload."""
    results = {}
    for title, workload in workloads.items():
        print(f"{title} ...", file=sys.stderr)
        given = arguments.rounds, arguments.seed, arguments.device
        results[str(title)] = compare(workload, contenders, *given, details=not arguments.threads)
        for name, result in results[str(title)].items():
            if result.error:
                print(f"{title}: {name} was not measured ({result.error})\n")
    return results


def run_speed(arguments: argparse.Namespace) -> dict[str, Any]:
    contenders = [name for name, (module, *_) in CONTENDERS.items() if find_spec(module)]
    if SBX not in contenders:
        print("SBX is not installed (pip install sbx-rl), so it is left out\n")
    workloads = selected(WORKLOADS, arguments.only, arguments.quick)
    results = measure(workloads, contenders, arguments)
    show(comparison(results, "time per environment step", time_cell))
    show(details_table(results))
    return {"workloads": workloads, "results": results}


def run_threads(arguments: argparse.Namespace) -> dict[str, Any]:
    workloads = selected(THREADS, arguments.only, arguments.quick)
    results = measure(workloads, [name for name in CONTENDERS if name != SBX], arguments)
    show(comparison(results, "time per step by number of threads", time_cell))
    return {"workloads": workloads, "results": results}


def main() -> None:
    arguments = parse_arguments()
    os.environ |= ONE_THREAD
    about = facts(arguments)
    print(", ".join(f"{key} {value}" for key, value in about.items()) + "\n")
    results = run_threads(arguments) if arguments.threads else run_speed(arguments)
    if arguments.json:
        # JSON does not know dataclasses and, within workloads, spaces.
        write(arguments.json, {"about": about} | results, default=lambda v: vars(v) if is_dataclass(v) else str(v))


if __name__ == "__main__":
    main()
