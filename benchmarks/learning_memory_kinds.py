"""What each kind of memory learns in the same number of steps and in the same time, beside sb3-contrib's RecurrentPPO.

    python benchmarks/learning_memory_kinds.py --queue                     # all that is left, one after another
    python benchmarks/learning_memory_kinds.py --queue --tasks TMaze-50    # of some tasks; two queues share the work
    python benchmarks/learning_memory_kinds.py --run LRU TMaze-50 10       # one run
    python benchmarks/learning_memory_kinds.py --table                     # what came out

Each run appends a line to ``benchmarks/results/memory_kinds.jsonl``; finished runs are skipped, as in
``learning_returns.py``. Contenders differ in the policy alone. The task's hyperparameters are those of
``learning_memory.py`` (velocities are hidden), ``learning_together.py`` (Vault), or :data:`RECALL`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import learning_memory as velocities
import learning_together as together
import torch as th
from campaign import check_steps, claim, lock_path, python, versions, work
from learning_actions import Unmasked
from learning_returns import Episodes, curve
from memory_tasks import RepeatPrevious, TMaze
from report.memory_kinds import FILE, JOBS, table
from report.plan import Job, read
from report.results import append_line
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ppo_plus import PPO_Plus, linear
from ppo_plus.zoo.cli.arguments import whole_number

SCRIPT = "benchmarks/learning_memory_kinds.py"
CONTENDERS: dict[str, tuple[type[Any], str]] = {
    "LSTM": (PPO_Plus, "MlpLstmPolicy"),
    "GRU": (PPO_Plus, "MlpGruPolicy"),
    "LRU": (PPO_Plus, "MlpLruPolicy"),
    "Attention": (PPO_Plus, "MlpAttentionPolicy"),
    "RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy"),
}
#: Hyperparameters of the tasks of :mod:`memory_tasks`.
RECALL: dict[str, Any] = dict(n_steps=256, batch_size=512, learning_rate=linear(1e-3), ent_coef=0.01)


@dataclass(frozen=True)
class Task:
    """A task and its hyperparameters; ``own`` are further arguments of PPO_Plus.

    :param make_env: makes environments from whether they offer masks, and a seed
    """

    make_env: Callable[[bool, int], VecEnv]
    steps: int
    arguments: dict[str, Any]
    own: dict[str, Any]


def hidden(env_id: str, masked: bool, seed: int) -> VecEnv:
    task = velocities.TASKS[env_id]
    env = velocities.make_env(env_id, True, task.n_envs, seed)
    return VecNormalize(env, norm_obs=False, gamma=task.arguments["gamma"])


def vault(masked: bool, seed: int) -> VecEnv:
    wrapper = None if masked else Unmasked
    return make_vec_env(together.Vault, together.N_ENVS, seed=seed, wrapper_class=wrapper)


def recall(env: Callable[[], Any], masked: bool, seed: int) -> VecEnv:
    return make_vec_env(env, 16, seed=seed)


TASKS = {
    **{
        name: Task(partial(hidden, name), task.steps, task.arguments, {"sequence_length": 32})
        for name, task in velocities.TASKS.items()
    },
    "Vault": Task(vault, together.STEPS, together.ARGUMENTS, together.GSDE | together.SEQUENCES),
    "RepeatPrevious-16": Task(partial(recall, partial(RepeatPrevious, 16)), 500_000, RECALL, {"sequence_length": 64}),
    "RepeatPrevious-32": Task(partial(recall, partial(RepeatPrevious, 32)), 500_000, RECALL, {"sequence_length": 64}),
    "TMaze-50": Task(partial(recall, partial(TMaze, 50)), 500_000, RECALL | {"gamma": 0.998}, {"sequence_length": 64}),
}


def learn(job: Job, steps: int | None = None) -> dict[str, Any]:
    """Train.

    :return: what is kept of it
    """
    task, (algorithm, policy) = TASKS[job.task], CONTENDERS[job.arm]
    is_ours = issubclass(algorithm, PPO_Plus)
    env, episodes = task.make_env(is_ours, 1000 * job.seed), Episodes()
    arguments = task.arguments | (task.own if is_ours else {})
    policy_kwargs = velocities.NETWORK | velocities.MEMORY
    model = algorithm(policy, env, seed=job.seed, device="cpu", policy_kwargs=policy_kwargs, **arguments)
    start = time.process_time()
    model.learn(steps or task.steps, episodes)
    seconds, done = time.process_time() - start, episodes.rows()
    return {
        "arm": job.arm,
        "task": job.task,
        "seed": job.seed,
        "steps": model.num_timesteps,
        "cpu_seconds": round(seconds, 1),
        "curve": curve(done, model.num_timesteps, -(-model.num_timesteps // 50)),
        "versions": versions(),
    }


def run(job: Job, file: Path, steps: int | None = None) -> None:
    """Do a run, unless it is done or another process is doing it."""
    with claim(lock_path(file, job)) as mine:
        if mine and not read(file, [job]):
            append_line(file, learn(job, steps))
            print(f"{time.strftime('%d %b %H:%M:%S')} {job}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", nargs=3, metavar=("ARM", "TASK", "SEED"), help="do one run")
    what.add_argument("--queue", action="store_true", help="do what is left")
    what.add_argument("--table", action="store_true", help="what came out")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="which tasks (default: all)")
    parser.add_argument("--results", type=Path, default=FILE, help="JSON Lines file of results (default: %(default)s)")
    parser.add_argument("--steps", type=whole_number, help="environment steps of a run (default: the task's)")
    arguments = parser.parse_args()
    check_steps(parser, arguments, FILE)
    file = arguments.results.resolve()
    if arguments.run:
        arm, task, seed = arguments.run
        if arm not in CONTENDERS or task not in TASKS or not seed.isdecimal():
            parser.error(f"ARM is one of {', '.join(CONTENDERS)}; TASK one of {', '.join(TASKS)}; SEED a number")
        th.set_num_threads(1)
        run(Job(arm, task, int(seed)), file, arguments.steps)
    elif arguments.queue:
        steps = ["--steps", str(arguments.steps)] if arguments.steps else []
        again = [*python(SCRIPT), "--results", str(file), *steps, "--run"]
        failed = work(again, file, [job for job in JOBS if job.task in arguments.tasks])
        raise SystemExit(f"{len(failed)} runs failed" if failed else 0)
    else:
        print("\n".join(table(file)))


if __name__ == "__main__":
    main()
