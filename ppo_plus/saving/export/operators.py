r"""The logarithm of the normal distribution function, which ONNX would round to :math:`-\infty` for :math:`z < -5`."""

import math

import torch as th

#: Beyond this :math:`|z|`, values are those at it.
LIMIT = 12.0
#: Of the polynomial :math:`P(t)`, fitted to :math:`\log \mathrm{erfc}(x) + x^2 - \log t` with :math:`t = 2 / (2 + x)`:
#: to 1e-9 for :math:`x` up to :math:`12 / \sqrt 2`.
COEFFICIENTS = [
    float(each)
    for each in (
        "-1.26550749455 0.99985297940 0.37707385533 0.06627748009 0.00387267801 -0.45292805613 0.56260578970 "
        "-0.53107318481 -1.05260183646 5.10236447282 -8.38463661939 7.52000764890 -3.95668870293 1.15830061171 "
        "-0.14691962170"
    ).split()
]


def log_ndtr(z: th.Tensor) -> th.Tensor:
    r""":math:`\log \Phi(z)`: for negative :math:`z` it is :math:`q = \log(\mathrm{erfc}(|z| / \sqrt 2) / 2)`, otherwise
    :math:`\log(1 - e^q)`. In operations that ONNX has."""
    x = z.double().abs().clamp(max=LIMIT) * math.sqrt(0.5)
    t = 2.0 / (x + 2.0)
    fitted = th.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        fitted = fitted * t + coefficient
    q = t.log() - x * x + fitted - math.log(2)
    tail = q.exp()
    # Where 1 - e^q would be rounded, the logarithm is -e^q.
    return th.where(z < 0, q, th.where(tail < 1e-8, -tail, (1.0 - tail).log())).to(z.dtype)
