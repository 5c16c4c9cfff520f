"""The picture of what ``learning_curves.py`` has measured."""

from pathlib import Path
from typing import Any

import numpy as np

from report.drawing import BLUE, ORANGE, picture

#: Color and line of each contender, in their order.
LOOKS = ((ORANGE, "-"), (BLUE, "-"), (BLUE, ":"))


def draw(curves: dict[str, Any], path: Path) -> None:
    """Draw the mean return over CPU seconds, a line for each contender.

    :param curves: what ``learning_curves.py`` has measured
    :param path: the picture
    """
    with picture(path, width=4.5) as axes:
        # A file may have the first contenders alone.
        for (contender, runs), (color, line) in zip(curves["runs"].items(), LOOKS, strict=False):
            _draw_curve(axes, np.array(runs), contender, color, line)
        axes.set(title=f"{curves['env']}, SB3's hyperparameters, {len(runs)} seeds", xlabel="seconds of CPU time")
        axes.set(ylabel="return", xlim=(0, None), ylim=(0, 510))
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=3, columnspacing=1)


def _draw_curve(axes: Any, runs: np.ndarray, label: str, color: str, line: str) -> None:
    """The mean over seeds, all of which have the same timesteps, at the mean of their times; and their range."""
    seconds, returns = runs[:, :, 1].mean(axis=0), runs[:, :, 2]
    axes.plot(seconds, returns.mean(axis=0), line, color=color, label=label)
    axes.fill_between(seconds, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.2, linewidth=0)
