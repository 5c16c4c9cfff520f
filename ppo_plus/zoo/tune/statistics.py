"""Interquartile means, and bootstrap intervals over seeds.

After Agarwal et al. 2021, *Deep Reinforcement Learning at the Edge of the Statistical Precipice* (arXiv:2108.13264).
With one task their stratified bootstrap is the plain one, which SciPy has. Their library ``rliable`` (1.2) gives the
same means and intervals, but it needs ``arch<8``, which fails to import with pandas 3; it draws from NumPy's global
generator, whatever ``random_state`` it is given; and it needs seconds per interval where SciPy needs milliseconds.
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

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


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


def _estimate(
    samples: tuple[Sequence[float], ...], statistic: Callable[..., np.ndarray], confidence: float
) -> Estimate:
    data = tuple(np.asarray(sample, dtype=float) for sample in samples)
    value = float(statistic(*data))
    if any(len(sample) < 2 for sample in data):
        return Estimate(value, -float("inf"), float("inf"))
    # A generator of its own, so that the same scores always give the same interval.
    interval = bootstrap(
        data,
        statistic,
        n_resamples=N_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high))
