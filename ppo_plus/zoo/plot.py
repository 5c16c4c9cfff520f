"""Learning curves from the ``monitor.csv`` files that a training run leaves."""

import csv
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure


def plot_learning_curve(folder: Path, title: str) -> Path:
    """Draw the returns of a run's training episodes over time, and their moving average.

    :param folder: folder of the run, with the ``monitor.csv`` file of each environment
    :param title: title of the picture
    :return: path of the picture, ``learning_curve.png`` in the folder
    """
    timesteps, returns = read_episodes(folder)
    window = max(1, min(100, len(returns) // 10))
    # A figure of its own, without pyplot: it needs no display and leaves no global state.
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(timesteps, returns, ".", markersize=3, alpha=0.3, label="episode")
    if len(returns):
        axes.plot(timesteps[window - 1 :], moving_average(returns, window), label=f"mean of {window} episodes")
    axes.set(title=title, xlabel="timesteps", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend()
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
    return np.convolve(values, np.full(window, 1 / window), mode="valid")


def _read_monitor(path: Path) -> list[tuple[float, float, float]]:
    """One environment's episodes as (time of their end, length, return). The first line is a JSON comment."""
    with path.open(newline="") as file:
        start = json.loads(file.readline().lstrip("#"))["t_start"]
        return [(start + float(row["t"]), float(row["l"]), float(row["r"])) for row in csv.DictReader(file)]
