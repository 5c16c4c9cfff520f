"""Mistakes of environments as errors that say what to do: the old gym's interface, observations of the wrong shape.

Without this module, such a mistake is an error in the code of Stable-Baselines3 or Gymnasium (``could not broadcast``,
``too many values to unpack``), or no error at all: NumPy repeats a number until it fills the shape of the space.
"""

import math
import re
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from ppo_plus.envs.normalization import Statistics
from ppo_plus.require import NotFiniteError

#: What to do about the old gym's interface where its code cannot be changed.
CONVERT = "or convert an environment of the old gym by shimmy.GymV21CompatibilityV0(env=env)"
RESET = (
    "reset() must return (observation, info), as in Gymnasium, and not an observation alone, as in the old gym: "
    f"return observation, {{}}, {CONVERT}"
)
SEED = f"reset() must take seed and options, as in Gymnasium: def reset(self, *, seed=None, options=None), {CONVERT}"
STEP = (
    "step() must return (observation, reward, terminated, truncated, info), as in Gymnasium, and not one done, as in "
    f"the old gym: a time limit is truncated, every other end terminated, {CONVERT}"
)
#: Whose code calls environments: an error raised there about what an environment returned is that environment's.
CALLERS = ("stable_baselines3.", "gymnasium.", "ppo_plus.envs.")


class CheckedEnvs:
    """A context in which the single environments of a ``DummyVecEnv`` or ``SyncVectorEnv`` are checked at each call.

    Their mistakes are raised as errors that say what to do. Any other error gets a note on which environment raised it.

    :param env: the environments, in vector wrappers or not
    :param step: returns how many steps each of them has taken
    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: an observation has another shape than its space
    """

    def __init__(self, env: VecEnv, step: Callable[[], int]):
        self._step = step
        self._owner = _owner(env)
        #: The environments and, as long as the context is entered, what stands in their place.
        self._envs: list[gym.Env] = []
        self._checked: list[gym.Env] = []

    def __enter__(self) -> None:
        if self._owner is not None:
            self._list: list[gym.Env] = self._owner.envs
            # Compared each time, since callbacks may exchange environments between two steps.
            if self._list != self._envs:
                self._envs = list(self._list)
                self._checked = [_Checked(env, self._note(i), _stores(self._owner)) for i, env in enumerate(self._envs)]
            self._owner.envs = self._checked

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        if self._owner is not None:
            self._owner.envs = self._list
            if isinstance(error, NotFiniteError):
                error.add_note(self._note(error.env)())

    def _note(self, i: int) -> Callable[[], str]:
        def note() -> str:
            env = self._envs[i].unwrapped
            return f"It was {described(i, env, getattr(env, '_np_random_seed', None), self._step())}."

        return note


class _Checked(gym.Wrapper):
    """An environment that is checked at each call.

    :param env: the environment
    :param note: what to add to its errors
    :param checks_shape: whether observations are compared with its space
    """

    def __init__(self, env: gym.Env, note: Callable[[], str], checks_shape: bool):
        super().__init__(env)
        self._note, self._checks_shape = note, checks_shape
        self._shape = _shape(env.observation_space)

    def reset(self, **kwargs: Any) -> Any:
        try:
            obs, info = result = self.env.reset(**kwargs)
            # An observation of two numbers can be unpacked.
            if not isinstance(info, dict):
                raise TypeError(f"env={self.unwrapped!r}: {RESET}")
            if type(obs) is not np.ndarray or obs.shape != self._shape:
                self._check(obs)
        except Exception as error:
            self._explain(error)
            raise
        return result

    def step(self, action: Any) -> Any:
        try:
            obs, _, _, _, _ = result = self.env.step(action)
            if type(obs) is not np.ndarray or obs.shape != self._shape:
                self._check(obs)
        except Exception as error:
            self._explain(error)
            raise
        return result

    def _check(self, obs: Any) -> None:
        """The comparison for all kinds of observations; arrays are compared before, since this takes longer."""
        if self._checks_shape and not _fits(obs, self.observation_space):
            raise ValueError(
                f"env={self.unwrapped!r} returned an observation of {_described_shape(obs)}, but its "
                f"observation_space={self.observation_space} has {self._shape}: fix one of them"
            )

    def _explain(self, error: Exception) -> None:
        """:raises TypeError: the error comes from the old gym's interface"""
        found = explanation(error, self.env)
        (found or error).add_note(self._note())
        if found is not None:
            raise found from error


def _owner(env: VecEnv) -> Any:
    """What has the list ``envs`` of single environments; ``None``: they cannot be reached."""
    found: Any = env.unwrapped
    if not isinstance(found, DummyVecEnv):
        found = getattr(getattr(found, "env", None), "unwrapped", None)
    return found if isinstance(found, (DummyVecEnv, SyncVectorEnv)) else None


def _stores(owner: Any) -> bool:
    """Whether it stores observations as they are; a subclass may repair those of another shape."""
    return type(owner).__module__.startswith(CALLERS)


def described(i: int, env: Any, seed: int | None, step: int) -> str:
    """An environment in a message.

    :param i: its index
    :param env: its name, or itself
    :param seed: the seed that it was last reset with; ``None``: with none, or with one that is not known
    :param step: how many steps it has taken
    """
    return f"environment {i}, {env}, {'unseeded' if seed is None else f'seed {seed}'}, step {step}"


def explanation(error: Exception, env: gym.Env) -> Exception | None:
    """What an error of the code that called an environment means, with the remedy.

    :param error: the error
    :param env: the environment
    :return: ``None``: it is not a mistake known here, or the environment's own code raised it
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if not str(frame.f_globals.get("__name__", "")).startswith(CALLERS):
        return None
    function, text = frame.f_code.co_name, str(error)
    if function == "reset" and re.search("unexpected keyword argument '(seed|options)'", text):
        return TypeError(f"env={env.unwrapped!r}: {SEED}")
    if "unpack" not in text:
        return None
    # A step may reset, and a reset may step: the number of values says which of them returned too many or too few.
    is_step = "expected 5" in text or (function == "step" and "expected 2" not in text)
    return TypeError(f"env={env.unwrapped!r}: {STEP if is_step else RESET}")


def check_reset(env: VecEnv, obs: Any, step: int, before: Statistics) -> None:
    """Check what environments returned at the start of their episodes.

    :param env: the environments
    :param obs: their observations; ``None``: the episodes are not started yet
    :param step: how many steps each of them has taken, for messages
    :param before: their statistics of before, which are put back where observations are not finite
    :raises TypeError: an environment has the old gym's interface
    :raises ValueError: the observations have another shape than their space
    :raises FloatingPointError: they are not finite
    """
    # An observation of two numbers can be unpacked.
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


def fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether the shapes are the same, where a single number may also come as an array of one, and the reverse."""
    return found == expected or math.prod(found) == math.prod(expected) == 1


def _fits(obs: Any, space: spaces.Space) -> bool:
    """Whether one observation, or each part of it, has the shape of its space."""
    if isinstance(space, spaces.Dict):
        return isinstance(obs, dict) and all(key in obs and _fits(obs[key], sub) for key, sub in space.items())
    if isinstance(space, spaces.Tuple):
        return len(obs) == len(space) and all(map(_fits, obs, space))
    try:
        return fits(np.shape(obs), space.shape or ())
    except ValueError:  # unequal rows
        return False


def _described_shape(obs: Any) -> str:
    try:
        return f"shape { {key: np.shape(sub) for key, sub in obs.items()} if isinstance(obs, dict) else np.shape(obs) }"
    except ValueError:
        return "unequal rows"


def _shape(space: spaces.Space) -> Any:
    return {key: _shape(sub) for key, sub in space.items()} if isinstance(space, spaces.Dict) else space.shape
