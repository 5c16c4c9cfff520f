"""Long training runs: MuJoCo's tasks (version 5) in a million steps, classic ones, MiniGrid, and Pong.

    python benchmarks/learning_returns.py --list                           # what is done, running, and left
    python benchmarks/learning_returns.py --run sb3-defaults Hopper-v5 0   # one run
    python benchmarks/learning_returns.py --queue                          # all that is left, one after another
    python benchmarks/learning_returns.py --queue --stage zoo              # of one stage; two queues share the work
    python benchmarks/learning_returns.py --table --stage zoo              # what came out, with intervals
    python benchmarks/learning_returns.py --report                         # contenders compared, and goals
    python benchmarks/learning_returns.py --random --stage unseen          # what random actions reach

``benchmarks/arms.yml`` has the contenders and the stages: to measure other settings, add an arm, and a line to a stage.
Each run appends a line to ``benchmarks/results/returns.jsonl``: the curve of training, the last 100 training episodes,
and 20 episodes at the end with the most likely actions and 20 with sampled ones, in separate environments and with the
statistics of training; settings, versions and time. What is done is not done again. Earlier runs are in an archive
beside that file.

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
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from campaign import check_steps, claim, is_claimed, lock_path, python, versions, work  # the modules beside this one
from report.plan import ARMS, STAGES, Job, in_order, read
from report.recommended import RANDOM
from report.results import append_line, read_lines
from report.returns import BIN, FILE, report, results, table
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from ppo_plus import PPO_Plus
from ppo_plus.zoo.callbacks import ProgressDisplay
from ppo_plus.zoo.cli.arguments import whole_number
from ppo_plus.zoo.experiment import Experiment, make_envs, parse_settings, with_recommended
from ppo_plus.zoo.hyperparams import builtin_file, read_mapping
from ppo_plus.zoo.installation import find_env

SCRIPT = "benchmarks/learning_returns.py"
N_LAST, N_EPISODES, N_EVAL_ENVS = 100, 20, 10
#: What simulates the environments of a package: another package than MuJoCo.
SIMULATORS = {"ale_py": "ale-py", "minigrid": "minigrid"}


def parse_job(arm: str, task: str, seed: str) -> Job:
    """The run that the words of a command name.

    :raises ValueError: there is no such contender or task, the contender has no settings for the task, or the seed is
        not a whole number
    """
    if arm not in ARMS:
        near = get_close_matches(arm, ARMS) or ["mujoco", "entry", "sb3-defaults"]
        raise ValueError(f"there is no contender ARM={arm!r}: {', '.join(near)} are some of those that --list shows")
    entry = ARMS[arm].entry_of(task)
    if entry is not None and entry not in read_mapping(builtin_file()):
        raise ValueError(f"ARM={arm} TASK={task}: {builtin_file().name} has no entry {entry}")
    try:
        find_env(task)
    except (gym.error.Error, ImportError):
        raise ValueError(f"TASK={task!r} is not an environment that Gymnasium has registered") from None
    if not seed.isdecimal():
        raise ValueError(f"SEED={seed!r} must be a whole number, 0 or above")
    return Job(arm, task, int(seed))


def settings_of(job: Job, steps: int | None = None) -> dict[str, Any]:
    """The settings of a run, in the format of a settings file.

    :param steps: environment steps; ``None``: those of the arm
    """
    arm = ARMS[job.arm]
    name = arm.entry_of(job.task)
    entry = {} if name is None else read_mapping(builtin_file())[name]
    budget = {"n_timesteps": steps or arm.steps} if steps or arm.steps else {}
    return {**entry, **arm.settings, **arm.by_task.get(job.task, {}), **budget}


def experiment(job: Job, settings: dict[str, Any]) -> Experiment:
    """What a run trains, with :func:`settings_of` it; as in the shell, the entry "default" has the recommended ones."""
    made = parse_settings(job.task, settings, packages=None)
    if (entry := ARMS[job.arm].entry) in ("default", "default/sb3"):
        made = with_recommended(made, settings, policy_alone=entry == "default/sb3")
    return made.replace(seed=job.seed, device="cpu", vec_env=ARMS[job.arm].vec_env)


def make_model(algorithm: type[Any], training: Experiment, env: VecEnv) -> Any:
    """A model of the algorithm, with weights that the seed determines."""
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
    }


def play(model: Any, training: Experiment, deterministic: bool) -> dict[str, Any]:
    """Returns, in the environment's own rewards, of episodes in separate environments, which normalize as training
    does at its end; equally many of each environment, so that short episodes count no more than long ones."""
    env = make_envs(training, N_EVAL_ENVS, evaluation=True)
    sync_envs_normalization(model.get_env(), env)
    scores, lengths = evaluate_policy(
        model, env, N_EPISODES, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    env.close()
    return summary(scores, lengths)  # type: ignore[arg-type]


def play_randomly(task: str, n_episodes: int = 100) -> float:
    """The mean return of episodes with random actions."""
    job = Job("untuned", task, 0)
    env = make_envs(experiment(job, settings_of(job)), 1, evaluation=True)
    env.action_space.seed(0)
    env.reset()
    done: list[float] = []
    while len(done) < n_episodes:
        infos = env.step(np.array([env.action_space.sample()]))[3]
        done += [info["episode"]["r"] for info in infos if "episode" in info]
    env.close()
    return float(np.mean(done))


def summary(scores: Iterable[float], lengths: Iterable[float]) -> dict[str, Any]:
    """What is kept of some episodes."""
    return {"mean": _mean(scores), "length": _mean(lengths)}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return round(float(np.mean(values)), 2) if values else None


def learn(job: Job, steps: int | None = None) -> dict[str, Any]:
    """Train and evaluate.

    :return: what is kept of it
    """
    training = experiment(job, settings_of(job, steps))
    package, name = ARMS[job.arm].algorithm.split(".")
    algorithm = getattr(import_module(package), name)
    env = make_envs(training)
    version = versions(SIMULATORS.get(str(find_env(job.task).entry_point).partition(".")[0], "mujoco"))
    model = make_model(algorithm, training, env)
    cpu = time.process_time()
    episodes = Episodes()
    model.learn(training.n_timesteps, [episodes, ProgressDisplay()] if isinstance(model, PPO_Plus) else episodes)
    cpu = time.process_time() - cpu
    done = episodes.rows()
    result = {
        "arm": job.arm,
        "task": job.task,
        "seed": job.seed,
        "steps": model.num_timesteps,
        "algorithm": ARMS[job.arm].algorithm,
        "settings": training.settings(),
        "versions": version,
        "cpu_seconds": round(cpu, 1),
        "last": summary(done[-N_LAST:, 1], done[-N_LAST:, 2]),
        "deterministic": play(model, training, deterministic=True),
        "stochastic": play(model, training, deterministic=False),
        "curve": curve(done, model.num_timesteps),
    }
    env.close()
    return result


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


def status(file: Path, jobs: Iterable[Job]) -> list[str]:
    """A line for each run: its scores, or whether it is running."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="what is done, running, and left")
    what.add_argument("--run", nargs=3, metavar=("ARM", "TASK", "SEED"), help="do one run")
    what.add_argument("--queue", action="store_true", help="do what is left")
    what.add_argument("--table", action="store_true", help="what came out")
    what.add_argument("--report", action="store_true", help="contenders compared, and goals")
    what.add_argument("--random", action="store_true", help="play random actions, where that was not done")
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=list(STAGES), help="which runs (default: all)")
    parser.add_argument("--results", type=Path, default=FILE, help="JSON Lines file of results (default: %(default)s)")
    parser.add_argument("--steps", type=whole_number, help="environment steps of a run (default: those of its arm)")
    arguments = parser.parse_args()
    check_steps(parser, arguments, FILE)
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
    elif arguments.random:
        known = {line["task"] for line in read_lines(RANDOM)}
        for task in dict.fromkeys(job.task for job in jobs if job.task not in known):
            append_line(RANDOM, {"task": task, "return": round(play_randomly(task), 3)})
    elif arguments.report:
        print("\n".join(report(file)))
    else:
        print("\n".join(status(file, jobs) if arguments.list else table(results(file, arguments.stage))))


if __name__ == "__main__":
    main()
