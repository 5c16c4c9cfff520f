"""What environments return: checks of shapes, kinds of numbers and infos, and one row of a batch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo_plus.require import LARGEST, is_finite, why_not_finite

#: What to do about the old gym's interface where its code cannot be changed.
CONVERT = "or convert an environment of the old gym by shimmy.GymV21CompatibilityV0(env=env)"
RESET = (
    "reset() must return (observation, info), as in Gymnasium, and not an observation alone, as in the old gym: "
    f"return observation, {{}}, {CONVERT}"
)


class InvalidOutput(ValueError):
    """An environment returned something invalid: the predicate of a sentence about it; NaN and infinity or not."""

    def __init__(self, reason: str, not_finite: bool = False, remedy: str = "fix one of them"):
        super().__init__(reason)
        self.not_finite, self.remedy = not_finite, remedy


def check_obs(obs: Any, space: spaces.Space, values: bool = True, name: str = "an observation") -> None:
    """Check the shape of one environment's observation, and if ``values`` also its dtype and its numbers.

    :raises InvalidOutput: it does not fit its space, or is not finite
    """
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            if not isinstance(obs, dict) or key not in obs:
                raise InvalidOutput(f"returned {name} without {key!r}, which its space {space} has")
            check_obs(obs[key], sub, values, f"{name}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise InvalidOutput(f"returned {name} that is not a tuple of {len(space)} parts, like its space {space}")
        for i, (part, sub) in enumerate(zip(obs, space, strict=True)):
            check_obs(part, sub, values, f"{name}[{i}]")
        return
    try:
        array = np.asarray(obs)
    except ValueError:
        raise InvalidOutput(f"returned {name} of unequal rows, but its space {space} has {space.shape}") from None
    if not _fits(array.shape, space.shape or ()):
        raise InvalidOutput(f"returned {name} of shape {array.shape}, but its space {space} has {space.shape}")
    if values and array.dtype != space.dtype and not _can_represent(space.dtype, array):
        raise InvalidOutput(
            f"returned {name} of dtype {array.dtype}, whose values {space.dtype} of its space cannot represent: "
            f"{array!r:.200}"
        )
    if values and not is_finite(array):
        raise InvalidOutput(f"returned {name} that is {why_not_finite(array)}: {array!r:.200}", not_finite=True)


def check_shape(obs: Any, space: spaces.Space, n_envs: int, name: str = "observation") -> None:
    """:raises ValueError: observations of ``n_envs`` environments do not have the shape of their space"""
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            check_shape(obs[key], sub, n_envs, f"{name}[{key!r}]")
        return
    expected = (n_envs, *(space.shape or ()))
    if np.shape(obs)[:1] != (n_envs,) or not _fits(np.shape(obs)[1:], expected[1:]):
        raise ValueError(
            f"env returned {name} of shape {np.shape(obs)} for {n_envs} environments, but its space {space} asks for "
            f"{expected}: fix its observation_space, or what it returns"
        )


def check_info(info: Any) -> None:
    """:raises TypeError: the second value of a reset is not a dict; an observation of two numbers can be unpacked"""
    if not isinstance(info, dict):
        raise TypeError(RESET)


def check_step_info(info: Any) -> None:
    """:raises InvalidOutput: the last value of a step is not a dict"""
    if not isinstance(info, dict):
        raise InvalidOutput(f"returned {info!r:.100} as info of a step", remedy="return a dict, such as {}")


def as_reward(reward: Any) -> float:
    """A reward as a number: also arrays and lists of one number are accepted.

    :raises InvalidOutput: it is something else
    """
    try:
        array = np.asarray(reward)
    except ValueError:
        array = np.empty(0)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise InvalidOutput(f"returned {reward!r:.200} as reward", remedy="return one number")
    return float(array.reshape(()))


def as_rewards(rewards: Any, n_envs: int, step: int) -> np.ndarray:
    """Rewards as floats of shape ``(N,)``.

    :raises ValueError: they are something else
    """
    array = np.asarray(rewards)
    if array.shape not in ((n_envs,), (n_envs, 1)) or array.dtype.kind not in "biuf":
        raise ValueError(
            f"env returned rewards of shape {array.shape} and dtype {array.dtype} for {n_envs} environments, step "
            f"{step}: return one number for each, shape ({n_envs},)"
        )
    return array.reshape(n_envs) if array.dtype.kind == "f" else array.reshape(n_envs).astype(np.float32)


def check_reward(reward: Any) -> float:
    """:raises InvalidOutput: a reward is not a number, or not finite"""
    reward = as_reward(reward)
    if not abs(reward) <= LARGEST:
        raise InvalidOutput(f"returned a reward that is {why_not_finite(reward)}: {reward}", not_finite=True)
    return reward


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each array or tensor in a nesting of dicts, TensorDicts and tuples; ``None`` stays.

    Steps call it several times, and it takes a third of the time of ``tree_map``.
    """
    if hasattr(value, "items"):
        return {key: mapped(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(function, part) for part in value)
    return None if value is None else function(value)


def row_of(obs: Any, i: int) -> Any:
    """A copy of the observation of environment ``i``, from those of all."""
    return mapped(lambda array: np.array(array[i]), obs)


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the shapes are the same, where a single number may also come as an array of one, and the reverse."""
    return found == expected or math.prod(found) == math.prod(expected) == 1


def _can_represent(dtype: Any, array: np.ndarray) -> bool:
    """Whether a dtype can represent the values of an array, apart from the rounding of floats."""
    if array.dtype.kind not in "biuf":
        return False
    return np.dtype(dtype).kind == "f" or bool((array.astype(dtype) == array).all())
