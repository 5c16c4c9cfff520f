"""Where held, state-dependent noise helps on discrete actions, and where it hurts: steps to a goal, by exploration.

    python benchmarks/learning_exploration.py --only deep-sea --json benchmarks/results/exploration_deep_sea.json
    python benchmarks/learning_exploration.py --only classic --jobs 1
    python benchmarks/learning_exploration.py --only minatar                    # pip install minatar
    python benchmarks/pictures.py                                            # docs/pictures/deep_sea.svg

**deep-sea**: one way through a grid of N x N is worth 1, and every step of it costs; undirected noise takes it with a
probability of 2^-N. In *plain* grids the same action goes right everywhere, in *random* ones a coin has decided it for
each cell (Osband et al. 2020, arXiv:1908.03568). Observations are coordinates. Noise that is held and hardly changes
from cell to cell should go right all the way in the first, and cannot in the second. **classic**: MountainCar-v0, where
swings have to be held, and CartPole-v1, which has to be balanced. **minatar**: Freeway and Seaquest.

All learn with SB3's default hyperparameters in 8 environments (a rollout is 2,048 transitions). A run ends when the
mean return of all training episodes of three successive rollouts reaches the goal; for MinAtar the score is that of the
last 100 episodes.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from report.exploration import EXPLORATIONS, GRIDS, TASKS, table  # the modules beside this one
from report.scores import Result
from runs import done_before, learn, parser, run
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ppo_plus import ColoredNoise, PPO_Plus

#: The arguments of each way to explore.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "white": {},
    "gSDE per rollout": {"use_sde": True},
    "gSDE per episode": {"use_sde": True, "sde_sample_freq": "episode"},
    "gSDE every 4 steps": {"use_sde": True, "sde_sample_freq": 4},
    "colored, 1/f^0.5": {"exploration": ColoredNoise(0.5)},
    "colored, 1/f": {"exploration": ColoredNoise(1.0)},
}
N_ENVS, N_STEPS = 8, 256


class DeepSea(gym.Env[np.ndarray, np.int64]):
    """A diver, who goes down one row in each step, and left or right; the treasure is right at the bottom.

    Going right costs ``0.01 / size``, and going right from the last cell is worth 1.

    :param size: rows and columns
    :param seed: of the actions that go right in each cell; ``None``: action 1 everywhere
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, size: int, seed: int | None = None):
        shape = size, size
        self.right = np.ones(shape, int) if seed is None else np.random.default_rng(seed).integers(0, 2, shape)
        self.size = size

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        goes_right = bool(action == self.right[self.row, self.column])
        reward = float(goes_right and self.column == self.size - 1) - goes_right * 0.01 / self.size
        self.column = min(max(self.column + (1 if goes_right else -1), 0), self.size - 1)
        self.row += 1
        return self._observe(), reward, self.row == self.size, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.row, self.column], np.float32) * 2 / self.size - 1


def make_deep_sea(size: int, random: bool, seed: int) -> VecEnv:
    return make_vec_env(partial(DeepSea, size, seed if random else None), N_ENVS, seed=1000 * seed)


def make_classic(env_id: str, normalize: bool, seed: int) -> VecEnv:
    env: VecEnv = make_vec_env(env_id, N_ENVS, seed=1000 * seed)
    return VecNormalize(env) if normalize else env


class MinAtar(gym.Env[np.ndarray, np.int64]):
    """One of MinAtar's games (Young and Tian 2019), with its smallest set of actions."""

    def __init__(self, game: str):
        self.game = import_module("minatar").Environment(game)
        self.actions = self.game.minimal_action_set()
        self.action_space = spaces.Discrete(len(self.actions))
        self.observation_space = spaces.MultiBinary(self.game.state_shape())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.game.seed(seed)
        self.game.reset()
        return self.game.state().astype(np.int8), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, is_over = self.game.act(self.actions[action])
        return self.game.state().astype(np.int8), float(reward), bool(is_over), False, {}


def make_minatar(game: str, seed: int) -> VecEnv:
    return make_vec_env(partial(MinAtar, game), N_ENVS, seed=1000 * seed)


#: What makes the environments of a seed, by task.
MAKERS: dict[str, Callable[[int], VecEnv]] = {
    **{
        f"DeepSea {size}, {kind}": partial(make_deep_sea, size, kind == "random")
        for kind in ("plain", "random")
        for size in GRIDS
    },
    "MountainCar-v0": partial(make_classic, "MountainCar-v0", True),
    "MountainCar-v0, not normalized": partial(make_classic, "MountainCar-v0", False),
    "CartPole-v1": partial(make_classic, "CartPole-v1", False),
    **{game: partial(make_minatar, game) for game in ("freeway", "seaquest")},
}


class EndsAtGoal(BaseCallback):
    """Training ends, and ``steps`` are counted, when the mean return of all episodes of some successive rollouts has
    reached a goal. All of several: noise held for a rollout makes its episodes alike, and a mean of few that differ is
    above a goal by chance more often.

    :param goal: that return; infinite: training continues to its end
    """

    N_ROLLOUTS = 3

    def __init__(self, goal: float):
        super().__init__()
        self.goal = goal
        self.steps = float("inf")
        self.returns: deque[list[float]] = deque(maxlen=self.N_ROLLOUTS)

    def _on_rollout_start(self) -> None:
        self.returns.append([])

    def _on_step(self) -> bool:
        self.returns[-1] += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return self.steps == float("inf")

    def _on_rollout_end(self) -> None:
        returns = [each for rollout in self.returns for each in rollout]
        if len(self.returns) == self.N_ROLLOUTS and returns and np.mean(returns) >= self.goal:
            self.steps = self.num_timesteps


def learn_task(kind: str, name: str, exploration: str, seed: int) -> Result:
    task = TASKS[kind][name]
    env = MAKERS[name](seed)
    model = PPO_Plus("MlpPolicy", env, n_steps=N_STEPS, seed=seed, device="cpu", **ARGUMENTS[exploration])
    until = EndsAtGoal(float("inf") if task.goal is None else task.goal)
    speed = learn(model, task.steps, until)
    found = until.steps if task.goal is not None else safe_mean([each["r"] for each in model.ep_info_buffer or ()])
    env.close()
    return Result(name, exploration, seed, model.num_timesteps, speed, float(found))


def main() -> None:
    arguments = parser(__doc__, TASKS).parse_args()
    before = done_before(arguments.json) if arguments.json else []
    known = {(result.task, result.contender, result.seed) for result in before}
    # The low seeds of all first: whenever it is stopped, all have about as many.
    jobs = [
        partial(learn_task, kind, name, exploration, seed)
        for seed in range(max(task.seeds for kind in arguments.only for task in TASKS[kind].values()))
        for kind in arguments.only
        for name, task in TASKS[kind].items()
        for exploration in EXPLORATIONS
        if seed < task.seeds and (name, exploration, seed) not in known
    ]
    results = run(jobs, arguments, before)
    for kind in arguments.only:
        print("\n" + "\n".join(table(kind, results)))


if __name__ == "__main__":
    main()
