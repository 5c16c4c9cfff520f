"""How the pictures of the documentation look."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

#: Okabe and Ito's colors, which stay apart for the color-blind.
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"


@contextmanager
def picture(path: Path, rows: int = 1, columns: int = 1, width: float = 3.7, height: float = 2.8) -> Iterator[Any]:
    """A file with one or more panels, the same bytes for the same measurements.

    :param path: SVG file
    :param rows: of panels
    :param columns: of panels
    :param width: of a panel, in inches
    :param height: of a panel, in inches
    :return: axes: one, or an array of them
    """
    with rc_context({"svg.hashsalt": "ppo_plus", "font.size": 8, "axes.titlesize": 9}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        yield panels[0, 0] if panels.size == 1 else panels
        for axes in panels.flat:
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
