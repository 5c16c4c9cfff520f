r"""Moments of numbers that come in parts: count :math:`n`, mean :math:`\bar x`, and :math:`M_2 = \sum (x - \bar x)^2`.

They are put together and taken apart again in double precision, by the formulas of Chan, Golub and LeVeque (1983,
"Algorithms for computing the sample variance", The American Statistician 37).
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch as th


class Moments(NamedTuple):
    """The moments of some numbers, or of each column of some rows, in double precision.

    :param n: how many they are, a number, or one for each column; running statistics may begin with a fraction
    :param mean: their mean
    :param m2: the sum of squared differences from it
    """

    n: th.Tensor
    mean: th.Tensor
    m2: th.Tensor

    @classmethod
    def of(cls, numbers: th.Tensor) -> "Moments":
        """Those of the rows of a tensor; of none, all are 0."""
        numbers = numbers.double()
        n = numbers.new_tensor(len(numbers))
        mean = numbers.sum(dim=0) / n.clamp(min=1)
        return cls(n, mean, (numbers - mean).square().sum(dim=0))

    @property
    def std(self) -> th.Tensor:
        """Standard deviation of a sample (with :math:`n - 1`); 0 of a single number."""
        return (self.m2 / (self.n - 1).clamp(min=1)).sqrt()

    @property
    def var(self) -> th.Tensor:
        r"""Variance :math:`M_2 / n`."""
        return self.m2 / self.n

    def plus(self, other: "Moments") -> "Moments":
        """Those of all numbers, of these and of other ones."""
        n = self.n + other.n
        share = other.n / n.where(n > 0, 1.0)
        delta = other.mean - self.mean
        return Moments(n, self.mean + delta * share, self.m2 + other.m2 + delta**2 * (self.n * share))

    def minus(self, other: "Moments") -> "Moments":
        """Those of the numbers that ``other`` lacks, of which all are among these."""
        n = self.n - other.n
        if n <= 0:
            return Moments(*map(th.zeros_like, self))
        mean = self.mean + (self.mean - other.mean) * (other.n / n)
        delta = other.mean - mean
        # Rounding must not make a sum of squares negative.
        return Moments(n, mean, (self.m2 - other.m2 - delta**2 * (n * other.n / self.n)).clamp(min=0))


def total(parts: Iterable[Moments]) -> Moments:
    """The moments of all parts together, of which there is at least one."""
    first, *others = parts
    for other in others:
        first = first.plus(other)
    return first
