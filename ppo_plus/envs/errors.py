"""What environments get wrong, in words: the old gym's interface, and observations of another shape than their space.

SB3 calls them, so that such a mistake shows as an error of its code, ``could not broadcast`` or ``too many values to
unpack``, or not at all: its ``DummyVecEnv`` lets NumPy repeat a number until it fills the space's shape. So errors are
put in other words, and shapes are compared at resets and at the first step of each rollout; other steps are as fast as
without.
"""

import math
import re
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from ppo_plus.envs.normalization import Statistics
from ppo_plus.require import NotFiniteError

#: What to do about the old gym's interface where its code cannot be changed.
CONVERT = "or convert an environment of the old gym by shimmy.GymV21CompatibilityV0(env=env)"
RESET = (
    "reset() must return (observation, info), as Gymnasium has it, where the old gym returned an observation: "
    f"return observation, {{}}, {CONVERT}"
)
SEED = (
    f"reset() must take seed and options, as Gymnasium has it: def reset(self, *, seed=None, options=None), {CONVERT}"
)
STEP = (
    "step() must return (observation, reward, terminated, truncated, info), as Gymnasium has it, where the old gym "
    f"returned one done: a time limit is truncated, every other end terminated, {CONVERT}"
)


class Explained:
    """A context in which environments are called: errors that their mistakes lead to are raised in other words.

    It can be entered again and again. The first time, the shape of each observation is compared with its space's.

    Other errors are left as they are, but for a note on which environment it was.

    :param env: the environments
    :param step: says how many steps each of them has taken
    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: an observation has another shape than its space
    """

    def __init__(self, env: VecEnv, step: Callable[[], int]):
        self._env, self._step = env, step
        save = getattr(env.unwrapped, "_save_obs", None)
        #: Whose observations are still to be compared. A subclass that stores them differently knows what it does.
        self._unchecked = env.unwrapped if getattr(save, "__func__", None) is DummyVecEnv._save_obs else None

    def __enter__(self) -> None:
        if self._unchecked is not None:
            # The only place that sees what an environment returned, and whose: an attribute hides the method meanwhile.
            vars(self._unchecked)["_save_obs"] = partial(_save_checked, self._unchecked)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        if self._unchecked is not None:
            del vars(self._unchecked)["_save_obs"]
            self._unchecked = None
        if not isinstance(error, Exception):
            return
        found = explanation(error)
        vec_env: Any = self._env.unwrapped
        i = _index(error, vec_env)
        if i is not None:
            env = vec_env.envs[i].unwrapped
            where = described(i, env, getattr(env, "_np_random_seed", None), self._step())
            (found or error).add_note(f"It was {where}.")
        if found is not None:
            raise found from error


def described(i: int, env: Any, seed: int | None, step: int) -> str:
    """An environment in a message.

    :param i: its index
    :param env: its name, or itself
    :param seed: the seed that it was last reset with; ``None``: with none, or with one that is not known
    :param step: how many steps it has taken
    """
    return f"environment {i}, {env}, {'unseeded' if seed is None else f'seed {seed}'}, step {step}"


def _index(error: Exception, vec_env: Any) -> int | None:
    """Which of the environments of a ``DummyVecEnv`` an error comes from; ``None``: none, or it is not known."""
    if not isinstance(vec_env, DummyVecEnv):
        return None
    if isinstance(error, NotFiniteError):
        return error.env
    found = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((each["env_idx"] for each in found if each.get("self") is vec_env and "env_idx" in each), None)


def check_reset(env: VecEnv, obs: Any, step: int, before: Statistics) -> None:
    """Check what environments returned at the beginning of their episodes.

    :param env: the environments
    :param obs: their observations; ``None``: their episodes are to begin anew
    :param step: how many steps each of them has taken, for messages
    :param before: their statistics of before, which are put back where observations are not finite
    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: the observations are of another shape than their space
    :raises FloatingPointError: they are not finite
    """
    # An old environment's observation of two numbers can be unpacked.
    wrong = [each for each in getattr(env.unwrapped, "reset_infos", []) if not isinstance(each, dict)]
    if wrong:
        raise TypeError(f"env={env!r} returned {wrong[0]!r} as info: {RESET}")
    if obs is not None:
        check_shape(obs, env.observation_space, env.num_envs)
        before.require_finite(step, obs)


def check_shape(obs: Any, space: spaces.Space, n_envs: int, name: str = "observation") -> None:
    """:raises ValueError: observations of ``n_envs`` environments do not have the shape of their space"""
    if isinstance(space, spaces.Dict):
        for key, sub in space.items():
            check_shape(obs[key], sub, n_envs, f"{name}[{key!r}]")
        return
    expected = (n_envs, *(space.shape or ()))
    if np.shape(obs)[:1] != (n_envs,) or not fits(np.shape(obs)[1:], expected[1:]):
        raise ValueError(
            f"env returned {name} of shape {np.shape(obs)} for {n_envs} environments, but its space {space} asks for "
            f"{expected}: fix its observation_space, or what it returns"
        )


def _save_checked(vec_env: Any, env_idx: int, obs: Any) -> None:
    """``DummyVecEnv._save_obs``, which also refuses what NumPy would broadcast."""
    # First, since of what cannot be stored it raises an error that is explained already.
    DummyVecEnv._save_obs(vec_env, env_idx, obs)
    if not isinstance(vec_env.reset_infos[env_idx], dict):
        return  # the old gym's interface, of which `check_reset` speaks
    for key, rows in vec_env.buf_obs.items():
        if not fits(np.shape(obs if key is None else obs[key]), rows.shape[1:]):
            raise _wrong_shape(vec_env.envs[env_idx], obs)


def fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the shapes are the same, where a single number may also come as an array of one, and the reverse."""
    return found == expected or math.prod(found) == math.prod(expected) == 1


def explanation(error: Exception) -> Exception | None:
    """An error of code that called an environment, in other words.

    :param error: the error
    :return: ``None``: it is no mistake known here, or has been explained
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(_module(frame) == "gymnasium.vector.utils.space_utils" for frame in frames):
        return _not_stackable(frames)
    frame = frames[-1]
    module, function, found = _module(frame), frame.f_code.co_name, frame.f_locals
    # Only what is raised by the code that called an environment, and not by the environment.
    callers = ("stable_baselines3.", "gymnasium.", "ppo_plus.envs.resumable", "ppo_plus.envs.supervised")
    if not module.startswith(callers) or "self" not in found:
        return None
    env = found["self"]
    if hasattr(env, "envs") and "env_idx" in found:
        env = env.envs[found["env_idx"]]
    if function == "_save_obs" and "obs" in found:
        return _wrong_shape(env, found["obs"])
    env = getattr(env, "unwrapped", env)
    if function == "reset" and re.search("unexpected keyword argument '(seed|options)'", str(error)):
        return TypeError(f"env={env!r}: {SEED}")
    if "unpack" not in str(error) or function not in ("reset", "step", "step_wait"):
        return None
    # A step that ends an episode resets.
    is_reset = function == "reset" or "expected 2" in str(error)
    return TypeError(f"env={env!r}: {RESET if is_reset else STEP}")


def _not_stackable(frames: list[FrameType]) -> ValueError | None:
    """Of Gymnasium's ``SyncVectorEnv``, which stacks observations: which of its environments returned another shape."""
    callers = [frame.f_locals["self"] for frame in frames if isinstance(frame.f_locals.get("self"), SyncVectorEnv)]
    stacked = [frame.f_locals for frame in frames if {"space", "items"} <= frame.f_locals.keys()]
    if not callers or not stacked:
        return None
    # The first one stacks whole observations, further ones their parts.
    expected = _shape(stacked[0]["space"])
    for env, obs in zip(callers[0].envs, stacked[0]["items"], strict=True):
        if _shape_of(obs) != expected:
            return _wrong_shape(env, obs)
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _wrong_shape(env: Any, obs: Any) -> ValueError:
    """
    :param env: an environment, whose wrappers may have changed its space
    :param obs: what it returned
    """
    return ValueError(
        f"env={env.unwrapped!r} returned an observation of {_described(obs)}, but its observation_space="
        f"{env.observation_space} has {_shape(env.observation_space)}: fix one of them"
    )


def _described(obs: Any) -> str:
    found = _shape_of(obs)
    return "unequal rows" if found is None else f"shape {found}"


def _shape_of(obs: Any) -> Any:
    """The shape of an observation, or those of its parts; ``None``: its rows are unequal."""
    try:
        return {key: np.shape(sub) for key, sub in obs.items()} if isinstance(obs, dict) else np.shape(obs)
    except ValueError:
        return None


def _shape(space: spaces.Space) -> Any:
    return {key: sub.shape for key, sub in space.items()} if isinstance(space, spaces.Dict) else space.shape
