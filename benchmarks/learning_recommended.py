"""How the recommended settings were found: runs that differ in several settings at once.

    python benchmarks/learning_recommended.py               # the table, from results/recommended_search.jsonl
    python benchmarks/learning_recommended.py --repeat 17   # the run of line 17 again

All have eight environments, and normalize values in the policy, and observations unless a line says otherwise.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from report.recommended import measure
from report.results import read_lines
from report.search import FILE, effects
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus import PPO_Plus, make_vec
from ppo_plus.formulas.kl_control import AdaptiveLearningRate
from ppo_plus.recommendations import policy_arguments
from ppo_plus.zoo.cli.arguments import whole_number


def make(task: str, n_envs: int, seed: int, **kwargs: Any) -> VecEnv:
    """Environments; MiniGrid's observations are flat, FlappyBird's numbers."""
    if not task.startswith("MiniGrid-"):
        return make_vec(task, n_envs, seed=seed, env_kwargs={"use_lidar": False, **kwargs} if "Flappy" in task else {})
    from minigrid.wrappers import FlatObsWrapper

    return make_vec(lambda: FlatObsWrapper(gym.make(task)), n_envs, seed=seed)


def train(task: str, seed: int, n_timesteps: int, settings: dict[str, Any]) -> float:
    """The mean return of 20 episodes after training, of FlappyBird of at most 3,000 steps."""
    env, others = make(task, 8, seed), make(task, 5, seed + 10_000, max_episode_steps=3000)
    arguments = policy_arguments(env) | {"normalize_observations": True, "normalize_values": True} | settings
    if (max_scale := arguments.pop("max_scale", None)) is not None:
        arguments["kl_control"] = AdaptiveLearningRate(max_scale=max_scale)
    model = PPO_Plus(env=env, seed=seed, device="cpu", **arguments).learn(n_timesteps)
    model.set_random_seed(seed)
    return float(np.mean(evaluate_policy(model, others, 20, deterministic=measure(task) == "deterministic")[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=whole_number, metavar="LINE", help="train again")
    again, runs = parser.parse_args().repeat, read_lines(FILE)
    if again is None:
        print("\n".join(effects(runs)))
    else:
        th.set_num_threads(1)
        run = runs[again - 1]
        found = train(run["task"], run["seed"], run["n_timesteps"], run["settings"])
        print(found, "before:", run["return"])


if __name__ == "__main__":
    main()
