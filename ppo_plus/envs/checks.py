"""What environments return: its checks, and mistakes of environments as errors that say what to do: the old gym's
interface, observations of the wrong shape, numbers that are not finite.

Without this module, such a mistake is an error in the code of Stable-Baselines3 or Gymnasium (``could not broadcast``,
``too many values to unpack``), or no error at all: NumPy repeats a number until it fills the shape of the space.
"""

import math
import re
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import ClipAction
from stable_baselines3.common.env_util import unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from ppo_plus.envs.layers import layers
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.observations import canonical_space, is_finite, why_not_finite
from ppo_plus.require import LARGEST
from ppo_plus.trees import mapped

#: What to do about the old gym's interface where its code cannot be changed.
CONVERT = "or convert an environment of the old gym by shimmy.GymV21CompatibilityV0(env=env)"
RESET = (
    "reset() must return (observation, info), as in Gymnasium, and not an observation alone, as in the old gym: "
    f"return observation, {{}}, {CONVERT}"
)
SEED = (
    "reset() must take seed, and options if there are any, as in Gymnasium: def reset(self, *, seed=None, "
    f"options=None), {CONVERT}"
)
STEP = (
    "step() must return (observation, reward, terminated, truncated, info), as in Gymnasium, and not one done, as in "
    f"the old gym: a time limit is truncated, every other end terminated, {CONVERT}"
)
#: Whose code calls environments: an error raised there about what an environment returned is that environment's.
CALLERS = ("stable_baselines3.", "gymnasium.", "ppo_plus.envs.")
#: Types whose values need no copies.
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})
TIMEOUT = "TimeLimit.truncated"
#: Info key that marks a row as a reset instead of a transition (autoreset mode ``NEXT_STEP`` only).
AUTORESET = "autoreset"
#: What an environment says beside its observation.
Info = dict[str, Any]


class InvalidOutput(ValueError):
    """An environment returned something invalid.

    :param reason: the predicate of a sentence about it
    :param not_finite: whether it was NaN or infinity
    """

    def __init__(self, reason: str, not_finite: bool = False, remedy: str = "fix one of them"):
        super().__init__(reason)
        self.not_finite, self.remedy = not_finite, remedy


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
    array = as_array(obs, name)
    if not _fits(array.shape, space.shape or ()):
        raise InvalidOutput(f"returned {name} of shape {array.shape}, but its space {space} has {space.shape}")
    if values and array.dtype != space.dtype and not _can_represent(space.dtype, array):
        what = f"{name} of dtype {array.dtype}, whose values {space.dtype} of its space cannot represent"
        raise InvalidOutput(f"returned {what}: {array!r:.200}")
    if values and not is_finite(array):
        raise InvalidOutput(f"returned {name} that is {why_not_finite(array)}: {array!r:.200}", not_finite=True)
    return array.reshape(space.shape or ())


def as_array(obs: Any, name: str = "an observation") -> np.ndarray:
    """An observation, or a part of it, as an array.

    :raises InvalidOutput: it cannot be one
    """
    try:
        return np.asarray(obs)
    except ValueError:
        raise InvalidOutput(f"returned {name} of unequal rows") from None
    except (RuntimeError, TypeError) as error:
        remedy = "return arrays, such as obs.detach().cpu().numpy()"
        raise InvalidOutput(f"returned {name} that is not an array ({error})", remedy=remedy) from None


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
    """:raises TypeError: the second value of a reset is not a dict; an observation of two numbers can be unpacked"""
    if not isinstance(info, dict):
        raise TypeError(RESET)


def check_step_info(info: Any) -> None:
    """:raises InvalidOutput: the info of a step is not a dict"""
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


def check_reward(reward: Any) -> float:
    """:raises InvalidOutput: a reward is not a number, or not finite"""
    reward = as_reward(reward)
    if not abs(reward) <= LARGEST:
        raise InvalidOutput(f"returned a reward that is {why_not_finite(reward)}: {reward}", not_finite=True)
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
    """While an environment is reset after an episode: an episode that was ended by a wrapper around the ``Monitor``,
    such as a ``TimeLimit``, counts, too. One that ends when a life is lost does not reset the ``Monitor``."""
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
    try:
        make_distribution(env.action_space)
    except ValueError as error:
        if any(isinstance(layer, ClipAction) for layer in layers(env)):
            raise ValueError(
                f"{error}. ClipAction removed the bounds: leave that wrapper out, since actions are clipped anyway"
            ) from None
        raise


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


def explanation(error: Exception, env: gym.Env | VectorEnv | VecEnv) -> Exception | None:
    """What an error of the code that called an environment means, with the remedy; ``None``: unknown, or its own."""
    text, name = str(error), f"env={env.unwrapped!r}"
    if isinstance(error, InvalidOutput):
        return ValueError(f"{name} {text}: {error.remedy}")
    if text == RESET:
        return TypeError(f"{name}: {RESET}")
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not str(frame.f_globals.get("__name__", "")).startswith(CALLERS):
        return None
    function = frame.f_code.co_name
    if function == Monitor.step.__name__ and frame.f_globals["__name__"] == Monitor.__module__:
        reward = frame.f_locals.get("reward", 0.0)
        if not isinstance(reward, (float, int, np.number)):
            return ValueError(f"{name} returned {reward!r:.200} as reward: return one number")
    if "reset" in function and re.search("unexpected keyword argument '(seed|options)'", text):
        return TypeError(f"{name}: {SEED}")
    if "unpack" not in text:
        return None
    # A step may reset, and a reset may step: the number of values says which of them returned too many or too few.
    is_step = "expected 5" in text or (function == "step" and "expected 2" not in text)
    return TypeError(f"{name}: {STEP if is_step else RESET}")
