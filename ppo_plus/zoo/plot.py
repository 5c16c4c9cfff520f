"""Learning curves: of one run from its ``monitor.csv`` files, and of many from their evaluations, with intervals."""

import csv
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppo_plus.zoo.hyperparams import RunLoader, read_mapping
from ppo_plus.zoo.runs import ALGO, file_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Resamples of the bootstrap, and how much of them an interval holds.
N_RESAMPLES, LEVEL = 2_000, 0.95
#: The fewest runs that have an interval. Of fewer, a bootstrap is hardly more than from the worst to the best.
MIN_RUNS = 5

#: Timesteps and returns.
Returns = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Curve:
    """Several runs (seeds), and their mean.

    :param timesteps: shape ``(N,)``
    :param runs: returns of each run, ``(n_runs, N)``
    """

    timesteps: np.ndarray
    runs: np.ndarray

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.runs)

    @property
    def mean(self) -> np.ndarray:
        """Mean over the runs, ``(N,)``."""
        return self.runs.mean(axis=0)

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper ends of the mean's 95 % percentile bootstrap interval over runs (Efron 1979): the spread of
        the means of as many runs, drawn with replacement. ``None`` for fewer than :data:`MIN_RUNS` runs."""
        if self.n_runs < MIN_RUNS:
            return None
        drawn = np.random.default_rng(0).integers(self.n_runs, size=(N_RESAMPLES, self.n_runs))
        low, high = np.quantile(self.runs[drawn].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    def legend(self) -> str:
        """How many runs there are, and what is drawn of them."""
        if self.n_runs == 1:
            return "1 run"
        return f"mean of {self.n_runs} runs, {'thin lines: each' if self.interval is None else 'band: 95 % interval'}"

    def __str__(self) -> str:
        """The last mean, with its interval, or from the worst run to the best."""
        last = f"{self.mean[-1]:.2f} after {self.timesteps[-1]:.0f} timesteps"
        if self.n_runs == 1:
            return f"{last}, 1 run"
        low, high = (self.runs.min(axis=0), self.runs.max(axis=0)) if self.interval is None else self.interval
        what = "from worst to best" if self.interval is None else "95 % interval"
        return f"{last}, mean of {self.n_runs} runs, {what} [{low[-1]:.2f}, {high[-1]:.2f}]"


def plot_curves(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    """Draw curves, one panel per environment: means with their intervals, or with the runs where these are few.

    :param curves: environment id → label → curve
    :param path: picture to write; its suffix (``.png``, ``.svg``, ``.pdf``) says how
    """
    with style():
        figure, panels = new_figure(len(curves))
        for axes, (env_id, by_label) in zip(panels, curves.items(), strict=True):
            for label, curve in by_label.items():
                _draw(axes, curve, label)
            finish_panel(axes, env_id)
        figure.savefig(path)


def _draw(axes: "Axes", curve: Curve, label: str) -> None:
    (line,) = axes.plot(curve.timesteps, curve.mean, label=f"{label} ({curve.legend()})")
    color = line.get_color()
    if curve.interval is not None:
        axes.fill_between(curve.timesteps, *curve.interval, color=color, alpha=0.2, linewidth=0)
    elif curve.n_runs > 1:
        axes.plot(curve.timesteps, curve.runs.T, color=color, alpha=0.4, linewidth=0.8)


def read_curve(log_folder: Path, env_id: str, what: str = "eval", algo: str = ALGO) -> Curve:
    """The learning curve of an environment over all runs in a log folder. A run that another one continues is part of
    that one.

    :param log_folder: folder of all runs
    :param env_id: Gymnasium environment id
    :param what: ``"eval"``: mean returns of evaluations; ``"train"``: of training episodes, smoothed
    :param algo: name of the algorithm's folder
    :raises ValueError: there is nothing to draw
    """
    folders = sorted((log_folder / algo).glob(f"{file_name(env_id)}_[0-9]*"))
    read = {"eval": read_evaluations, "train": read_training}[what]
    continued = {read_origin(folder)[0] for folder in folders}
    runs = [read_lineage(folder, read) for folder in folders if folder.resolve() not in continued]
    runs = [run for run in runs if len(run[0])]
    if not runs:
        raise ValueError(f"{log_folder / algo} has no run of {env_id} with {what} returns")
    return average(runs)


def average(runs: list[Returns]) -> Curve:
    """Several runs at the timesteps that all of them reached.

    :param runs: of each run, timesteps and returns; straight lines between them
    """
    first, last = max(steps[0] for steps, _ in runs), min(steps[-1] for steps, _ in runs)
    steps = np.unique(np.concatenate([steps for steps, _ in runs]))
    steps = steps[(first <= steps) & (steps <= last)] if first <= last else steps[-1:]
    return Curve(steps, np.array([np.interp(steps, *run) for run in runs]))


def read_lineage(folder: Path, read: Callable[[Path], Returns]) -> Returns:
    """The returns of a run, after those of the run that it continues.

    :param folder: folder of the run
    :param read: reads a run by itself
    """
    timesteps, returns = read(folder)
    origin, start = read_origin(folder)
    if origin is None:
        return timesteps, returns
    before, before_returns = read_lineage(origin, read)
    kept = before <= start
    return np.concatenate([before[kept], timesteps]), np.concatenate([before_returns[kept], returns])


def read_origin(folder: Path) -> tuple[Path | None, int]:
    """Where a run continues another one: that one's folder, if it is there, and the timesteps trained before."""
    continues = _continues(folder)
    if not continues:
        return None, 0
    origin = (folder / continues["run"]).resolve() if continues["run"] else None
    return (origin if origin is not None and origin.is_dir() else None), continues["timesteps"]


def uncounted(folder: Path) -> int:
    """Of the timesteps trained before a run, those that its model does not count."""
    continues = _continues(folder)
    return continues["timesteps"] - continues.get("counted", 0) if continues else 0


def _continues(folder: Path) -> dict[str, Any] | None:
    """What a run says of the one that it continues."""
    saved = next(folder.glob("*/args.yml"), None)
    return None if saved is None else read_mapping(saved, RunLoader).get("continues")


def read_evaluations(folder: Path) -> Returns:
    """Timesteps and mean returns of a run's evaluations; empty if there are none."""
    path = folder / "evaluations.npz"
    if not path.is_file():
        return np.empty(0), np.empty(0)
    with np.load(path) as saved:
        return saved["timesteps"].astype(float) + uncounted(folder), saved["results"].mean(axis=1)


def read_training(folder: Path) -> Returns:
    """Timesteps and smoothed returns of a run's training episodes."""
    timesteps, returns = read_episodes(folder)
    window = _window(returns)
    return timesteps[window - 1 :], moving_average(returns, window)


def plot_learning_curve(folder: Path, title: str) -> Path:
    """Draw the returns of a run's training episodes over time, their moving average, and its evaluations.

    :param folder: folder of the run
    :param title: title of the picture
    :return: path of the picture, ``learning_curve.png`` in the folder
    """
    timesteps, returns = read_episodes(folder)
    evaluated = read_evaluations(folder)
    path = folder / "learning_curve.png"
    with style():
        figure, (axes,) = new_figure(width=8, height=5)
        axes.plot(timesteps, returns, ".", markersize=3, alpha=0.3, label="training episodes")
        if len(returns):
            axes.plot(*read_training(folder), label="moving average")
        if len(evaluated[0]):
            axes.plot(*evaluated, "o-", color="black", markersize=4, label="evaluations")
        finish_panel(axes, title)
        figure.savefig(path)
    return path


def read_episodes(folder: Path) -> Returns:
    """The episodes of all environments of a run, in the order in which they ended.

    :param folder: folder with the ``monitor.csv`` files
    :return: timesteps trained when each episode had ended, and the return of each
    """
    episodes = np.array([row for path in folder.glob("*monitor.csv") for row in _read_monitor(path)]).reshape(-1, 3)
    episodes = episodes[np.argsort(episodes[:, 0], kind="stable")]
    return np.cumsum(episodes[:, 1]) + read_origin(folder)[1], episodes[:, 2]


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each run of ``window`` neighbours.

    :param values: shape ``(N,)``
    :param window: between 1 and ``N``
    :return: shape ``(N - window + 1,)``
    """
    return np.convolve(values, np.full(window, 1 / window), mode="valid") if len(values) else values


def _window(returns: np.ndarray) -> int:
    return max(1, min(100, len(returns) // 10))


def _read_monitor(path: Path) -> list[tuple[float, float, float]]:
    """One environment's episodes as (time of their end, length, return). The first line is a JSON comment."""
    with path.open(newline="") as file:
        start = json.loads(file.readline().lstrip("#"))["t_start"]
        return [(start + float(row["t"]), float(row["l"]), float(row["r"])) for row in csv.DictReader(file)]


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
