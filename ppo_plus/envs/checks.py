"""Checks of what environments return: observations of the wrong shape, numbers that are not finite.

Without them, such a mistake is an error in the code of Stable-Baselines3 or Gymnasium (``could not broadcast``), or no
error at all: NumPy repeats a number until it fills the shape of the space.
"""

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.observations import canonical_space, is_finite, why_not_finite
from ppo_plus.require import LARGEST, NotFinite
from ppo_plus.trees import mapped

#: Types whose values need no copies.
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})
TIMEOUT = "TimeLimit.truncated"
#: Info key that marks a row as a reset instead of a transition (autoreset mode ``NEXT_STEP`` only).
AUTORESET = "VectorEnv.autoreset"
#: What an environment says beside its observation.
Info = dict[str, Any]


class InvalidOutput(ValueError):
    """An environment returned something invalid; the argument is the predicate of a sentence about it."""

    def __str__(self) -> str:
        return f"env {self.args[0]}"


class NotFiniteOutput(InvalidOutput, NotFinite):
    """It was NaN or infinity."""


def check_obs(obs: Any, space: spaces.Space, values: bool = True, name: str = "an observation") -> Any:
    """Check the shape of one environment's observation, and if ``values`` also its dtype and its numbers.

    :return: its arrays, in the structure of the space; a ``Box`` may have come as a list or tuple of numbers
    :raises InvalidOutput: it does not fit its space, or is not finite
    """
    if isinstance(space, spaces.Dict):
        for key in space:
            if not isinstance(obs, dict) or key not in obs:
                raise InvalidOutput(f"returned {name} without {key!r}, which its space {space} has")
        return {key: check_obs(obs[key], sub, values, f"{name}[{key!r}]") for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list, np.ndarray)) or len(obs) != len(space):
            raise InvalidOutput(f"returned {name} that is not a tuple of {len(space)} parts, like its space {space}")
        parts = enumerate(zip(obs, space, strict=True))
        return tuple(check_obs(part, sub, values, f"{name}[{i}]") for i, (part, sub) in parts)
    try:
        array = np.asarray(obs)
    except (RuntimeError, TypeError, ValueError) as error:
        remedy = "return arrays, such as obs.detach().cpu().numpy()"
        raise InvalidOutput(f"returned {name} that is not an array ({error}): {remedy}") from None
    if not _fits(array.shape, space.shape or ()):
        shapes = f"of shape {array.shape}, but its space {space} has {space.shape}"
        raise InvalidOutput(f"returned {name} {shapes}: fix one of them")
    if values and array.dtype != space.dtype and not _can_represent(space.dtype, array):
        what = f"{name} of dtype {array.dtype}, whose values {space.dtype} of its space cannot represent"
        raise InvalidOutput(f"returned {what}: {array!r:.200}")
    if values and not is_finite(array):
        raise NotFiniteOutput(f"returned {name} that is {why_not_finite(array)}: {array!r:.200}")
    return array.reshape(space.shape or ())


def copied(obs: Any, space: spaces.Space) -> Any:
    """A copy of an observation, with arrays as its parts; errors as :func:`check_obs`."""
    return mapped(np.copy, check_obs(obs, space, values=False))


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
    """:raises InvalidOutput: an info is not a dict; an old observation of two numbers can be unpacked, too"""
    if not isinstance(info, dict):
        raise InvalidOutput(f"returned {info!r:.100} as info: return a dict, such as {{}}")


def as_reward(reward: Any) -> float:
    """A reward as a number: also arrays and lists of one number are accepted.

    :raises InvalidOutput: it is something else
    """
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise InvalidOutput(f"returned {reward!r:.200} as reward: return one number")
    return float(array.reshape(()))


def check_reward(reward: Any) -> float:
    """:raises InvalidOutput: a reward is not a number, or not finite"""
    reward = as_reward(reward)
    if not abs(reward) <= LARGEST:
        raise NotFiniteOutput(f"returned a reward that is {why_not_finite(reward)}: {reward}")
    return reward


def row_of(obs: VecEnvObs, i: int) -> Any:
    """A copy of the observation of environment ``i``, from those of all."""
    return mapped(lambda array: np.array(array[i]), obs)


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the shapes are the same, where a single number may also come as an array of one, and the reverse."""
    return shape == expected or math.prod(shape) == math.prod(expected) == 1


def _can_represent(dtype: np.dtype[Any] | None, array: np.ndarray) -> bool:
    """Whether a dtype can represent the values of an array, apart from the rounding of floats."""
    if array.dtype.kind not in "biuf":
        return False
    return dtype is None or dtype.kind == "f" or bool((array.astype(dtype) == array).all())


@contextmanager
def counted(env: gym.Env, info: Info) -> Iterator[None]:
    """While an environment is reset, have its ``Monitor`` count an episode that a wrapper around it has ended, such as
    a ``TimeLimit``. An episode that ends when a life is lost does not reset the ``Monitor``."""
    monitor = unwrap_wrapper(env, Monitor)
    if not isinstance(monitor, Monitor) or monitor.needs_reset:
        yield
        return
    # The user's, or that of an earlier episode.
    info.pop("episode", None)
    rewards, n, seconds = monitor.rewards, len(monitor.episode_returns), time.time() - monitor.t_start
    yield
    # The reset may have taken a step that ended the episode, which is written then.
    if monitor.rewards is not rewards and len(monitor.episode_returns) == n:
        info["episode"] = {"r": round(sum(rewards), 6), "l": len(rewards), "t": round(seconds, 6)}
        info["episode"] |= monitor.current_reset_info
        if monitor.results_writer:
            monitor.results_writer.write_row(info["episode"])


def check_spaces(env: gym.Env | VecEnv) -> None:
    """:raises ValueError: PPO_Plus does not support the spaces of an environment"""
    canonical_space(env.observation_space)
    make_distribution(env.action_space)


def seed_envs(env: VecEnv, seed: int) -> None:
    """Seed environments, and warn if they cannot be seeded."""
    try:
        env.seed(seed)
    except Exception as error:
        warnings.warn(
            f"env={env!r} cannot be seeded with seed={seed} ({error!r}): its episodes differ from run to run",
            stacklevel=6,
        )


def described(i: int, env: gym.Env | str, seed: int | None, step: int) -> str:
    """Environment ``i`` in a message: what it is, the seed of its last reset if it is known, the steps taken."""
    return f"environment {i}, {env}, {'unseeded' if seed is None else f'seed {seed}'}, step {step}"
