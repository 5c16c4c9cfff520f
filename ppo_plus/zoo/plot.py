"""Learning curves: of one run from its ``monitor.csv`` files, and of many from their evaluations, with intervals."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ppo_plus.zoo.folders import ALGO, file_name

#: Resamples of the bootstrap, and how much of them an interval holds.
N_RESAMPLES, LEVEL = 2_000, 0.95


@dataclass(frozen=True)
class Curve:
    """The mean over runs (seeds), and how sure it is.

    :param timesteps: shape ``(N,)``
    :param mean: mean over the runs, ``(N,)``
    :param low: lower end of its 95 % bootstrap interval, ``(N,)``
    :param high: upper end, ``(N,)``
    :param n_runs: number of runs
    """

    timesteps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n_runs: int


def plot_curves(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    """Draw curves with their intervals, one panel per environment.

    :param curves: environment id → label → curve
    :param path: picture to write; its suffix (``.png``, ``.svg``, ``.pdf``) says how
    """
    # A figure of its own, without pyplot: it needs no display and leaves no global state.
    figure = Figure(figsize=(6.5 * len(curves), 4.5), layout="constrained")
    for axes, (env_id, by_label) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for label, curve in by_label.items():
            runs = f"{curve.n_runs} run{'s' * (curve.n_runs > 1)}"
            (line,) = axes.plot(curve.timesteps, curve.mean, label=f"{label} ({runs})")
            if curve.n_runs > 1:
                axes.fill_between(
                    curve.timesteps, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0
                )
        _decorate(axes, env_id)
    figure.savefig(path, dpi=120)


def read_curve(log_folder: Path, env_id: str, what: str = "eval") -> Curve:
    """The learning curve of an environment over all runs in a log folder.

    :param log_folder: folder of all runs
    :param env_id: Gymnasium environment id
    :param what: ``"eval"``: mean returns of evaluations; ``"train"``: of training episodes, smoothed
    :raises ValueError: there is nothing to draw
    """
    folders = sorted((log_folder / ALGO).glob(f"{file_name(env_id)}_[0-9]*"))
    read = {"eval": read_evaluations, "train": read_training}[what]
    runs = [run for run in map(read, folders) if len(run[0])]
    if not runs:
        raise ValueError(f"{log_folder / ALGO} has no run of {env_id} with {what} returns")
    return average(runs)


def average(runs: list[tuple[np.ndarray, np.ndarray]]) -> Curve:
    r"""The mean of several runs at the timesteps that all of them reached, with a percentile bootstrap over runs
    (Efron 1979): the spread of the means of as many runs, drawn with replacement.

    :param runs: of each run, timesteps and returns; straight lines between them
    """
    first, last = max(steps[0] for steps, _ in runs), min(steps[-1] for steps, _ in runs)
    steps = np.unique(np.concatenate([steps for steps, _ in runs]))
    steps = steps[(first <= steps) & (steps <= last)] if first <= last else steps[-1:]
    values = np.array([np.interp(steps, *run) for run in runs])
    drawn = np.random.default_rng(0).integers(len(runs), size=(N_RESAMPLES, len(runs)))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Curve(steps, values.mean(axis=0), low, high, len(runs))


def read_evaluations(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Timesteps and mean returns of a run's evaluations; empty if there are none."""
    path = folder / "evaluations.npz"
    if not path.is_file():
        return np.empty(0), np.empty(0)
    with np.load(path) as saved:
        return saved["timesteps"].astype(float), saved["results"].mean(axis=1)


def read_training(folder: Path) -> tuple[np.ndarray, np.ndarray]:
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
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(timesteps, returns, ".", markersize=3, alpha=0.3, label="training episode")
    if len(returns):
        axes.plot(*read_training(folder), label=f"mean of {_window(returns)} episodes")
    evaluated = read_evaluations(folder)
    if len(evaluated[0]):
        axes.plot(*evaluated, "o-", color="black", markersize=4, label="evaluation")
    _decorate(axes, title)
    path = folder / "learning_curve.png"
    figure.savefig(path, dpi=120)
    return path


def read_episodes(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The episodes of all environments of a run, in the order in which they ended.

    :param folder: folder with the ``monitor.csv`` files
    :return: timesteps trained when each episode had ended, and the return of each
    """
    episodes = np.array([row for path in folder.glob("*monitor.csv") for row in _read_monitor(path)]).reshape(-1, 3)
    episodes = episodes[np.argsort(episodes[:, 0], kind="stable")]
    return np.cumsum(episodes[:, 1]), episodes[:, 2]


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each run of ``window`` neighbours.

    :param values: shape ``(N,)``
    :param window: between 1 and ``N``
    :return: shape ``(N - window + 1,)``
    """
    return np.convolve(values, np.full(window, 1 / window), mode="valid") if len(values) else values


def _window(returns: np.ndarray) -> int:
    return max(1, min(100, len(returns) // 10))


def _decorate(axes: Any, title: str) -> None:
    axes.set(title=title, xlabel="timesteps", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend()


def _read_monitor(path: Path) -> list[tuple[float, float, float]]:
    """One environment's episodes as (time of their end, length, return). The first line is a JSON comment."""
    with path.open(newline="") as file:
        start = json.loads(file.readline().lstrip("#"))["t_start"]
        return [(start + float(row["t"]), float(row["l"]), float(row["r"])) for row in csv.DictReader(file)]
