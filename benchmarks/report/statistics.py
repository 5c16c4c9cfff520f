"""Comparisons over several tasks, with stratified bootstrap intervals.

After Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (arXiv:2108.13264).
"""

from collections.abc import Callable, Sequence

import numpy as np

from ppo_plus.zoo.results import Estimate, interval, iqm


def ratio_interval(
    tasks: Sequence[Sequence[float]], others: Sequence[Sequence[float]], confidence: float = 0.95
) -> Estimate:
    """How many times as much is reached over all tasks: the interquartile mean over the runs of all of them, in units
    of the others' interquartile mean on the same task, with its stratified bootstrap interval.

    :param tasks: for each task, one score per seed
    :param others: for each task, the scores that are compared with them, above zero
    :param confidence: how often such an interval contains the true value, in (0, 1)
    """
    n = len(tasks)

    def ratio(*each: np.ndarray, axis: int = -1) -> np.ndarray:
        units = (np.expand_dims(iqm(y, axis), axis) for y in each[n:])
        return iqm(np.concatenate([x / unit for x, unit in zip(each[:n], units, strict=True)], axis), axis)

    return interval((*tasks, *others), ratio, confidence)


def improvement_interval(
    tasks: Sequence[Sequence[float]], others: Sequence[Sequence[float]], confidence: float = 0.95
) -> Estimate:
    r"""How probable it is that a run is better than another's, averaged over tasks, with its stratified bootstrap
    interval: :math:`\frac1M\sum_m \overline{[x_m > y_m] + [x_m = y_m]/2}` over all pairs of runs.

    :param tasks: for each task, one score per seed
    :param others: for each task, the scores that are compared with them
    :param confidence: how often such an interval contains the true value, in (0, 1)
    """
    n = len(tasks)

    def better(*each: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = (np.expand_dims(x, axis) - np.expand_dims(y, axis - 1) for x, y in zip(each[:n], each[n:], strict=True))
        return np.asarray(np.mean([np.heaviside(pair, 0.5).mean((-2, -1)) for pair in pairs], axis=0))

    return interval((*tasks, *others), better, confidence)


def profile(tasks: Sequence[Sequence[float]], thresholds: Sequence[float], confidence: float = 0.95) -> np.ndarray:
    """The performance profile: which part of the runs exceeds a threshold, averaged over tasks.

    :param tasks: for each task, one score per seed, in a unit that makes tasks comparable
    :param thresholds: in the same unit
    :param confidence: how often such an interval contains the true value, in (0, 1)
    :return: part, lower and upper bound for each threshold, shape ``(len(thresholds), 3)``
    """

    def part(threshold: float) -> Callable[..., np.ndarray]:
        return lambda *each, axis=-1: np.mean([(x > threshold).mean(axis) for x in each], axis=0)

    return np.array([interval(tuple(tasks), part(threshold), confidence) for threshold in thresholds])
