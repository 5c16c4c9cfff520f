"""Tables and the picture of what ``learning_exploration.py`` has found."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppo_plus.zoo.results import COLORS, iqm_interval
from report.drawing import picture
from report.markdown import markdown
from report.scores import N_INTERVAL, Result, score

#: Environment steps by the size of a grid: 5,000 episodes, and more for small grids, where white noise learns a random
#: way.
GRIDS = {5: 200_000, 8: 200_000} | {size: 5_000 * size for size in (10, 15, 20, 30, 40)}
#: What is compared; :mod:`learning_exploration` says what each name stands for.
EXPLORATIONS = (
    "white",
    "gSDE per rollout",
    "gSDE per episode",
    "gSDE every 4 steps",
    "colored, 1/f^0.5",
    "colored, 1/f",
)


class Budget(NamedTuple):
    """How long a task is learned.

    :param steps: environment steps at most
    :param goal: the mean return at which a run ends; ``None``: none, and the score is the return at the end
    :param seeds: how many
    """

    steps: int
    goal: float | None
    seeds: int = 10


TASKS: dict[str, dict[str, Budget]] = {
    "deep-sea": {
        f"DeepSea {size}, {kind}": Budget(steps, 0.5) for kind in ("plain", "random") for size, steps in GRIDS.items()
    },
    "classic": {
        "MountainCar-v0": Budget(204_800, -130.0),
        "MountainCar-v0, not normalized": Budget(204_800, -130.0),
        "CartPole-v1": Budget(204_800, 475.0),
    },
    "minatar": {game: Budget(5_000_000, None, seeds=3) for game in ("freeway", "seaquest")},
}


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


def draw(results: list[Result], path: Path) -> None:
    """Draw what :func:`arrived` says, plain grids beside random ones.

    :param results: of ``deep-sea``
    :param path: the picture
    """
    with picture(path, 1, 2) as panels:
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
