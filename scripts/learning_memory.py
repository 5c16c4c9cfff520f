"""What policies learn where velocities cannot be seen, with and without memory, beside sb3-contrib's RecurrentPPO.

    python scripts/learning_memory.py --json docs/benchmarks/learning_memory.json
    python scripts/learning_memory.py --only CartPole-v1 --without RecurrentPPO

All contenders get the same hyperparameters; the score is the mean return of 20 deterministic episodes at the end. The
first one sees velocities: it is what memory should make up for.
"""

import argparse
import json
import platform
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from time import process_time
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.wrappers import TransformObservation
from sb3_contrib import RecurrentPPO
from stable_baselines3 import __version__ as sb3_version
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from ppo_plus import PPO_Plus, __version__, linear

#: Algorithm, policy, and whether velocities are hidden.
CONTENDERS: dict[str, tuple[type[Any], str, bool]] = {
    "PPO_Plus, all observations": (PPO_Plus, "MlpPolicy", False),
    "PPO_Plus with LSTM": (PPO_Plus, "MlpLstmPolicy", True),
    "PPO_Plus without memory": (PPO_Plus, "MlpPolicy", True),
    "RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy", True),
    "PPO_Plus with GRU": (PPO_Plus, "MlpGruPolicy", True),
}


@dataclass(frozen=True)
class Task:
    """An environment and its hyperparameters.

    :param positions: what is left of an observation without velocities
    :param goal: a mean return that counts as solved
    :param normalize: whether to normalize rewards
    """

    positions: list[int]
    steps: int
    goal: float
    n_envs: int
    arguments: dict[str, Any]
    normalize: bool = False


TASKS = {
    "CartPole-v1": Task(
        [0, 2],
        300_000,
        475.0,
        8,
        dict(n_steps=128, batch_size=256, n_epochs=10, gamma=0.98, learning_rate=linear(1e-3)),
    ),
    "Pendulum-v1": Task(
        [0, 1],
        400_000,
        -200.0,
        4,
        dict(n_steps=512, batch_size=128, n_epochs=10, gamma=0.9, learning_rate=linear(1e-3)),
        normalize=True,
    ),
}
#: Layers behind the recurrent ones, and the size of those.
NETWORK = dict(net_arch=[64], activation_fn=nn.ReLU, ortho_init=False)
MEMORY = dict(lstm_hidden_size=64)
N_SEEDS = 3


@dataclass
class Result:
    """One training run: what, with which seed, how many steps, what came out, and how many steps per second of CPU."""

    task: str
    contender: str
    seed: int
    steps: int
    score: float
    steps_per_second: float


def make_env(env_id: str, hidden: bool, n_envs: int, seed: int) -> VecEnv:
    positions = TASKS[env_id].positions

    def wrap(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        seen = gym.spaces.Box(space.low[positions], space.high[positions])
        return TransformObservation(env, lambda observation: observation[positions], seen)

    return make_vec_env(env_id, n_envs, seed=seed, wrapper_class=wrap if hidden else None)


def learn(env_id: str, contender: str, seed: int) -> Result:
    th.set_num_threads(1)
    task, (algorithm, policy, hidden) = TASKS[env_id], CONTENDERS[contender]
    env = make_env(env_id, hidden, task.n_envs, 1000 * seed)
    if task.normalize:
        env = VecNormalize(env, norm_obs=False, gamma=task.arguments["gamma"])
    policy_kwargs = NETWORK | (MEMORY if "Lstm" in policy or "Gru" in policy else {})
    model = algorithm(policy, env, seed=seed, device="cpu", policy_kwargs=policy_kwargs, **task.arguments)
    start = process_time()
    model.learn(task.steps)
    seconds = process_time() - start
    score, _ = evaluate_policy(model, make_env(env_id, hidden, 4, 1000 * seed + 500), n_eval_episodes=20)
    result = Result(env_id, contender, seed, model.num_timesteps, float(np.mean(score)), model.num_timesteps / seconds)
    print(f"{env_id}, {contender}, seed {seed}: {result.score:.1f}, {result.steps_per_second:.0f}/s", flush=True)
    return result


def rows(results: list[Result]) -> list[str]:
    lines = ["| task | contender | steps | returns | goal | steps/s |", "|---|---|---|---|---|---|"]
    for env_id, task in TASKS.items():
        for contender in CONTENDERS:
            runs = [run for run in results if (run.task, run.contender) == (env_id, contender)]
            if runs:
                returns = ", ".join(f"{run.score:.1f}" for run in runs)
                reached = sum(run.score >= task.goal for run in runs)
                speed = np.median([run.steps_per_second for run in runs])
                lines.append(
                    f"| {env_id} | {contender} | {runs[0].steps:,} | {returns} | "
                    f"≥ {task.goal:g}: {reached} of {len(runs)} | {speed:,.0f} |"
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), help="tasks to run")
    parser.add_argument("--without", nargs="+", choices=list(CONTENDERS), default=[], help="contenders to leave out")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help="runs of each")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="runs at a time")
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()
    machine = {
        "python": platform.python_version(),
        "torch": th.__version__,
        "stable_baselines3": sb3_version,
        "ppo_plus": __version__,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_count()} cores",
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        jobs = [
            pool.submit(learn, env_id, contender, seed)
            for seed in range(arguments.seeds)
            for contender in CONTENDERS
            if contender not in arguments.without
            for env_id in arguments.only
        ]
        results = []
        for job in as_completed(jobs):
            results.append(job.result())
            if arguments.json:
                # After each run: a whole table takes long.
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
                runs = [asdict(result) for result in sorted(results, key=lambda run: (run.contender, run.seed))]
                arguments.json.write_text(json.dumps({"versions": machine, "runs": runs}, indent=1) + "\n")
    print("\n" + "\n".join(rows(sorted(results, key=lambda run: run.seed))))


if __name__ == "__main__":
    main()
