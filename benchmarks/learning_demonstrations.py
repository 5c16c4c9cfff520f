"""What ten demonstrations are worth where PPO from scratch finds no reward: MountainCar, with both kinds of actions.

    python benchmarks/learning_demonstrations.py --json benchmarks/results/learning_demonstrations.json
    python benchmarks/learning_demonstrations.py --only MountainCar-v0 --seeds 2 --jobs 1

All learn with SB3's default hyperparameters for 200,000 steps. The demonstrator pushes in the direction of the
velocity. The score is the mean return of 100 deterministic episodes at the end: MountainCarContinuous-v0 counts as
solved from 90 on, MountainCar-v0 from -110 on, and an episode of it without the goal has -200. Runs whose results are
in the file already are not done again.
"""

from functools import partial

import numpy as np
from report.scores import COLUMNS, Result, rows  # the modules beside this one
from runs import done_before, learn, parser, run
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from ppo_plus import PPO_Plus, record_demonstrations

STEPS, N_DEMONSTRATIONS, N_EPISODES, N_SEEDS = 200_000, 10, 100, 5
#: Whether a contender is pretrained, and whether it learns after that.
CONTENDERS = {
    "PPO_Plus": (False, True),
    "ten demonstrations": (True, False),
    "ten demonstrations, then PPO_Plus": (True, True),
}


def push(observation: np.ndarray) -> np.ndarray:
    """The force in the direction of the velocity."""
    return np.array([1.0 if observation[1] >= 0 else -1.0], np.float32)


def push_discretely(observation: np.ndarray) -> int:
    """The same as a choice among left, nothing and right."""
    return 1 + int(push(observation)[0])


DEMONSTRATORS = {"MountainCarContinuous-v0": push, "MountainCar-v0": push_discretely}


def learn_task(env_id: str, contender: str, seed: int, steps: int = STEPS) -> Result:
    pretrains, learns = CONTENDERS[contender]
    model = PPO_Plus("MlpPolicy", env_id, seed=seed, device="cpu")
    if pretrains:
        demonstrations = record_demonstrations(DEMONSTRATORS[env_id], env_id, N_DEMONSTRATIONS, seed=1000 * seed)
        model.pretrain(demonstrations)
    speed = learn(model, steps) if learns else 0.0
    score, _ = evaluate_policy(model, make_vec_env(env_id, 10, seed=1000 * seed + 500), N_EPISODES)
    return Result(env_id, contender, seed, model.num_timesteps, speed, float(score))  # type: ignore[arg-type]


def main() -> None:
    arguments = parser(__doc__, DEMONSTRATORS, N_SEEDS, CONTENDERS).parse_args()
    before = done_before(arguments.json) if arguments.json else []
    known = {(result.task, result.contender, result.seed) for result in before}
    jobs = [
        partial(learn_task, env_id, contender, seed)
        for seed in range(arguments.seeds)
        for env_id in arguments.only
        for contender in CONTENDERS
        if contender not in arguments.without and (env_id, contender, seed) not in known
    ]
    print("\n" + "\n".join(rows(run(jobs, arguments, before), COLUMNS)))


if __name__ == "__main__":
    main()
