"""Interquartile means, and bootstrap intervals over seeds.

After Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (arXiv:2108.13264).
Their stratified bootstrap, which resamples the runs of each task, is SciPy's of several samples. Their library
``rliable`` (1.2) gives the same means and intervals, but it needs ``arch<8``, which fails to import with pandas 3; it
draws from NumPy's global generator, whatever ``random_state`` it is given; and it needs seconds per interval where
SciPy needs milliseconds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap, trim_mean

N_RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A value with its interval."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        """Each of the three in a number's format, by default with one decimal."""
        spec = spec or ".1f"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self)


def iqm(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """The interquartile mean: the mean without the lowest and the highest quarter.

    :param scores: one per seed
    :param axis: the axis of the seeds
    """
    return np.asarray(trim_mean(scores, 0.25, axis=axis))


def iqm_interval(scores: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The interquartile mean with its percentile bootstrap interval.

    :param scores: one per seed, at least one
    :param confidence: how often such an interval contains the true value, in (0, 1)
    """
    return _estimate((scores,), iqm, confidence)


def difference_interval(scores: Sequence[float], others: Sequence[float], confidence: float = 0.95) -> Estimate:
    """How much higher one interquartile mean is than another, with its percentile bootstrap interval.

    :param scores: one per seed
    :param others: the scores that are compared with them
    :param confidence: how often such an interval contains the true value, in (0, 1)
    """
    return _estimate((scores, others), lambda x, y, axis=-1: iqm(x, axis) - iqm(y, axis), confidence)


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

    return _estimate((*tasks, *others), ratio, confidence)


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

    return _estimate((*tasks, *others), better, confidence)


def profile(tasks: Sequence[Sequence[float]], thresholds: Sequence[float], confidence: float = 0.95) -> np.ndarray:
    """The performance profile: which part of the runs exceeds a threshold, averaged over tasks.

    :param tasks: for each task, one score per seed, in a unit that makes tasks comparable
    :param thresholds: in the same unit
    :param confidence: how often such an interval contains the true value, in (0, 1)
    :return: part, lower and upper bound for each threshold, shape ``(len(thresholds), 3)``
    """

    def part(threshold: float) -> Callable[..., np.ndarray]:
        return lambda *each, axis=-1: np.mean([(x > threshold).mean(axis) for x in each], axis=0)

    return np.array([_estimate(tuple(tasks), part(threshold), confidence) for threshold in thresholds])


def _estimate(
    samples: tuple[Sequence[float], ...], statistic: Callable[..., np.ndarray], confidence: float
) -> Estimate:
    data = tuple(np.asarray(sample, dtype=float) for sample in samples)
    value = float(statistic(*data))
    if any(len(sample) < 2 for sample in data):
        return Estimate(value, -float("inf"), float("inf"))
    # A separate generator, so that the same scores always give the same interval.
    interval = bootstrap(
        data,
        statistic,
        n_resamples=N_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))
