"""What environments do that training cannot go on from, and how it is found in what they return."""

import errno
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo_plus.envs.errors import fits
from ppo_plus.require import LARGEST, is_finite, why_not_finite

#: What a full disk is called; ``Monitor`` writes to one.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class EnvFault(RuntimeError):
    """An environment did what training cannot go on from.

    The message names the environment, its index, its seed and the step; the error of the environment itself, if there
    was one, is the ``__cause__``.
    """


class NotFiniteFault(EnvFault, FloatingPointError):
    """An environment returned NaN or infinity, which without supervision is a ``FloatingPointError``, too."""


@dataclass(frozen=True)
class Fault:
    """What an environment answers where it failed.

    :param reason: what it did, in words that follow its name
    :param cause: the error, if there was one
    :param hangs: whether it may be still at work
    :param not_finite: whether it returned NaN or infinity
    """

    reason: str
    cause: BaseException | None = None
    hangs: bool = False
    not_finite: bool = False

    @property
    def error(self) -> type[EnvFault]:
        """What is raised where training cannot go on."""
        return NotFiniteFault if self.not_finite else EnvFault


class Wrong(Exception):
    """An environment returned what it must not; the message says what."""

    not_finite = False


class NotFinite(Wrong):
    """It returned NaN or infinity."""

    not_finite = True


def check_obs(obs: Any, space: spaces.Space, name: str = "an observation") -> None:
    """:raises Wrong: an observation is not of the shape or kind of its space, or not finite"""
    if type(obs) is np.ndarray and obs.dtype == space.dtype and obs.shape == space.shape and is_finite(obs):
        return  # as nearly all are; the rest says what is wrong with the others
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            if not isinstance(obs, dict) or key not in obs:
                raise Wrong(f"returned {name} without {key!r}, which its space {space} has")
            check_obs(obs[key], sub, f"{name}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise Wrong(f"returned {name} that is no tuple of {len(space)} parts, as its space {space} has them")
        for i, (part, sub) in enumerate(zip(obs, space, strict=True)):
            check_obs(part, sub, f"{name}[{i}]")
        return
    array = obs if type(obs) is np.ndarray else _as_array(obs, name)
    if not fits(array.shape, space.shape or ()):
        raise Wrong(f"returned {name} of shape {array.shape}, but its space {space} has {space.shape}")
    if array.dtype != space.dtype and not _holds(space.dtype, array):
        raise Wrong(f"returned {name} of dtype {array.dtype}, whose values {space.dtype} of its space cannot hold: "
                     f"{array!r:.200}")  # fmt: skip
    if not is_finite(array):
        raise NotFinite(f"returned {name} that is {why_not_finite(array)}: {array!r:.200}")


def _as_array(obs: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError:
        raise Wrong(f"returned {name} of unequal rows") from None


def _holds(dtype: Any, array: np.ndarray) -> bool:
    """Whether a dtype holds the values of an array, but for the rounding of floats."""
    if array.dtype.kind not in "biuf":
        return False
    return np.dtype(dtype).kind == "f" or bool((array.astype(dtype) == array).all())


def check_reward(reward: Any) -> float:
    """:raises Wrong: a reward is not finite"""
    reward = float(reward)
    if not abs(reward) <= LARGEST:
        raise NotFinite(f"returned a reward that is {why_not_finite(reward)}: {reward}")
    return reward
