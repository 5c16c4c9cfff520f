"""What is learned, run by run, over many hours: MuJoCo's tasks (version 5) in a million steps, classic ones, and Pong.

    python benchmarks/learning_returns.py --list                           # what is done, going on, and left
    python benchmarks/learning_returns.py --run sb3-defaults Hopper-v5 0   # one run
    python benchmarks/learning_returns.py --queue                          # all that is left, one after another
    python benchmarks/learning_returns.py --queue --stage screen           # of one part; two queues share the work
    python benchmarks/learning_returns.py --table                          # what came out, with intervals
    python benchmarks/learning_returns.py --effects screen                 # which settings matter (screening.py)

Each run appends a line to ``benchmarks/results/returns.jsonl``: the curve of training, the last 100 training episodes,
and 20 episodes at the end with the most likely actions and 20 with sampled ones, in separate environments and with the
statistics of training; settings, versions, time, and the command that repeats it. What is done is not done again.

To have the queue work in the background, to pause it, and to continue:

    setsid nohup nice -n 19 python benchmarks/learning_returns.py --queue > queue.log 2>&1 &
    group=$(cat benchmarks/results/.running/returns/queue.pid)
    kill -STOP -- -$group
    kill -CONT -- -$group
    echo 19 > /proc/$group/autogroup    # Linux: be nice to other terminals too, not only within this session

``kill $group`` ends it after the current run, ``kill -- -$group`` at once; a run that was ended is started again.
The queue runs the files that are there: do not change the package meanwhile, for instance by using a separate clone.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import screening
import torch as th
from campaign import (  # the script beside this one
    Cell,
    Job,
    claim,
    in_order,
    is_claimed,
    lock_path,
    python,
    read,
    versions,
    work,
)
from markdown_table import markdown
from report.results import RESULTS, append_line
from runs import score
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from ppo_plus import PPO_Plus
from ppo_plus.zoo.callbacks import ProgressDisplay
from ppo_plus.zoo.cli.arguments import whole_number
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import Experiment, parse_settings
from ppo_plus.zoo.hyperparams import builtin_file, read_mapping
from ppo_plus.zoo.registry import find_env
from ppo_plus.zoo.tune.statistics import Estimate

SCRIPT = "benchmarks/learning_returns.py"
FILE = RESULTS / "returns.jsonl"
STEPS = 1_000_000
#: Environment steps that one point of a curve is the mean of.
BIN = 20_000
N_LAST, N_EPISODES, N_EVAL_ENVS = 100, 20, 10


@dataclass(frozen=True)
class Arm:
    """A contender.

    :param algorithm: who learns
    :param settings: in the format of a settings file
    :param entry: the name of the entry in ``hyperparams/ppo_plus.yml`` that these are put over, in which ``{task}``
        stands for the task; ``None``: of none
    :param by_task: further settings of some tasks
    :param steps: environment steps of a run; ``None``: those of the task's entry
    :param vec_env: how training environments are stepped
    """

    algorithm: type[Any]
    settings: dict[str, Any] = field(default_factory=dict)
    entry: str | None = None
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: int | None = STEPS
    vec_env: str = "dummy"


#: SB3's own defaults, with observations and rewards normalized.
DEFAULTS: dict[str, Any] = {"normalize": True}
#: rl_zoo3 (2.9, hyperparams/trpo.yml).
ZOO_TRPO: dict[str, Any] = dict(
    normalize=True,
    n_envs=2,
    n_steps=1024,
    batch_size=128,
    gamma=0.99,
    gae_lambda=0.95,
    sub_sampling_factor=1,
    cg_max_steps=25,
    cg_damping=0.1,
    n_critic_updates=20,
    learning_rate=1e-3,
)
ARMS = {
    "sb3-defaults": Arm(PPO_Plus, DEFAULTS),
    "sb3-defaults-by-sb3": Arm(PPO, DEFAULTS),
    "rl_zoo3": Arm(PPO_Plus, entry="{task}/rl_zoo3"),
    "rl_zoo3-by-sb3": Arm(PPO, entry="{task}/rl_zoo3"),
    "mujoco": Arm(PPO_Plus, entry="{task}"),
    "mujoco-shared": Arm(PPO_Plus, entry="mujoco"),
    "entry": Arm(PPO_Plus, entry="{task}", steps=None),
    # Ten million frames, four to each action: training episodes are as long as their actions, others as their frames.
    "atari": Arm(PPO_Plus, entry="atari", steps=2_500_000, vec_env="envpool"),
    "trpo": Arm(TRPO, ZOO_TRPO, by_task={"HalfCheetah-v5": {"target_kl": 0.04}, "Swimmer-v5": {"gamma": 0.9999}}),
}


#: Tasks of the settings that MuJoCo's share, and those whose own entries are measured: what runs were meant to reach in
#: deterministic episodes, their interquartile mean.
GOALS = {
    "mujoco": {
        "HalfCheetah-v5": 6000,
        "Hopper-v5": 3600,
        "Walker2d-v5": 4900,
        "Ant-v5": 5000,
        "Swimmer-v5": 350,
        "Humanoid-v5": 1500,
    },
    "entry": {
        "CartPole-v1": 500,
        "Pendulum-v1": -200,
        "MountainCar-v0": -130,
        "MountainCarContinuous-v0": 90,
        "Acrobot-v1": -73,
        "LunarLander-v3": 270,
        "BipedalWalker-v3": 300,
    },
}
TASKS = tuple(GOALS["mujoco"])
#: Where settings are looked for; the other tasks are held out.
SCREENED = ("HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
#: Tasks of which settings of their own were measured beside the shared ones, and the contender that has them: "mujoco"
#: where the gain was no chance, and they have become the task's entry.
OVERRIDES = {"Ant-v5": "mujoco", "Swimmer-v5": "mujoco", "Humanoid-v5": "own-Humanoid-v5-01"}


def shared_arm(task: str) -> str:
    """The contender that has the settings that tasks share: "mujoco" where these are the task's entry."""
    return "mujoco-shared" if OVERRIDES.get(task) == "mujoco" else "mujoco"


@dataclass(frozen=True)
class Screen:
    """A part that finds out which settings matter.

    :param design: the settings of its arms, which are called after the part and a number
    :param steps: of each run
    :param seed: of each arm
    """

    design: screening.Design
    steps: int
    seed: int

    def arms(self, name: str) -> dict[str, Arm]:
        """The contenders of the part of this name."""
        settings = (self.design.settings(levels) for levels in self.design.levels)
        return {f"{name}-{i:02d}": Arm(PPO_Plus, each, steps=self.steps) for i, each in enumerate(settings)}


SCREENS = {
    "screen": Screen(screening.MANY, 500_000, 0),
    "survivors": Screen(screening.FEW, 500_000, 10),
    "looks": Screen(screening.LONG, STEPS, 12),
    "again": Screen(screening.AGAIN, 500_000, 11),
    "finalists": Screen(screening.LAST, STEPS, 13),
    "kl": Screen(screening.KL, STEPS, 16),
}
#: What single tasks were tried with, put over the shared settings, in words.
CRITIC = {"net_arch": {"pi": [64, 64], "vf": [256, 256]}}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "Humanoid-v5": {
        "lambda 0.8, std 0.17": {"gae_lambda": 0.8, "policy_kwargs": {"log_std_init": -1.75, **CRITIC}},
        "lambda 0.8, std 0.1": {"gae_lambda": 0.8, "policy_kwargs": {"log_std_init": -2.3, **CRITIC}},
        "std 0.17": {"policy_kwargs": {"log_std_init": -1.75, **CRITIC}},
        "lambda 0.8": {"gae_lambda": 0.8},
    },
    "Ant-v5": {
        "lambda 0.8, std 0.17": {"gae_lambda": 0.8, "policy_kwargs": {"log_std_init": -1.75, **CRITIC}},
        "lambda 0.8, std 0.1": {"gae_lambda": 0.8, "policy_kwargs": {"log_std_init": -2.3, **CRITIC}},
        "lambda 0.8, std 0.17, rate from 3e-4": {
            "gae_lambda": 0.8,
            "policy_kwargs": {"log_std_init": -1.75, **CRITIC},
            "learning_rate": "lin_3e-4",
        },
    },
    "Swimmer-v5": {
        "gamma 0.9999, lambda 0.98, std 1": {
            "gamma": 0.9999,
            "gae_lambda": 0.98,
            "policy_kwargs": {"log_std_init": 0, **CRITIC},
        },
        "gamma 0.9999, lambda 0.98, 16 x 512 steps": {"gamma": 0.9999, "gae_lambda": 0.98, "n_steps": 512},
        "gamma 0.9999, 16 x 512 steps": {"gamma": 0.9999, "n_steps": 512},
        "gamma 0.9999, 16 x 512 steps, rate from 6e-4": {
            "gamma": 0.9999,
            "n_steps": 512,
            "learning_rate": "lin_6e-4",
        },
    },
    "Hopper-v5": {
        "lambda 0.95": {"gae_lambda": 0.95},
        "gamma 0.999, lambda 0.98": {"gamma": 0.999, "gae_lambda": 0.98},
        "std 1": {"policy_kwargs": {"log_std_init": 0, **CRITIC}},
        "rate from 3e-4": {"learning_rate": "lin_3e-4"},
        "std 0.17": {"policy_kwargs": {"log_std_init": -1.75, **CRITIC}},
        "lambda 0.8, std 0.17": {"gae_lambda": 0.8, "policy_kwargs": {"log_std_init": -1.75, **CRITIC}},
        "minibatches of 256": {"batch_size": 256},
    },
}
#: The same of tasks that have their own entries, put over rl_zoo3's.
OWN_ENTRY: dict[str, dict[str, dict[str, Any]]] = {
    "Acrobot-v1": {
        "rl_zoo3's": {},
        "rate to 0": {"learning_rate": "lin_3e-4"},
        "10 epochs, rate to 0": {"n_epochs": 10, "learning_rate": "lin_3e-4"},
        "rate from 1e-3": {"learning_rate": "lin_1e-3"},
    },
    "LunarLander-v3": {
        "rl_zoo3's": {},
        "16 x 256 steps, 10 epochs, rate from 3e-4": {"n_steps": 256, "n_epochs": 10, "learning_rate": "lin_3e-4"},
        "16 x 256 steps, 10 epochs, rate from 6e-4": {"n_steps": 256, "n_epochs": 10, "learning_rate": "lin_6e-4"},
        "16 x 256 steps, 10 epochs, rate from 3e-4, gamma 0.995": {
            "n_steps": 256,
            "n_epochs": 10,
            "learning_rate": "lin_3e-4",
            "gamma": 0.995,
        },
    },
    "BipedalWalker-v3": {
        "rate from 3e-4": {"learning_rate": "lin_3e-4"},
        "32 x 512 steps, rate from 3e-4": {"n_steps": 512, "learning_rate": "lin_3e-4"},
    },
}


def own_arms(tried: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, str]]:
    """By task: what its contenders are called, and their names in words."""
    return {task: {f"own-{task}-{i:02d}": name for i, name in enumerate(own)} for task, own in tried.items()}


OWN_ARMS, OWN_ENTRY_ARMS = own_arms(OWN), own_arms(OWN_ENTRY)
ARMS |= {
    arm: Arm(PPO_Plus, tried[task][name], entry=entry, steps=steps)
    for tried, named, entry, steps in (
        (OWN, OWN_ARMS, "mujoco", STEPS),
        (OWN_ENTRY, OWN_ENTRY_ARMS, "{task}/rl_zoo3", None),
    )
    for task, arms in named.items()
    for arm, name in arms.items()
}
ARMS |= {arm: contender for name, screen in SCREENS.items() for arm, contender in screen.arms(name).items()}
#: Contenders, in words.
NAMES = {
    "sb3-defaults": "SB3's settings",
    "sb3-defaults-by-sb3": "SB3's settings, by SB3",
    "rl_zoo3": "rl_zoo3's settings",
    "rl_zoo3-by-sb3": "rl_zoo3's settings, by SB3",
    "trpo": "TRPO (sb3-contrib)",
    "mujoco": "ppo_plus's settings",
    "mujoco-shared": "ppo_plus's settings, those that tasks share",
    "atari": "rl_zoo3's settings, in 10M frames",
    **{arm: name for arms in (OWN_ARMS | OWN_ENTRY_ARMS).values() for arm, name in arms.items()},
} | {
    arm: screen.design.name(levels)
    for name, screen in SCREENS.items()
    for arm, levels in zip(screen.arms(name), screen.design.levels, strict=True)
}
#: What is to be done, in this order.
STAGES: dict[str, list[Cell]] = {
    # Whether PPO_Plus is SB3's algorithm at SB3's settings; and whether the low first returns of Hopper with rl_zoo3's
    # settings and of Ant are ours or SB3's as well.
    "beside-sb3": [
        Cell("rl_zoo3-by-sb3", "Hopper-v5", range(2)),
        Cell("rl_zoo3", "Hopper-v5", range(2)),
        Cell("sb3-defaults-by-sb3", "Ant-v5", range(2)),
        Cell("sb3-defaults", "Ant-v5", range(2)),
        *(Cell(arm, "HalfCheetah-v5", range(5)) for arm in ("sb3-defaults-by-sb3", "sb3-defaults")),
    ],
    "baselines": [
        *(Cell("sb3-defaults", task, range(5)) for task in TASKS),
        *(Cell("rl_zoo3", task, range(3)) for task in TASKS),
        *(Cell("trpo", task, range(2)) for task in TASKS),
    ],
    **{
        name: [Cell(arm, task, [screen.seed]) for arm in screen.arms(name) for task in SCREENED]
        for name, screen in SCREENS.items()
    },
    # The three that were best of the finalists, by the last episodes or by deterministic ones, with more seeds.
    "deciders": [Cell(f"finalists-{i:02d}", task, range(14, 16)) for i in (2, 3, 6) for task in SCREENED],
    # Settings of single tasks: one run each; more of Swimmer, of whose runs some are caught early.
    "own": [
        *(Cell(arm, task, [17]) for task, arms in OWN_ARMS.items() for arm in ("mujoco-shared", *arms)),
        *(Cell(arm, "Swimmer-v5", range(18, 20)) for arm in OWN_ARMS["Swimmer-v5"]),
        # The table began with these settings, and was stopped to look for better ones.
        Cell("own-Swimmer-v5-00", "Swimmer-v5", [21]),
    ],
    "table": [Cell("mujoco", task, range(20, 30)) for task in TASKS],
    # What the overrides of tasks gain.
    "overrides": [Cell(arm, task, range(20, 30)) for task, own in OVERRIDES.items() for arm in (shared_arm(task), own)],
    # Settings of tasks that have entries of their own.
    "own-entry": [
        *(
            Cell(arm, task, range(1 if "Bipedal" in task else 4))
            for task, arms in OWN_ENTRY_ARMS.items()
            for arm in arms
        ),
        # The table began with these settings, and was stopped to look for better ones.
        Cell("own-Acrobot-v1-00", "Acrobot-v1", range(20, 30)),
    ],
    # Runs of BipedalWalker are five times as long.
    "entries": [Cell("entry", task, range(20, 23 if "Bipedal" in task else 30)) for task in GOALS["entry"]],
    # pip install envpool
    "atari": [Cell("atari", "PongNoFrameskip-v4", range(20, 21))],
}


def parse_job(arm: str, task: str, seed: str) -> Job:
    """A run as it is typed.

    :raises ValueError: there is no such contender or task, the one has no settings for the other, or the seed is no
        whole number
    """
    if arm not in ARMS:
        near = get_close_matches(arm, ARMS) or ["mujoco", "entry", "sb3-defaults"]
        raise ValueError(f"there is no contender ARM={arm!r}: {', '.join(near)} are some of those that --list shows")
    entry = (ARMS[arm].entry or "").format(task=task)
    if entry and entry not in read_mapping(builtin_file()):
        raise ValueError(f"ARM={arm} TASK={task}: {builtin_file().name} has no entry {entry}")
    try:
        find_env(task)
    except (gym.error.Error, ImportError):
        raise ValueError(f"TASK={task!r} is no environment that Gymnasium has registered") from None
    if arm.startswith("own-") and not arm.startswith(f"own-{task}-"):
        raise ValueError(f"ARM={arm} has settings of its own task only, not of TASK={task}")
    if not seed.isdecimal():
        raise ValueError(f"SEED={seed!r} must be a whole number, 0 or above")
    return Job(arm, task, int(seed))


def experiment(job: Job, steps: int | None = None) -> Experiment:
    """What a run trains.

    :param steps: environment steps; ``None``: those of the arm
    """
    arm = ARMS[job.arm]
    entry = read_mapping(builtin_file())[arm.entry.format(task=job.task)] if arm.entry else {}
    settings = {**entry, **arm.settings, **arm.by_task.get(job.task, {})}
    if budget := steps or arm.steps:
        settings["n_timesteps"] = budget
    return parse_settings(job.task, settings).replace(seed=job.seed, device="cpu", vec_env=arm.vec_env)


def make_model(algorithm: type[Any], training: Experiment, env: VecEnv) -> Any:
    """The algorithm, with weights that the seed determines."""
    own = {"n_threads": 1} if issubclass(algorithm, PPO_Plus) else {}
    arguments = deepcopy({**training.hyperparams, **own})
    policy_kwargs = deepcopy(training.policy_kwargs)
    return algorithm(
        training.policy, env, policy_kwargs=policy_kwargs, seed=training.seed, device=training.device, **arguments
    )


class Episodes(BaseCallback):
    """Keeps all training episodes in the order in which they end, of one step in the order of environments: the step at
    which each does, counted over all environments, its return and its length."""

    def __init__(self) -> None:
        super().__init__()
        self._done: list[tuple[float, float, float]] = []

    def _on_step(self) -> bool:
        ended = (info["episode"] for info in self.locals["infos"] if "episode" in info)
        self._done += [(self.num_timesteps, episode["r"], episode["l"]) for episode in ended]
        return True

    def rows(self) -> np.ndarray:
        """An array ``(n, 3)``."""
        return np.array(self._done, dtype=float).reshape(-1, 3)


def curve(done: np.ndarray, steps: int, width: int = BIN) -> dict[str, list[Any]]:
    """Means over the episodes that ended within each ``width`` steps; ``None`` where none did.

    :param done: of :class:`Episodes`
    :param steps: how many were trained
    :param width: environment steps per point
    """
    n_bins = -(-steps // width)
    bins = (done[:, 0] - 1) // width
    points = [done[bins == i] for i in range(n_bins)]
    return {
        "steps": [min((i + 1) * width, steps) for i in range(n_bins)],
        "episodes": [len(point) for point in points],
        "return": [_mean(point[:, 1]) for point in points],
        "length": [_mean(point[:, 2]) for point in points],
    }


def play(model: Any, training: Experiment, deterministic: bool) -> dict[str, Any]:
    """Returns, as the environment gives them, of episodes in environments of their own, which normalize as training
    does at its end; equally many of each environment, so that short episodes count no more than long ones."""
    env = make_envs(training, N_EVAL_ENVS, evaluation=True)
    sync_envs_normalization(model.get_env(), env)
    scores, lengths = evaluate_policy(
        model, env, N_EPISODES, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    env.close()
    return summary(scores, lengths)  # type: ignore[arg-type]


def summary(scores: Iterable[float], lengths: Iterable[float]) -> dict[str, Any]:
    """What is kept of some episodes."""
    scores, lengths = list(scores), list(lengths)
    return {"mean": _mean(scores), "length": _mean(lengths), "returns": [round(float(score), 1) for score in scores]}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return round(float(np.mean(values)), 2) if values else None


def learn(job: Job, steps: int | None = None) -> dict[str, Any]:
    """Train and evaluate.

    :return: what is kept of it
    """
    training, algorithm = experiment(job, steps), ARMS[job.arm].algorithm
    env = make_envs(training)
    simulators = ["envpool", "ale-py"] if training.vec_env == "envpool" else ["mujoco"]
    version = versions() | {name: metadata.version(name) for name in ("gymnasium", *simulators, "numpy")}
    model = make_model(algorithm, training, env)
    wall, cpu = time.perf_counter(), time.process_time()
    episodes = Episodes()
    model.learn(training.n_timesteps, [episodes, ProgressDisplay()] if isinstance(model, PPO_Plus) else episodes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = episodes.rows()
    result = {
        "arm": job.arm,
        "task": job.task,
        "seed": job.seed,
        "steps": model.num_timesteps,
        "command": command(job, steps),
        "algorithm": f"{algorithm.__module__.split('.')[0]}.{algorithm.__name__}",
        "settings": training.settings(),
        "versions": version,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "last": summary(done[-N_LAST:, 1], done[-N_LAST:, 2]),
        "deterministic": play(model, training, deterministic=True),
        "stochastic": play(model, training, deterministic=False),
        "curve": curve(done, model.num_timesteps),
    }
    env.close()
    return result


def command(job: Job, steps: int | None = None) -> str:
    """What repeats a run; with another file for ``--results``, if its result is there already."""
    return f"OMP_NUM_THREADS=1 python {SCRIPT} --run {job}" + (f" --steps {steps}" if steps else "")


def run(job: Job, file: Path = FILE, steps: int | None = None) -> None:
    """Do a run, unless it is done or another process is doing it."""
    with claim(lock_path(file, job)) as mine:
        if not mine:
            print(f"{job}: another process is doing it", flush=True)
            return
        for done in read(file, [job]).values():
            print(f"{job}: done already, {done['steps']:,} steps in {file}; --results takes another file", flush=True)
            return
        print(f"{time.strftime('%d %b %H:%M:%S')} {job}", flush=True)
        result = learn(job, steps)
        append_line(file, result)
    print(
        f"{time.strftime('%d %b %H:%M:%S')} {job}: last 100 {result['last']['mean']}, deterministic "
        f"{result['deterministic']['mean']}, stochastic {result['stochastic']['mean']}, {result['cpu_seconds']} s",
        flush=True,
    )


def results(file: Path = FILE, stages: Iterable[str] = STAGES) -> list[dict[str, Any]]:
    """The results of some stages, as far as they are there."""
    return list(read(file, in_order(STAGES[stage] for stage in stages)).values())


def status(file: Path, jobs: Iterable[Job]) -> list[str]:
    """A line for each run: what came out of it, or whether it is going on."""
    jobs = list(jobs)
    done = read(file, jobs)

    def state(job: Job) -> str:
        if job not in done:
            return "running" if is_claimed(lock_path(file, job)) else "open"
        result = done[job]
        return f"{result['last']['mean']} / {result['deterministic']['mean']} in {result['cpu_seconds']:.0f} s"

    hours = sum(result["cpu_seconds"] for result in done.values()) / 3600
    lines = [f"{job}: {state(job)}" for job in jobs]
    return [*lines, f"{len(done)} of {len(jobs)} runs done in {hours:.1f} CPU hours; last 100 / deterministic"]


#: What is compared: heading, and the name in a result.
MEASURES = {
    "last 100 training episodes": "last",
    "20 deterministic episodes": "deterministic",
    "20 sampled episodes": "stochastic",
}
#: Those that say most: what was learned while exploring, and what is used.
COMPARED = {heading: name for heading, name in MEASURES.items() if name != "stochastic"}


def reached(runs: Iterable[dict[str, Any]], measure: str) -> str:
    """What runs came to; nothing of one that was too short for an episode to end.

    :param measure: of :data:`MEASURES`
    """
    means = (run[measure]["mean"] for run in runs)
    return score([mean for mean in means if mean is not None])


def table(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each task and contender, tasks together, in the order in which tasks and contenders come."""
    results = list(results)
    tasks = list(dict.fromkeys(result["task"] for result in results))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda result: tasks.index(result["task"])):
        groups.setdefault((result["task"], result["arm"]), []).append(result)
    rows = []
    for (task, arm), runs in groups.items():
        scores = [reached(runs, name) for name in MEASURES.values()]
        rows.append([task, NAMES.get(arm, arm), str(len(runs)), *scores])
    return markdown(["task", "contender", "seeds", *MEASURES], rows)


def effects_table(results: Iterable[dict[str, Any]], name: str) -> list[str]:
    """What the runs of a screening reach on average; then a line for each setting: by which part of that it changes the
    return.

    :param results: of the part
    :param name: of :data:`SCREENS`
    """
    screen = SCREENS[name]
    jobs = in_order([STAGES[name]])
    found = {Job(result["arm"], result["task"], result["seed"]): result for result in results}

    def scores(measure: str) -> np.ndarray:
        each = [found[job][measure]["mean"] if job in found else np.nan for job in jobs]
        return np.reshape(each, (len(screen.design.levels), len(SCREENED)))

    def effects(scores: np.ndarray) -> list[str]:
        each = (Estimate(*row) for row in screen.design.effects(scores))
        return [f"{effect:+.0%}" if np.isfinite(effect.low) else "" for effect in each]

    measured = {measure: scores(measure) for measure in COMPARED.values()}
    last = measured["last"]
    means = [f"{np.nanmean(column):.0f}" if np.isfinite(column).any() else "" for column in last.T]
    columns = {task: [mean, *effects(last[:, [i]])] for i, (task, mean) in enumerate(zip(SCREENED, means, strict=True))}
    columns |= {f"all three, {heading}": ["", *effects(measured[measure])] for heading, measure in COMPARED.items()}
    names = ["*mean of all runs*", *(factor.name for factor in screen.design.factors)]
    rows = [list(row) for row in zip(names, *columns.values(), strict=True)]
    return [*markdown(["setting", *columns], rows), "", f"{sum(job in found for job in jobs)} of {len(jobs)} runs"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="what is done, going on, and left")
    what.add_argument("--run", nargs=3, metavar=("ARM", "TASK", "SEED"), help="do one run")
    what.add_argument("--queue", action="store_true", help="do what is left")
    what.add_argument("--table", action="store_true", help="what came out")
    what.add_argument("--effects", choices=SCREENS, help="what a screening says of each setting")
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=list(STAGES), help="which runs (default: all)")
    parser.add_argument("--results", type=Path, default=FILE, help="JSON Lines file of results (default: %(default)s)")
    parser.add_argument("--steps", type=whole_number, help="environment steps of a run (default: those of its arm)")
    arguments = parser.parse_args()
    file, jobs = arguments.results.resolve(), in_order(STAGES[stage] for stage in arguments.stage)
    if arguments.run:
        try:
            job = parse_job(*arguments.run)
        except ValueError as error:
            parser.error(str(error))
        th.set_num_threads(1)
        try:
            run(job, file, arguments.steps)
        except KeyboardInterrupt:
            print(f"{job}: interrupted; the same command starts it again", file=sys.stderr)
            raise SystemExit(130) from None
    elif arguments.queue:
        steps = ["--steps", str(arguments.steps)] if arguments.steps else []
        again = [*python(SCRIPT), "--results", str(file), *steps, "--run"]
        failed = work(again, file, jobs)
        raise SystemExit(f"{len(failed)} runs failed" if failed else 0)
    elif arguments.effects:
        print("\n".join(effects_table(results(file, [arguments.effects]), arguments.effects)))
    else:
        print("\n".join(status(file, jobs) if arguments.list else table(results(file, arguments.stage))))


if __name__ == "__main__":
    main()
