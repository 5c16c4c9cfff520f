"""The look of all pictures. Matplotlib is loaded when the first is drawn."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colors that people with any color vision can tell apart (Okabe and Ito 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Matplotlib's settings.
SETTINGS = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "grid.alpha": 0.3,
    "legend.fontsize": 9,
    "legend.framealpha": 0.8,
    "savefig.dpi": 120,
}


def style() -> AbstractContextManager[None]:
    """Within it, everything that is made, labelled and saved has this look."""
    import matplotlib as mpl
    from cycler import cycler

    settings: Any = {**SETTINGS, "axes.prop_cycle": cycler(color=COLORS)}
    return mpl.rc_context(settings)


def new_figure(n_panels: int = 1, width: float = 6.5, height: float = 4.5) -> "tuple[Figure, list[Axes]]":
    """A figure with panels side by side.

    :param n_panels: how many
    :param width: width of each, in inches
    :param height: height of each
    """
    # A figure of its own, without pyplot: it needs no display and leaves no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * n_panels, height))
    return figure, list(figure.subplots(1, n_panels, squeeze=False)[0])


def finish_panel(axes: "Axes", title: str, x: str = "timesteps", y: str = "return") -> None:
    """Title, names of the axes, large numbers as 20k and 1M, and a legend if anything has a label.

    :param axes: the panel
    :param title: its title
    :param x: what is on the horizontal axis
    :param y: what is on the vertical axis
    """
    from matplotlib.ticker import EngFormatter

    axes.set(title=title, xlabel=x, ylabel=y)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
