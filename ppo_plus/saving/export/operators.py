r"""The logarithm of the normal distribution function, which ONNX would round to :math:`-\infty` for :math:`z < -5`."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch as th
from numpy.polynomial import Chebyshev, Polynomial

#: Beyond this :math:`|z|`, values are those at it.
LIMIT = 12.0


@lru_cache
def _coefficients() -> list[float]:
    r"""Of :math:`P(t) = \log \mathrm{erfc}(x) + x^2 - \log t` with :math:`t = 2 / (2 + x)`: a polynomial fitted to 1e-9
    for :math:`x` up to :math:`12 / \sqrt 2`."""
    lowest = 2 / (2 + LIMIT / math.sqrt(2))
    t = (1 + lowest) / 2 + (1 - lowest) / 2 * np.cos(np.linspace(0, np.pi, 200))
    x = 2 / t - 2
    fit: Any = Chebyshev.fit(t, np.log([math.erfc(each) for each in x]) + x**2 - np.log(t), 14)
    return [float(each) for each in fit.convert(kind=Polynomial).coef]


def log_ndtr(z: th.Tensor) -> th.Tensor:
    r""":math:`\log \Phi(z)`: for negative :math:`z` it is :math:`q = \log(\mathrm{erfc}(|z| / \sqrt 2) / 2)`, otherwise
    :math:`\log(1 - e^q)`. In operations that ONNX has."""
    x = z.double().abs().clamp(max=LIMIT) * math.sqrt(0.5)
    t = 2.0 / (x + 2.0)
    fitted = th.zeros_like(t)
    for coefficient in reversed(_coefficients()):
        fitted = fitted * t + coefficient
    q = t.log() - x * x + fitted - math.log(2)
    tail = q.exp()
    # Where 1 - e^q would be rounded, the logarithm is -e^q.
    return th.where(z < 0, q, th.where(tail < 1e-8, -tail, (1.0 - tail).log())).to(z.dtype)
