"""What is learned, run by run, over many hours: MuJoCo's tasks (version 5) in a million steps, and classic ones.

    python scripts/learning_returns.py --list                           # what is done, going on, and left
    python scripts/learning_returns.py --run sb3-defaults Hopper-v5 0   # one run
    python scripts/learning_returns.py --queue                          # all that is left, one after another
    python scripts/learning_returns.py --queue --stage screening        # of one part; two queues share the work
    python scripts/learning_returns.py --table                          # what came out, with intervals
    python scripts/learning_returns.py --effects                        # which settings matter (scripts/screening.py)

Each run leaves ``docs/benchmarks/returns/ARM/TASK-SEED.json``: the curve of training, the last 100 training episodes,
and 20 episodes at the end with the most likely actions and 20 with sampled ones, in environments of their own and with
the statistics of training; settings, versions, time, and the command that repeats it. What is done is not done again.

To have the queue work in the background, and to pause it and go on:

    setsid nohup nice -n 19 python scripts/learning_returns.py --queue > queue.log 2>&1 &
    group=$(cat docs/benchmarks/returns/.running/queue.pid)
    kill -STOP -- -$group
    kill -CONT -- -$group
    echo 19 > /proc/$group/autogroup    # Linux: be nice to other terminals too, not only within this session

``kill $group`` ends it after the run that is going on, ``kill -- -$group`` at once; a run that was ended is begun anew.
The queue runs the files that there are: leave the package alone meanwhile, for instance in a clone of its own.
"""

import argparse
import time
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import screening
import torch as th
from campaign import (  # the script beside this one
    ROOT,
    Cell,
    Job,
    claim,
    in_order,
    is_claimed,
    lock_path,
    python,
    read,
    result_path,
    versions,
    work,
    write,
)
from markdown_table import markdown
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from ppo_plus import PPO_Plus
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import Experiment, parse_settings
from ppo_plus.zoo.hyperparams import builtin_file, read_entry
from ppo_plus.zoo.tune.statistics import iqm_interval

SCRIPT = "scripts/learning_returns.py"
FOLDER = ROOT / "docs" / "benchmarks" / "returns"
STEPS = 1_000_000
#: Environment steps that one point of a curve is the mean of.
BIN = 20_000
N_LAST, N_EPISODES, N_EVAL_ENVS = 100, 20, 10


@dataclass(frozen=True)
class Arm:
    """A contender.

    :param algorithm: who learns
    :param settings: in the format of a settings file
    :param entry: whether these are put over the task's entry in ``hyperparams/ppo_plus.yml``
    :param by_task: further settings of some tasks
    :param steps: environment steps of a run; ``None``: those of the task's entry
    """

    algorithm: type[Any]
    settings: dict[str, Any] = field(default_factory=dict)
    entry: bool = False
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: int | None = STEPS


#: SB3's own defaults, with observations and rewards normalized. The entry of Ant is the same.
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
    "yaml": Arm(PPO_Plus, entry=True),
    "yaml-by-sb3": Arm(PPO, entry=True),
    "entry": Arm(PPO_Plus, entry=True, steps=None),
    "trpo": Arm(TRPO, ZOO_TRPO, by_task={"HalfCheetah-v5": {"target_kl": 0.04}, "Swimmer-v5": {"gamma": 0.9999}}),
}
#: Which of many settings matter, and where that is looked for; the other tasks are held out.
SCREEN = {
    f"screen-{i:02d}": Arm(PPO_Plus, DEFAULTS | screening.settings(levels), steps=500_000)
    for i, levels in enumerate(screening.design())
}
ARMS |= SCREEN
SCREENED = ("HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "Humanoid-v5")

#: What is to be done, in this order.
STAGES: dict[str, list[Cell]] = {
    # Whether PPO_Plus is SB3's algorithm at SB3's settings; and whether the low first returns of Hopper's and Ant's
    # entries are ours or SB3's as well.
    "beside-sb3": [
        Cell("yaml-by-sb3", "Hopper-v5", range(2)),
        Cell("yaml", "Hopper-v5", range(2)),
        Cell("sb3-defaults-by-sb3", "Ant-v5", range(2)),
        Cell("sb3-defaults", "Ant-v5", range(2)),
        *(Cell(arm, "HalfCheetah-v5", range(3)) for arm in ("sb3-defaults-by-sb3", "sb3-defaults")),
    ],
    "baselines": [
        *(Cell("sb3-defaults", task, range(5)) for task in TASKS),
        *(Cell("yaml", task, range(3)) for task in TASKS if task != "Ant-v5"),
        *(Cell("trpo", task, range(2)) for task in TASKS),
    ],
    "screening": [Cell(arm, task, range(1)) for arm in SCREEN for task in SCREENED],
    "entries": [
        *(Cell("entry", task, range(10)) for task in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3")),
        Cell("entry", "BipedalWalker-v3", range(3)),
    ],
}


def experiment(job: Job, steps: int | None = None) -> Experiment:
    """What a run trains.

    :param steps: environment steps; ``None``: those of the arm
    """
    arm = ARMS[job.arm]
    entry = read_entry(job.task, builtin_file())[1] if arm.entry else {}
    settings = {**entry, **arm.settings, **arm.by_task.get(job.task, {})}
    if budget := steps or arm.steps:
        settings["n_timesteps"] = budget
    return parse_settings(job.task, settings).replace(seed=job.seed, device="cpu")


def make_model(algorithm: type[Any], training: Experiment, env: VecEnv) -> Any:
    """The algorithm, with weights that the seed determines."""
    own = {"n_threads": 1} if issubclass(algorithm, PPO_Plus) else {}
    arguments = deepcopy({**training.hyperparams, **own})
    policy_kwargs = deepcopy(training.policy_kwargs)
    return algorithm(
        training.policy, env, policy_kwargs=policy_kwargs, seed=training.seed, device=training.device, **arguments
    )


def episodes(env: VecEnv) -> np.ndarray:
    """All training episodes in the order in which they ended: the step at which each did, counted over all
    environments, its return and its length. SB3's ``Monitor`` remembers them."""
    columns = zip(env.env_method("get_episode_rewards"), env.env_method("get_episode_lengths"), strict=True)
    found = [
        (end * env.num_envs, score, length)
        for scores, lengths in columns
        for end, score, length in zip(accumulate(lengths), scores, lengths, strict=True)
    ]
    return np.array(sorted(found), dtype=float).reshape(-1, 3)


def curve(done: np.ndarray, steps: int, width: int = BIN) -> dict[str, list[Any]]:
    """Means over the episodes that ended within each ``width`` steps; ``None`` where none did.

    :param done: of :func:`episodes`
    :param steps: how many were trained
    :param width: environment steps per point
    """
    n_bins = -(-steps // width)
    bins = np.minimum((done[:, 0] - 1) // width, n_bins - 1)
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
    version = versions() | {name: metadata.version(name) for name in ("gymnasium", "mujoco", "numpy")}
    env = make_envs(training)
    model = make_model(algorithm, training, env)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(training.n_timesteps)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = episodes(env)
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
    """What repeats a run; a result that is there already has to be moved away, or another folder to be given."""
    return f"OMP_NUM_THREADS=1 python {SCRIPT} --run {job}" + (f" --steps {steps}" if steps else "")


def run(job: Job, folder: Path = FOLDER, steps: int | None = None) -> None:
    """Do a run, unless it is done or another process is about it."""
    with claim(lock_path(folder, job)) as mine:
        if not mine or result_path(folder, job).exists():
            print(f"{job}: {'done already' if mine else 'another process is about it'}", flush=True)
            return
        print(f"{time.strftime('%d %b %H:%M:%S')} {job}", flush=True)
        result = learn(job, steps)
        write(result_path(folder, job), result)
    print(
        f"{time.strftime('%d %b %H:%M:%S')} {job}: last 100 {result['last']['mean']}, deterministic "
        f"{result['deterministic']['mean']}, stochastic {result['stochastic']['mean']}, {result['cpu_seconds']} s",
        flush=True,
    )


def status(folder: Path, jobs: Iterable[Job]) -> list[str]:
    """A line for each run: what came out of it, or whether it is going on."""
    jobs = list(jobs)
    done = read(folder, jobs)

    def state(job: Job) -> str:
        if job not in done:
            return "running" if is_claimed(lock_path(folder, job)) else "open"
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


def table(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each task and contender, tasks together, in the order in which tasks and contenders come."""
    results = list(results)
    tasks = list(dict.fromkeys(result["task"] for result in results))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda result: tasks.index(result["task"])):
        groups.setdefault((result["task"], result["arm"]), []).append(result)
    rows = []
    for (task, arm), runs in groups.items():
        minutes = np.mean([result["cpu_seconds"] for result in runs]) / 60
        scores = [_interval([result[name]["mean"] for result in runs]) for name in MEASURES.values()]
        rows.append([task, arm, str(len(runs)), *scores, f"{minutes:.1f}"])
    return markdown(["task", "contender", "seeds", *MEASURES, "CPU min"], rows)


def effects_table(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each setting of the screening: by which part of a task's usual return it changes the return."""
    found = {(result["arm"], result["task"]): result for result in results}
    rows = []
    columns = []
    for name in MEASURES.values():
        scores = [
            [found[arm, task][name]["mean"] if (arm, task) in found else np.nan for task in SCREENED] for arm in SCREEN
        ]
        columns.append(screening.effects(np.array(scores, dtype=float)))
    for factor, *each in zip(screening.FACTORS, *columns, strict=True):
        cells = [f"{effect:+.0%} [{low:+.0%}, {high:+.0%}]" if np.isfinite(low) else "" for effect, low, high in each]
        rows.append([factor.name, *cells])
    done = sum((arm, task) in found for arm in SCREEN for task in SCREENED)
    return [
        *markdown(["setting", *MEASURES], rows),
        "",
        f"{done} of {len(SCREEN) * len(SCREENED)} runs",
    ]


def _interval(scores: list[float]) -> str:
    """The interquartile mean and its 95 % interval; of one run, its score."""
    return str(iqm_interval(scores)) if len(scores) > 1 else f"{scores[0]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="what is done, going on, and left")
    what.add_argument("--run", nargs=3, metavar=("ARM", "TASK", "SEED"), help="do one run")
    what.add_argument("--queue", action="store_true", help="do what is left")
    what.add_argument("--table", action="store_true", help="what came out")
    what.add_argument("--effects", action="store_true", help="what the screening says of each setting")
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=list(STAGES), help="which runs (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are")
    parser.add_argument("--steps", type=int, help="environment steps of a run (default: those of its arm)")
    arguments = parser.parse_args()
    folder, jobs = arguments.folder.resolve(), in_order(STAGES[stage] for stage in arguments.stage)
    if arguments.run:
        arm, task, seed = arguments.run
        if arm not in ARMS:
            parser.error(f"ARM={arm!r} must be one of {', '.join(ARMS)}")
        th.set_num_threads(1)
        run(Job(arm, task, int(seed)), folder, arguments.steps)
    elif arguments.queue:
        steps = ["--steps", str(arguments.steps)] if arguments.steps else []
        again = [*python(SCRIPT), "--folder", str(folder), *steps, "--run"]
        failed = work(again, folder, jobs)
        raise SystemExit(f"{len(failed)} runs failed" if failed else 0)
    elif arguments.effects:
        print("\n".join(effects_table(read(folder, jobs).values())))
    else:
        print("\n".join(status(folder, jobs) if arguments.list else table(read(folder, jobs).values())))


if __name__ == "__main__":
    main()
