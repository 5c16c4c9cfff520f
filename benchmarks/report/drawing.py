"""The look of the pictures of the documentation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from ppo_plus.zoo.results import COLORS, STYLE

BLUE, ORANGE, GREEN, PURPLE = COLORS[:4]
#: Smaller letters than elsewhere, for two pictures side by side; the salt makes ids the same each time.
LOOK: Any = {**STYLE, "font.size": 8, "axes.titlesize": 9, "legend.fontsize": 8, "svg.hashsalt": "ppo_plus"}


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
    with rc_context(LOOK):
        figure = Figure(figsize=(width * columns, height * rows))
        panels = figure.subplots(rows, columns, squeeze=False)
        yield panels[0, 0] if panels.size == 1 else panels
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
