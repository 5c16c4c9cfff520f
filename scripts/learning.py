"""What PPO_Plus learns on classic tasks, over several seeds, as tables with intervals.

    python scripts/learning.py                   # everything, about 15 minutes on two cores
    python scripts/learning.py --only CartPole-v1 Pendulum-v1
    python scripts/learning.py --json docs/benchmarks/learning.json

Tasks of the first table use the hyperparameters of ``hyperparams/ppo_plus.yml``; their goal is the mean return of 20
deterministic episodes at the end. The second table is MountainCar-v0 with SB3's default hyperparameters and 8
environments (a rollout is 2048 transitions, as with one environment): after how many steps the mean return of the last
20 training episodes reaches -130, by exploration, with raw and with normalized observations and rewards.
"""

from functools import partial

import learning_exploration  # the scripts beside this one
from markdown_table import markdown
from runs import Result, learn, parser, run
from scipy.stats import binomtest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean

from ppo_plus import PPO_Plus
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.models import make_model
from ppo_plus.zoo.tune.statistics import Estimate, iqm_interval

#: Environment, steps (None: those of the YAML file), seeds, goal.
TASKS = [
    ("CartPole-v1", None, 3, 475.0),
    ("Pendulum-v1", None, 3, -200.0),
    ("MountainCarContinuous-v0", None, 3, 90.0),
    ("Acrobot-v1", None, 3, -90.0),
    ("LunarLander-v3", None, 1, 200.0),
]
EXPLORATIONS = ("white", "gSDE per rollout", "gSDE per episode")
OBSERVATIONS = ("raw", "normalized")
MOUNTAIN_CAR_SEEDS, MOUNTAIN_CAR_STEPS, MOUNTAIN_CAR_GOAL = 10, 102_400, -130.0


class StepsToGoal(BaseCallback):
    """Remember the step at which the mean return of the last 20 training episodes first reached a goal."""

    def __init__(self, goal: float):
        super().__init__()
        self.goal = goal
        self.steps = float("inf")

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()][-20:]
        if returns and safe_mean(returns) >= self.goal:
            self.steps = min(self.steps, self.num_timesteps)


def learn_task(env_id: str, steps: int | None, seed: int) -> Result:
    """Train by the YAML file and evaluate."""
    experiment = load_experiment(env_id, seed=seed, device="cpu")
    env = make_envs(experiment)
    model = make_model(experiment, env)
    speed = learn(model, steps or experiment.n_timesteps)
    score, _ = model.evaluate(n_eval_episodes=20)
    env.close()
    return Result(env_id, "PPO_Plus", seed, model.num_timesteps, speed, score)


def learn_mountain_car(observations: str, exploration: str, seed: int) -> Result:
    """Train with SB3's defaults; the score is the number of steps to the goal."""
    env = learning_exploration.make_classic("MountainCar-v0", observations == "normalized", seed)
    noise = learning_exploration.EXPLORATIONS[exploration]
    model = PPO_Plus("MlpPolicy", env, n_steps=256, seed=seed, device="cpu", **noise)
    reached = StepsToGoal(MOUNTAIN_CAR_GOAL)
    speed = learn(model, MOUNTAIN_CAR_STEPS, reached)
    return Result(f"{observations}, {exploration}", "PPO_Plus", seed, model.num_timesteps, speed, reached.steps)


def task_rows(results: list[Result]) -> list[str]:
    rows = []
    for env_id, _, _, goal in TASKS:
        runs = [result for result in results if result.task == env_id]
        if runs:
            returns = ", ".join(f"{run.score:.1f}" for run in runs)
            reached = sum(run.score >= goal for run in runs)
            of = f"{reached} of {len(runs)}"
            rows.append([env_id, f"{runs[0].steps:,}", str(len(runs)), returns, f"≥ {goal:g}", of])
    return markdown(["task", "steps", "seeds", "returns", "goal", "reached"], rows)


def arrival(steps: list[float], budget: int) -> tuple[str, Estimate]:
    """After how many steps runs reached their goal: "≥ " if that is a lower bound, and the IQM with its 95 % interval.

    :param steps: of each run; runs that never arrived, infinity, count as the whole budget
    :param budget: environment steps that a run had
    """
    never = "≥ " if any(s > budget for s in steps) else ""
    return never, iqm_interval([min(s, budget) for s in steps])


def mountain_car_rows(results: list[Result]) -> list[str]:
    rows = []
    for case in (f"{observations}, {exploration}" for observations in OBSERVATIONS for exploration in EXPLORATIONS):
        steps = [result.score for result in results if result.task == case]
        if not steps:
            continue
        shares = []
        for budget in (61_440, MOUNTAIN_CAR_STEPS):
            reached = sum(s <= budget for s in steps)
            low, high = binomtest(reached, len(steps)).proportion_ci(method="wilson")
            shares.append(f"{reached} of {len(steps)} [{low:.0%}, {high:.0%}]")
        never, (point, low, high) = arrival(steps, MOUNTAIN_CAR_STEPS)
        rows.append([case, *shares, f"{never}{point:,.0f} [{low:,.0f}, {high:,.0f}]"])
    return markdown(
        ["observations, exploration", "reached by 61k", "by 102k", "steps to −130, IQM [95 %]"],
        rows,
    )


def main() -> None:
    arguments = parser(__doc__, [task[0] for task in TASKS] + ["MountainCar-v0"]).parse_args()
    jobs = [
        partial(learn_task, env_id, steps, seed)
        for env_id, steps, seeds, _ in TASKS
        if env_id in arguments.only
        for seed in range(seeds)
    ]
    if "MountainCar-v0" in arguments.only:
        jobs += [
            partial(learn_mountain_car, observations, exploration, seed)
            for observations in OBSERVATIONS
            for exploration in EXPLORATIONS
            for seed in range(MOUNTAIN_CAR_SEEDS)
        ]
    results = run(jobs, arguments)
    for rows in (task_rows(results), mountain_car_rows(results)):
        if len(rows) > 2:
            print("\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
