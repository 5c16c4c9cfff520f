"""What policies learn where velocities cannot be seen, with and without memory, beside sb3-contrib's RecurrentPPO.

    python benchmarks/learning_memory.py --json benchmarks/results/learning_memory.json
    python benchmarks/learning_memory.py --only CartPole-v1 --without RecurrentPPO

All contenders get the same hyperparameters, after rl_zoo3's for these tasks but with rewards normalized; the score is
the mean return of 100 deterministic episodes at the end. The first one sees velocities: it is what memory should make
up for.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TransformObservation
from report.scores import COLUMNS, SPEED, Result, rows
from runs import learn, parser, run
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from ppo_plus import PPO_Plus, linear

#: Algorithm, policy, whether velocities are hidden, and arguments that the others do not have.
CONTENDERS: dict[str, tuple[type[Any], str, bool, dict[str, Any]]] = {
    "PPO_Plus, all observations": (PPO_Plus, "MlpPolicy", False, {}),
    "PPO_Plus with LSTM": (PPO_Plus, "MlpLstmPolicy", True, {"sequence_length": 32}),
    "PPO_Plus without memory": (PPO_Plus, "MlpPolicy", True, {}),
    "PPO_Plus with GRU": (PPO_Plus, "MlpGruPolicy", True, {"sequence_length": 32}),
    "RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy", True, {}),
}


@dataclass(frozen=True)
class Task:
    """An environment and its hyperparameters.

    :param positions: what is left of an observation without velocities
    """

    positions: list[int]
    steps: int
    n_envs: int
    arguments: dict[str, Any]


TASKS = {
    "CartPole-v1": Task(
        [0, 2],
        250_000,
        8,
        dict(
            n_steps=128,
            batch_size=256,
            gamma=0.98,
            gae_lambda=0.9,
            learning_rate=linear(1e-3),
            clip_range=linear(0.2),
        ),
    ),
    "Pendulum-v1": Task(
        [0, 1],
        200_000,
        4,
        dict(
            n_steps=1024,
            batch_size=256,
            gamma=0.9,
            learning_rate=linear(1e-3),
            # The critic's large gradient would otherwise leave the actor little of it.
            max_grad_norm=2.0,
            use_sde=True,
            sde_sample_freq=4,
        ),
    ),
}
#: Layers after the recurrent ones, and the size of the recurrent ones.
NETWORK = dict(net_arch=[64], activation_fn=nn.ReLU, ortho_init=False)
MEMORY = dict(lstm_hidden_size=64)
N_EPISODES, N_SEEDS = 100, 3
#: Settings were chosen by runs with smaller seeds.
FIRST_SEED = 10


def make_env(env_id: str, hidden: bool, n_envs: int, seed: int) -> VecEnv:
    positions = TASKS[env_id].positions

    def wrap(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        space = env.observation_space
        assert isinstance(space, gym.spaces.Box)
        seen = gym.spaces.Box(space.low[positions], space.high[positions])
        return TransformObservation(env, lambda observation: observation[positions], seen)

    return make_vec_env(env_id, n_envs, seed=seed, wrapper_class=wrap if hidden else None)


def learn_task(env_id: str, contender: str, seed: int) -> Result:
    task, (algorithm, policy, hidden, own) = TASKS[env_id], CONTENDERS[contender]
    # Large returns would make the critic's gradient all there is to see below ``max_grad_norm``.
    env = VecNormalize(
        make_env(env_id, hidden, task.n_envs, 1000 * seed), norm_obs=False, gamma=task.arguments["gamma"]
    )
    policy_kwargs = NETWORK if policy == "MlpPolicy" else NETWORK | MEMORY
    model = algorithm(policy, env, seed=seed, device="cpu", policy_kwargs=policy_kwargs, **task.arguments, **own)
    speed = learn(model, task.steps)
    eval_env = make_env(env_id, hidden, 10, 1000 * seed + 500)
    score, _ = evaluate_policy(model, eval_env, N_EPISODES)
    return Result(env_id, contender, seed, model.num_timesteps, speed, float(score))  # type: ignore[arg-type]


def main() -> None:
    arguments = parser(__doc__, TASKS, N_SEEDS, CONTENDERS).parse_args()
    jobs = [
        partial(learn_task, env_id, contender, seed)
        for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        for env_id in arguments.only
        for contender in CONTENDERS
        if contender not in arguments.without
    ]
    print("\n" + "\n".join(rows(run(jobs, arguments), COLUMNS | SPEED)))


if __name__ == "__main__":
    main()
