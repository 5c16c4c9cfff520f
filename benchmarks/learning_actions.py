"""What mixed action spaces and action masks bring, over several seeds, as tables with intervals.

    python benchmarks/learning_actions.py --json benchmarks/results/learning_actions.json
    python benchmarks/learning_actions.py --only mixed --seeds 3

**Mixed**: :class:`Courier` has a choice with continuous parameters. Its Dict action space is compared with the usual
workaround, one Box whose largest component is the choice. **Masked**: sb3-contrib's environments of invalid
actions, with and without their masks, beside MaskablePPO with the same hyperparameters and seeds. The score is the mean
return of deterministic episodes at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import pi
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from report.scores import Result, rows
from runs import learn, parser, run
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from ppo_plus import PPO_Plus


class Courier(gym.Env[np.ndarray, dict[str, Any]]):
    """Drive some way in one of eight directions, or deliver the parcel: a choice with a continuous parameter.

    A courier in the plane sees where an address is. Driving earns by how much the distance shrinks, and each step costs
    0.05. Delivering within 0.1 of the address is worth 1 and ends the episode; elsewhere nobody is at home. Three
    well-chosen steps are enough; after 20 the time is up.
    """

    N_DIRECTIONS = 8
    DELIVER = N_DIRECTIONS
    observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
    #: From -1, nowhere, to 1, a distance of 1.
    action_space = spaces.Dict([("kind", spaces.Discrete(N_DIRECTIONS + 1)), ("way", spaces.Box(-1.0, 1.0, (1,)))])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        #: The address as seen from the courier, a complex number.
        self.address = self.np_random.uniform(0.3, 1.0) * np.exp(2j * pi * self.np_random.random())
        self.n_steps = 0
        return self._observe(), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        before = abs(self.address)
        is_delivered = bool(action["kind"] == self.DELIVER and before < 0.1)
        if action["kind"] != self.DELIVER:
            self.address -= (action["way"].item() + 1) / 2 * np.exp(2j * pi * action["kind"] / self.N_DIRECTIONS)
        self.n_steps += 1
        reward = before - abs(self.address) + is_delivered - 0.05
        return self._observe(), float(reward), is_delivered, self.n_steps == 20, {}

    def _observe(self) -> np.ndarray:
        return np.clip([self.address.real, self.address.imag], -4.0, 4.0).astype(np.float32)


class AsBox(gym.ActionWrapper[np.ndarray, np.ndarray, dict[str, Any]]):
    """:class:`Courier` for algorithms without Dict actions: the largest of the first numbers is the choice."""

    def __init__(self, env: gym.Env[np.ndarray, dict[str, Any]]):
        super().__init__(env)
        # Wide enough that clipping makes no ties.
        bounds = np.array([10.0] * (Courier.N_DIRECTIONS + 1) + [1.0], dtype=np.float32)
        self.action_space = spaces.Box(-bounds, bounds)

    def action(self, action: np.ndarray) -> dict[str, Any]:
        return {"kind": int(action[:-1].argmax()), "way": action[-1:]}


class Unmasked(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that hides its masks."""

    def get_wrapper_attr(self, name: str) -> Any:
        if name == "action_masks":
            raise AttributeError(name)
        return super().get_wrapper_attr(name)


#: Algorithm and wrapper.
Contender = tuple[type[Any], Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None]
MIXED: dict[str, Contender] = {
    "PPO_Plus, Dict": (PPO_Plus, None),
    "PPO_Plus, as a Box": (PPO_Plus, AsBox),
    "SB3's PPO, as a Box": (PPO, AsBox),
}
MASKED: dict[str, Contender] = {
    "PPO_Plus, masked": (PPO_Plus, None),
    "MaskablePPO": (MaskablePPO, None),
    "PPO_Plus, unmasked": (PPO_Plus, Unmasked),
}


@dataclass(frozen=True)
class Task:
    """An environment, environment steps, contenders and their hyperparameters (SB3's defaults where not named)."""

    make: Callable[[], gym.Env[Any, Any]]
    steps: int
    contenders: dict[str, Contender]
    arguments: dict[str, Any]


TASKS = {
    "mixed": {
        "Courier": Task(Courier, 60_000, MIXED, dict(n_steps=128)),
    },
    "masked": {
        "80 actions, 60 of them invalid": Task(
            partial(InvalidActionEnvDiscrete, dim=80, n_invalid_actions=60),
            12_000,
            MASKED,
            dict(n_steps=128, gamma=0.4),
        ),
        "MultiDiscrete([20, 20]), 30 of 40 invalid": Task(
            partial(InvalidActionEnvMultiDiscrete, dims=[20, 20], n_invalid_actions=30),
            12_000,
            MASKED,
            dict(n_steps=128, gamma=0.4),
        ),
    },
}
N_ENVS, N_EPISODES, N_SEEDS = 8, 100, 5


def learn_task(kind: str, name: str, contender: str, seed: int) -> Result:
    task = TASKS[kind][name]
    algorithm, wrapper = task.contenders[contender]
    np.random.seed(seed)
    env, eval_env = (
        make_vec_env(task.make, N_ENVS, seed=s, wrapper_class=wrapper) for s in (1000 * seed, 1000 * seed + 500)
    )
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **task.arguments)
    speed = learn(model, task.steps)
    evaluate: Any = evaluate_masked if kind == "masked" and wrapper is None else evaluate_policy
    score, _ = evaluate(model, eval_env, n_eval_episodes=N_EPISODES)
    return Result(name, contender, seed, model.num_timesteps, speed, float(score))


def main() -> None:
    arguments = parser(__doc__, TASKS, N_SEEDS).parse_args()
    jobs = [
        partial(learn_task, kind, name, contender, seed)
        for kind in arguments.only
        for name, task in TASKS[kind].items()
        for contender in task.contenders
        for seed in range(arguments.seeds)
    ]
    print("\n" + "\n".join(rows(run(jobs, arguments))))


if __name__ == "__main__":
    main()
