"""Where held, state-dependent noise helps on discrete actions, and where it hurts: steps to a goal, by exploration.

    python benchmarks/learning_exploration.py --only deep-sea --json benchmarks/results/exploration_deep_sea.json
    python benchmarks/learning_exploration.py --only classic --jobs 1
    python benchmarks/learning_exploration.py --only multi-room minatar         # pip install minigrid minatar
    python benchmarks/learning_exploration.py --draw docs/pictures --json benchmarks/results/exploration_deep_sea.json

**deep-sea**: one way through a grid of N x N is worth 1, and every step of it costs; undirected noise takes it with a
probability of 2^-N. In *plain* grids the same action goes right everywhere, in *random* ones a coin has decided it for
each cell (Osband et al. 2020, arXiv:1908.03568). Observations are coordinates. Noise that is held and hardly changes
from cell to cell should go right all the way in the first, and cannot in the second. **classic**: MountainCar-v0, where
swings have to be held, and CartPole-v1, which has to be balanced. **multi-room**: MiniGrid's MultiRoom-N4-S5, a reward
behind three doors. **minatar**: Freeway and Seaquest.

All learn with SB3's default hyperparameters in 8 environments (a rollout is 2,048 transitions). A run ends when the
mean return of all training episodes of three successive rollouts reaches the goal; for MinAtar the score is that of the
last 100 episodes.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from drawing import picture  # the scripts beside this one
from gymnasium import spaces
from markdown_table import markdown
from runs import N_INTERVAL, Result, done_before, learn, parser, read, run, score
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ppo_plus import ColoredNoise, PPO_Plus
from ppo_plus.zoo.plot import COLORS
from ppo_plus.zoo.tune.statistics import iqm_interval

EXPLORATIONS: dict[str, dict[str, Any]] = {
    "white": {},
    "gSDE per rollout": {"use_sde": True},
    "gSDE per episode": {"use_sde": True, "sde_sample_freq": "episode"},
    "gSDE every 4 steps": {"use_sde": True, "sde_sample_freq": 4},
    "colored, 1/f^0.5": {"exploration": ColoredNoise(0.5)},
    "colored, 1/f": {"exploration": ColoredNoise(1.0)},
}
N_ENVS, N_STEPS, N_SEEDS = 8, 256, 10


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


def make_multi_room(seed: int) -> VecEnv:
    def make() -> gym.Env[Any, Any]:
        grid = import_module("minigrid.wrappers").ImgObsWrapper(gym.make("MiniGrid-MultiRoom-N4-S5-v1"))
        flat: gym.Env[Any, Any] = gym.wrappers.FlattenObservation(grid)
        # Codes of what is seen, not a picture.
        box = spaces.Box(0.0, 255.0, flat.observation_space.shape, np.float32)
        return gym.wrappers.TransformObservation(flat, np.float32, box)

    return VecNormalize(make_vec_env(make, N_ENVS, seed=1000 * seed), norm_reward=False)


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


@dataclass(frozen=True)
class Task:
    """What is learned.

    :param make: makes the environments of a seed
    :param steps: environment steps at most
    :param goal: of :class:`EndsAtGoal`; ``None``: none, and the score is the return at the end
    :param seeds: how many
    """

    make: Callable[[int], VecEnv]
    steps: int
    goal: float | None
    seeds: int = N_SEEDS


#: Environment steps by the size of a grid: 5,000 episodes, and of small ones more, in which white noise learns a random
#: way.
GRIDS = {5: 200_000, 8: 200_000} | {size: 5_000 * size for size in (10, 15, 20, 30, 40)}
TASKS: dict[str, dict[str, Task]] = {
    "deep-sea": {
        f"DeepSea {size}, {kind}": Task(partial(make_deep_sea, size, kind == "random"), steps, 0.5)
        for kind in ("plain", "random")
        for size, steps in GRIDS.items()
    },
    "classic": {
        "MountainCar-v0": Task(partial(make_classic, "MountainCar-v0", True), 204_800, -130.0),
        "MountainCar-v0, not normalized": Task(partial(make_classic, "MountainCar-v0", False), 204_800, -130.0),
        "CartPole-v1": Task(partial(make_classic, "CartPole-v1", False), 204_800, 475.0),
    },
    "multi-room": {"MultiRoom-N4-S5": Task(make_multi_room, 1_000_000, 0.5, seeds=3)},
    "minatar": {game: Task(partial(make_minatar, game), 5_000_000, None, seeds=3) for game in ("freeway", "seaquest")},
}


class EndsAtGoal(BaseCallback):
    """Training ends, and ``steps`` are counted, when the mean return of all episodes of some successive rollouts has
    reached a goal. All of several: noise held for a rollout makes its episodes alike, and a mean of few that differ is
    above a goal by chance more often.

    :param goal: that return; infinite: training goes on to its end
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
    env = task.make(seed)
    model = PPO_Plus("MlpPolicy", env, n_steps=N_STEPS, seed=seed, device="cpu", **EXPLORATIONS[exploration])
    until = EndsAtGoal(float("inf") if task.goal is None else task.goal)
    speed = learn(model, task.steps, until)
    found = until.steps if task.goal is not None else safe_mean([each["r"] for each in model.ep_info_buffer or ()])
    env.close()
    return Result(name, exploration, seed, model.num_timesteps, speed, float(found))


def table(kind: str, results: list[Result]) -> list[str]:
    """A line for each task, a column for each exploration: in how many runs, and after how many steps, the goal was
    reached; of a task without one, the return at the end.

    :param kind: of :data:`TASKS`
    """
    lines = []
    for name, task in TASKS[kind].items():
        cells = [name]
        for exploration in EXPLORATIONS:
            scores = [result.score for result in results if (result.task, result.contender) == (name, exploration)]
            cells.append("" if not scores else score(scores) if task.goal is None else reached(scores, task.steps))
        lines.append(cells)
    return markdown(["", *EXPLORATIONS], lines)


def reached(scores: list[float], steps: int) -> str:
    """In how many runs, and after how many thousand steps, the interquartile mean and its 95 % interval; "≥" where runs
    that never arrived make a lower bound of it. Of few runs, the steps of each.

    :param scores: steps to the goal of each run; of one that never arrived, infinity, which counts as the whole budget
    :param steps: the budget
    """
    if len(scores) < N_INTERVAL:
        return ", ".join("never" if math.isinf(each) else f"{each / 1e3:,.0f}k" for each in scores)
    n_arrived = sum(map(math.isfinite, scores))
    if n_arrived == 0:
        return f"0 of {len(scores)}"
    # What is larger where a run that never arrived counts as more is a lower bound.
    found, larger = (
        iqm_interval([never if math.isinf(each) else min(each, steps) for each in scores])
        for never in (steps, 2 * steps)
    )
    point, low, high = ("≥ " * (a < b) + f"{a / 1e3:,.0f}" for a, b in zip(found, larger, strict=True))
    return f"{n_arrived} of {len(scores)}; {point}k [{low}, {high}]"


def arrived(results: list[Result], kind: str) -> dict[int, float]:
    """Which part of the runs reached the goal, by the size of the grid.

    :param results: of ``deep-sea``
    :param kind: plain or random
    """
    of = {depth: [each.score for each in results if each.task == f"DeepSea {depth}, {kind}"] for depth in GRIDS}
    return {depth: float(np.isfinite(scores).mean()) for depth, scores in of.items() if scores}


def draw(results: list[Result], folder: Path) -> None:
    """Draw ``deep_sea.svg``: what :func:`arrived` says, plain grids beside random ones.

    :param results: of ``deep-sea``
    :param folder: where the picture goes
    """
    with picture(folder / "deep_sea.svg", 1, 2) as panels:
        for kind, axes in zip(("plain", "random"), panels.flat, strict=True):
            # Each is thinner than the one below, so that none is hidden.
            for exploration, color, width in zip(
                EXPLORATIONS, COLORS, np.linspace(5, 1, len(EXPLORATIONS)), strict=False
            ):
                shares = arrived([each for each in results if each.contender == exploration], kind)
                axes.plot([*shares], [*shares.values()], color=color, linewidth=width, label=exploration)
            axes.set(title=f"DeepSea, {kind}", xlabel="rows of the grid", xticks=[*GRIDS], ylim=(-0.03, 1.03))
        panels[0, 0].set_ylabel("part of the runs that arrived")
        panels[0, 1].legend(frameon=False, fontsize=7)


def main() -> None:
    options = parser(__doc__, TASKS)
    options.add_argument(
        "--draw", type=Path, metavar="FOLDER", help="learn nothing; draw deep-sea of the file of --json"
    )
    arguments = options.parse_args()
    if arguments.draw:
        if not arguments.json:
            options.error("--draw needs --json")
        found = read(arguments.json) if arguments.json.exists() else []
        if not any(each.task in TASKS["deep-sea"] for each in found):
            options.error(f"--json {arguments.json} has no runs of deep-sea, which is what --draw shows")
        draw(found, arguments.draw)
        return
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
