r"""Moments of numbers that come in parts: count :math:`n`, mean :math:`\bar x`, and :math:`M_2 = \sum (x - \bar x)^2`.

They are put together and taken apart again in double precision, by the formulas of Chan, Golub and LeVeque (1983,
"Algorithms for computing the sample variance", The American Statistician 37).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Moments(NamedTuple):
    """The moments of some numbers, or of each column of some rows.

    :param n: how many they are, a number, or one for each column; running statistics may begin with a fraction
    :param mean: their mean
    :param m2: the sum of squared differences from it
    """

    n: Any
    mean: Any
    m2: Any

    @classmethod
    def of(cls, numbers: np.ndarray) -> "Moments":
        """Those of the rows of an array; of none, all are 0."""
        numbers = np.asarray(numbers, dtype=np.float64)
        if not len(numbers):
            return cls(0.0, np.zeros(numbers.shape[1:]), np.zeros(numbers.shape[1:]))
        mean = numbers.mean(axis=0)
        return cls(float(len(numbers)), mean, ((numbers - mean) ** 2).sum(axis=0))

    @property
    def std(self) -> Any:
        """Standard deviation of a sample (with :math:`n - 1`); 0 of a single number."""
        return np.sqrt(self.m2 / np.maximum(self.n - 1, 1.0))

    @property
    def var(self) -> Any:
        r"""Variance :math:`M_2 / n`."""
        return self.m2 / self.n

    def plus(self, other: "Moments") -> "Moments":
        """Those of all numbers, of these and of other ones."""
        n = self.n + other.n
        share = other.n / np.where(n > 0, n, 1.0)
        delta = other.mean - self.mean
        return Moments(n, self.mean + delta * share, self.m2 + other.m2 + delta**2 * (self.n * share))

    def minus(self, other: "Moments") -> "Moments":
        """Those of the numbers that ``other`` lacks, of which all are among these."""
        n = self.n - other.n
        if n <= 0:
            return Moments(0.0, np.zeros_like(self.mean), np.zeros_like(self.m2))
        mean = self.mean + (self.mean - other.mean) * (other.n / n)
        delta = other.mean - mean
        # Rounding must not make a sum of squares negative.
        return Moments(n, mean, np.maximum(self.m2 - other.m2 - delta**2 * (n * other.n / self.n), 0.0))


def total(parts: Iterable[Moments]) -> Moments:
    """The moments of all parts together, of which there is at least one."""
    first, *others = parts
    for other in others:
        first = first.plus(other)
    return first
