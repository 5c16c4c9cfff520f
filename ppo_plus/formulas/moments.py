r"""Moments of numbers in parts: count :math:`n`, mean :math:`\bar x`, and :math:`M_2 = \sum (x - \bar x)^2`.

They are combined and separated again in double precision, by the formulas of Chan, Golub and LeVeque (1983,
"Algorithms for computing the sample variance", The American Statistician 37).
"""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch as th


class Moments(NamedTuple):
    """The moments of some numbers, or of each column of some rows, in double precision.

    Running statistics may begin with a fraction ``n``.
    """

    n: th.Tensor
    mean: th.Tensor
    m2: th.Tensor

    @classmethod
    def of(cls, numbers: th.Tensor) -> "Moments":
        """The moments of the rows of a tensor; without rows, all are 0."""
        numbers = numbers.double()
        n = numbers.new_full((), len(numbers))  # which no GPU waits for
        mean = numbers.sum(dim=0) / n.clamp(min=1)
        return cls(n, mean, (numbers - mean).square().sum(dim=0))

    @property
    def std(self) -> th.Tensor:
        """Standard deviation of a sample (with :math:`n - 1`); 0 for a single number."""
        return (self.m2 / (self.n - 1).clamp(min=1)).sqrt()

    @property
    def var(self) -> th.Tensor:
        r"""Variance :math:`M_2 / n`."""
        return self.m2 / self.n

    def plus(self, other: "Moments") -> "Moments":
        """The moments of these and other numbers together."""
        n = self.n + other.n
        share = other.n / n.where(n > 0, 1.0)
        delta = other.mean - self.mean
        return Moments(n, self.mean + delta * share, self.m2 + other.m2 + delta**2 * (self.n * share))

    def minus(self, other: "Moments") -> "Moments":
        """The moments of these numbers without those of ``other``, which are among them."""
        n = self.n - other.n
        if n <= 0:
            return Moments(*map(th.zeros_like, self))
        mean = self.mean + (self.mean - other.mean) * (other.n / n)
        delta = other.mean - mean
        # Rounding must not make a sum of squares negative.
        return Moments(n, mean, (self.m2 - other.m2 - delta**2 * (n * other.n / self.n)).clamp(min=0))


def total(parts: Iterable[Moments]) -> Moments:
    """The moments of all parts together; there must be at least one."""
    return reduce(Moments.plus, parts)
