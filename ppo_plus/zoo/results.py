"""Results of runs: learning curves of training and evaluations; interquartile means and bootstrap intervals over seeds.

Interquartile means after Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice*
(arXiv:2108.13264). Their ``rliable`` gives the same means and intervals, but is slow and uses NumPy's global generator.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from ppo_plus.saving.files import replacing
from ppo_plus.zoo.runs import ALGO, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colors that people with any color vision can tell apart (Okabe and Ito 2008).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Matplotlib's style.
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "axes.titlesize": 11,
    "grid.alpha": 0.3,
    "legend.fontsize": 9,
    "savefig.dpi": 120,
}
#: Resamples of the bootstraps of curves and of other statistics, and the level of a curve's interval.
CURVE_RESAMPLES, N_RESAMPLES, LEVEL = 2_000, 10_000, 0.95
#: Maximum number of points of a curve: a picture has fewer pixels.
CURVE_POINTS = 2_000
#: Minimum number of runs for an interval. With fewer, a bootstrap says hardly more than the worst and the best.
MIN_RUNS = 5

#: Timesteps and returns.
Returns = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Curve:
    """Several runs (seeds), and their mean, up to the end of the shortest run."""

    timesteps: np.ndarray  # (N,)
    runs: np.ndarray  # returns of each run, (n_runs, N)
    longest: float  # last timestep of the longest run

    @property
    def mean(self) -> np.ndarray:
        """Mean over the runs, ``(N,)``."""
        return self.runs.mean(axis=0)

    @cached_property
    def interval(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper ends of the mean's 95 % percentile bootstrap interval over runs (Efron 1979): the spread of
        the means of as many runs, drawn with replacement. ``None`` for fewer than :data:`MIN_RUNS` runs."""
        if len(self.runs) < MIN_RUNS:
            return None
        drawn = np.random.default_rng(0).integers(len(self.runs), size=(CURVE_RESAMPLES, len(self.runs)))
        shares = np.array([np.bincount(row, minlength=len(self.runs)) for row in drawn]) / len(self.runs)
        low, high = np.quantile(shares @ self.runs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    def legend(self) -> str:
        """The number of runs, and what the picture shows of them."""
        shown = "thin lines: each run" if self.interval is None else "band: 95 % interval"
        return "1 run" if len(self.runs) == 1 else f"mean of {len(self.runs)} runs, {shown}"

    def __str__(self) -> str:
        """The last mean, with its interval, or the worst and the best run."""
        last = f"return {self.mean[-1]:.2f} after {self.timesteps[-1]:,.0f} timesteps"
        if len(self.runs) == 1:
            return f"{last}, 1 run"
        low, high = self.interval or (self.runs.min(axis=0), self.runs.max(axis=0))
        what = "from worst to best" if self.interval is None else "95 % interval"
        return f"{last}, mean of {len(self.runs)} runs, {what} [{low[-1]:.2f}, {high[-1]:.2f}]"


def read_curve(log_folder: Path, env_id: str, what: str = "eval", algo: str = ALGO) -> Curve:
    """The learning curve of an environment over all runs in a log folder, or ``ValueError`` if there are no returns.

    :param what: ``"eval"``: mean returns of evaluations; ``"train"``: of training episodes, smoothed
    """
    read = {"eval": read_evaluations, "train": read_training}[what]
    runs = {folder: read(folder) for folder in runs_of(log_folder / algo, env_id).values()}
    first = max((steps[0] for steps, _ in runs.values() if len(steps)), default=np.inf)
    long = {folder: run for folder, run in runs.items() if len(run[0]) and run[0][-1] >= first}
    if not long:
        raise ValueError(f"{log_folder / algo} has no run of {env_id} with {what} returns")
    for folder in sorted(runs.keys() - long.keys()):
        print(f"left out: {folder}: no {what} returns, or none as late as another run's first", file=sys.stderr)
    if len({path.read_bytes() for folder in long for path in folder.glob("*/config.yml")}) > 1:
        print(f"runs in {log_folder / algo} have different settings: plot each kind from its own -f", file=sys.stderr)
    return average(list(long.values()))


def average(runs: list[Returns]) -> Curve:
    """Several runs, interpolated linearly at timesteps that all of them reached: :data:`CURVE_POINTS` at most."""
    ends = [steps[-1] for steps, _ in runs]
    first, last = max(steps[0] for steps, _ in runs), min(ends)
    steps = np.unique(np.concatenate([steps for steps, _ in runs]))
    steps = steps[(first <= steps) & (steps <= last)]
    steps = steps[np.linspace(0, len(steps) - 1, min(len(steps), CURVE_POINTS)).astype(int)]
    return Curve(steps, np.array([np.interp(steps, *run) for run in runs]), max(ends))


def read_evaluations(folder: Path) -> Returns:
    """Timesteps and mean returns of a run's evaluations; empty if there are none, or if the file is damaged."""
    path = folder / "evaluations.npz"
    try:
        with np.load(path) as saved:
            return saved["timesteps"].astype(float), np.nanmean(saved["results"], axis=1)
    except (OSError, EOFError, ValueError, LookupError, BadZipFile) as error:
        if not isinstance(error, FileNotFoundError):
            print(f"left out: {path}, which is damaged", file=sys.stderr)
        return np.empty(0), np.empty(0)


def read_training(folder: Path) -> Returns:
    """Timesteps and smoothed returns of a run's training episodes."""
    timesteps, returns = read_episodes(folder)
    window = max(1, min(100, len(returns) // 10))
    smoothed = np.convolve(returns, np.full(window, 1 / window), mode="valid") if len(returns) else returns
    return timesteps[window - 1 :], smoothed


def read_episodes(folder: Path) -> Returns:
    """The number of timesteps trained at the end of each episode of a run, over all environments, and the returns.
    A last line that is half written, as a killed run leaves it, is left out."""
    rows = [np.empty((0, 3))]
    for path in folder.glob("*monitor.csv"):
        *lines, _ = path.read_text("utf-8", errors="replace").split("\n")
        try:
            start = json.loads(lines[0].lstrip("#"))["t_start"] if lines else 0.0
            table = [(float(row["t"]), float(row["l"]), float(row["r"])) for row in csv.DictReader(lines[1:])]
            own = np.array(table).reshape(-1, 3)
            # The clock of an environment that replaces another one begins again.
            own[:, 0] += start + np.cumsum(np.maximum(-np.diff(own[:, 0], prepend=own[:1, 0]), 0.0))
            rows.append(own)
        except (ValueError, LookupError, TypeError, csv.Error):
            print(f"left out: {path}, which is damaged", file=sys.stderr)
    episodes = np.concatenate(rows)
    episodes = episodes[np.argsort(episodes[:, 0], kind="stable")]
    return np.cumsum(episodes[:, 1]), episodes[:, 2]


def plot_curves(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    """Draw curves (environment id → label → curve), one panel per environment, as a ``.png``, ``.svg`` or ``.pdf``."""
    with picture(path, *curves) as panels:
        for axes, by_label in zip(panels, curves.values(), strict=True):
            for label, curve in by_label.items():
                (line,) = axes.plot(curve.timesteps, curve.mean, label=f"{label} ({curve.legend()})")
                if curve.interval is not None:
                    axes.fill_between(curve.timesteps, *curve.interval, color=line.get_color(), alpha=0.2, linewidth=0)
                elif len(curve.runs) > 1:
                    axes.plot(curve.timesteps, curve.runs.T, color=line.get_color(), alpha=0.4, linewidth=0.8)


def plot_learning_curve(folder: Path, title: str, path: Path | None = None) -> Path:
    """Draw a run's training episodes, their moving average and its evaluations, by default as ``learning_curve.png``
    in its folder; return the path."""
    path, evaluated = path or folder / "learning_curve.png", read_evaluations(folder)
    with picture(path, title, size=(8, 5)) as (axes,):
        axes.plot(*read_episodes(folder), ".", markersize=3, alpha=0.3, label="training episodes")
        axes.plot(*read_training(folder), label="moving average of training episodes")
        if len(evaluated[0]):
            axes.plot(*evaluated, "o-", color="black", markersize=4, label="mean of each evaluation")
    return path


@contextmanager
def picture(path: Path, *titles: str, size: tuple[float, float] = (6.5, 4.5)) -> "Iterator[list[Axes]]":
    """Panels side by side to draw in, of a size in inches; the end of the block labels them and writes the picture."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure  # not pyplot, which needs a display and keeps global state
    from matplotlib.ticker import EngFormatter

    # Names are text, not formulas, even with dollar signs.
    settings: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLORS), "text.parse_math": False}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(size[0] * len(titles), size[1]))
        panels = list(figure.subplots(1, len(titles), squeeze=False)[0])
        yield panels
        for axes, title in zip(panels, titles, strict=True):
            axes.set(title=title, xlabel="timesteps", ylabel="episode return")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k, 1M
            axes.legend()
        # Encoded in memory, because the encoder would not say that the disk is full.
        data = io.BytesIO()
        figure.savefig(data, format=path.suffix.removeprefix("."))
    with replacing(path) as file:
        file.write(data.getvalue())


class Estimate(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """Each of the three in a number's format, by default with one decimal, or with three where all are below 1."""
        spec = spec or (".1f" if max(abs(self.low), abs(self.high)) >= 1 else ".3f")
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def iqm(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean: the mean without the lowest and the highest quarter."""
    from scipy.stats import trim_mean  # part of the extra `zoo`

    return np.asarray(trim_mean(scores, 0.25, axis=axis))


def iqm_interval(scores: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The interquartile mean with its percentile bootstrap interval."""
    return interval((scores,), iqm, confidence)


def difference_interval(scores: Sequence[float], others: Sequence[float], confidence: float = 0.95) -> Estimate:
    """How much higher one interquartile mean is than another, with its percentile bootstrap interval."""
    return interval((scores, others), lambda x, y, axis=-1: iqm(x, axis) - iqm(y, axis), confidence)


def interval(samples: Sequence[Sequence[float]], statistic: Callable[..., np.ndarray], confidence: float) -> Estimate:
    """A statistic of one or more samples with its percentile bootstrap interval: each sample is resampled by itself.
    The statistic is vectorized, with an argument ``axis``."""
    from scipy.stats import bootstrap

    data = tuple(np.asarray(sample, dtype=float) for sample in samples)
    value = float(statistic(*data))
    if any(len(sample) < 2 for sample in data):
        return Estimate(value, -float("inf"), float("inf"))
    # A separate generator, so that the same scores always give the same interval.
    rng = np.random.default_rng(0)
    options = {"n_resamples": N_RESAMPLES, "confidence_level": confidence, "method": "percentile"}
    low, high = bootstrap(data, statistic, rng=rng, **options).confidence_interval
    return Estimate(value, float(low), float(high))
