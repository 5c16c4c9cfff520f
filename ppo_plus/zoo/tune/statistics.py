"""Interquartile means, and bootstrap intervals over seeds.

After Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (arXiv:2108.13264).
Their library ``rliable`` gives the same means and intervals, but draws from NumPy's global generator and is slow.
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
    """The interquartile mean: the mean without the lowest and the highest quarter."""
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
    data = tuple(np.asarray(sample, dtype=float) for sample in samples)
    value = float(statistic(*data))
    if any(len(sample) < 2 for sample in data):
        return Estimate(value, -float("inf"), float("inf"))
    # A separate generator, so that the same scores always give the same interval.
    rng = np.random.default_rng(0)
    found = bootstrap(
        data, statistic, n_resamples=N_RESAMPLES, confidence_level=confidence, method="percentile", rng=rng
    ).confidence_interval
    return Estimate(value, float(found.low), float(found.high))
