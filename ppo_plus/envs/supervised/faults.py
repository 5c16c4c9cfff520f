"""Faults of environments, after which training cannot continue with them, and the checks that find them."""

import errno
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo_plus.envs.errors import fits
from ppo_plus.require import LARGEST, is_finite, why_not_finite

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

    @property
    def error(self) -> type[EnvFault]:
        """The class of the error to raise if the environment cannot be replaced."""
        return NotFiniteFault if self.not_finite else EnvFault


class InvalidOutput(Exception):
    """An environment returned something invalid; the message says what.

    :param reason: what it did, as in :class:`Fault`
    :param not_finite: whether it is NaN or infinity
    """

    def __init__(self, reason: str, not_finite: bool = False):
        super().__init__(reason)
        self.not_finite = not_finite


def check_obs(obs: Any, space: spaces.Space, name: str = "an observation") -> None:
    """:raises InvalidOutput: an observation does not have the shape and dtype of its space, or is not finite"""
    if type(obs) is np.ndarray and obs.dtype == space.dtype and obs.shape == space.shape and is_finite(obs):
        return  # the usual case; the rest finds out what is wrong
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            if not isinstance(obs, dict) or key not in obs:
                raise InvalidOutput(f"returned {name} without {key!r}, which its space {space} has")
            check_obs(obs[key], sub, f"{name}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise InvalidOutput(f"returned {name} that is not a tuple of {len(space)} parts, like its space {space}")
        for i, (part, sub) in enumerate(zip(obs, space, strict=True)):
            check_obs(part, sub, f"{name}[{i}]")
        return
    array = obs if type(obs) is np.ndarray else _as_array(obs, name)
    if not fits(array.shape, space.shape or ()):
        raise InvalidOutput(f"returned {name} of shape {array.shape}, but its space {space} has {space.shape}")
    if array.dtype != space.dtype and not _can_represent(space.dtype, array):
        raise InvalidOutput(
            f"returned {name} of dtype {array.dtype}, whose values {space.dtype} of its space cannot represent: "
            f"{array!r:.200}"
        )
    if not is_finite(array):
        raise InvalidOutput(f"returned {name} that is {why_not_finite(array)}: {array!r:.200}", not_finite=True)


def _as_array(obs: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError:
        raise InvalidOutput(f"returned {name} of unequal rows") from None


def _can_represent(dtype: Any, array: np.ndarray) -> bool:
    """Whether a dtype can represent the values of an array, apart from the rounding of floats."""
    if array.dtype.kind not in "biuf":
        return False
    return np.dtype(dtype).kind == "f" or bool((array.astype(dtype) == array).all())


def check_reward(reward: Any) -> float:
    """:raises InvalidOutput: a reward is not finite"""
    reward = float(reward)
    if not abs(reward) <= LARGEST:
        raise InvalidOutput(f"returned a reward that is {why_not_finite(reward)}: {reward}", not_finite=True)
    return reward
