"""The picture of what ``learning_curves.py`` has measured."""

from pathlib import Path
from typing import Any

import numpy as np

from report.drawing import BLUE, ORANGE, picture


def draw(curves: dict[str, Any], path: Path) -> None:
    """Draw the mean return over CPU seconds, a line for each contender.

    :param curves: what ``learning_curves.py`` has measured
    :param path: the picture
    """
    with picture(path) as axes:
        for (contender, runs), color in zip(curves["runs"].items(), (ORANGE, BLUE), strict=True):
            _draw_curve(axes, np.array(runs), contender, color)
        axes.set(title=f"{curves['env']}, SB3's hyperparameters, {len(runs)} seeds", xlabel="seconds of CPU time")
        axes.set(ylabel="return", xlim=(0, None), ylim=(0, 510))
        axes.legend(frameon=False, loc="lower right")


def _draw_curve(axes: Any, runs: np.ndarray, label: str, color: str) -> None:
    """The mean over seeds, all of which have the same timesteps, at the mean of their times; and their range."""
    seconds, returns = runs[:, :, 1].mean(axis=0), runs[:, :, 2]
    axes.plot(seconds, returns.mean(axis=0), color=color, label=label)
    axes.fill_between(seconds, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.2, linewidth=0)
