"""Faults of environments, after which training cannot continue with them."""

import errno
from dataclasses import dataclass

#: Error numbers of a full disk, which a ``Monitor`` may write to.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class EnvFault(RuntimeError):
    """An environment failed, and training cannot continue with it.

    The message names the environment, its index, its seed and the step; the environment's own error, if there was one,
    is the ``__cause__``.
    """


class NotFiniteFault(EnvFault, FloatingPointError):
    """An environment returned NaN or infinity, which is a ``FloatingPointError`` without supervision, too."""


@dataclass(frozen=True)
class Fault:
    """The answer of an environment that failed.

    :param reason: what it did, as the predicate of a sentence about it
    :param cause: the error, if there was one
    :param hangs: whether it may still be running
    :param not_finite: whether it returned NaN or infinity
    """

    reason: str
    cause: BaseException | None = None
    hangs: bool = False
    not_finite: bool = False
