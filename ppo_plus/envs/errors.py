"""Mistakes of environments as errors that say what to do: the old gym's interface, observations of the wrong shape,
numbers that are not finite.

Without this module, such a mistake is an error in the code of Stable-Baselines3 or Gymnasium (``could not broadcast``,
``too many values to unpack``), or no error at all: NumPy repeats a number until it fills the shape of the space.
"""

import copy
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import ClipAction, TransformReward
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, unwrap_vec_normalize

from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.normalization import MOMENTS
from ppo_plus.envs.outputs import CONVERT, RESET, InvalidOutput, as_reward, check_shape
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.observations import canonical_space
from ppo_plus.require import NotFiniteError, require_finite

SEED = f"reset() must take seed and options, as in Gymnasium: def reset(self, *, seed=None, options=None), {CONVERT}"
STEP = (
    "step() must return (observation, reward, terminated, truncated, info), as in Gymnasium, and not one done, as in "
    f"the old gym: a time limit is truncated, every other end terminated, {CONVERT}"
)
#: Whose code calls environments: an error raised there about what an environment returned is that environment's.
CALLERS = ("stable_baselines3.", "gymnasium.", "ppo_plus.envs.")


class CheckedEnvs:
    """Checks of what environments return, and a context in which their mistakes say what to do: the old gym's interface
    is a ``TypeError``, an observation of another shape than its space a ``ValueError``.

    A ``DummyVecEnv`` takes the steps of a :class:`~ppo_plus.envs.lean_vec_env.LeanVecEnv` meanwhile. Any other error
    gets a note on which environment raised it, and after how many steps, which ``step`` returns. The statistics of a
    ``VecNormalize`` are copied at the start, and put back if it has counted a number that is not finite.
    """

    def __init__(self, env: VecEnv, step: Callable[[], int]):
        self._step, self._env, self._normalize = step, env, unwrap_vec_normalize(env)
        values = vars(self._normalize) if self._normalize else {}
        self._statistics = {name: copy.deepcopy(values[name]) for name in (*MOMENTS, "returns") if name in values}
        owner: Any = env.unwrapped
        if not isinstance(owner, DummyVecEnv):
            owner = getattr(getattr(owner, "env", None), "unwrapped", None)
        #: What has the list ``envs`` of single environments; ``None``: they cannot be reached.
        self._owner = owner if isinstance(owner, (DummyVecEnv, SyncVectorEnv)) else None
        #: Methods that the owner gets inside the context, unless a subclass or the object itself replaces them.
        self._methods: dict[str, Any] = {}
        cls = type(owner)
        if issubclass(cls, DummyVecEnv) and cls._save_obs is DummyVecEnv._save_obs:
            names = [name for name in ("reset", "step_wait") if getattr(cls, name) is getattr(DummyVecEnv, name)]
            self._methods = {name: getattr(LeanVecEnv, name).__get__(owner) for name in names}

    def __enter__(self) -> None:
        for name, method in self._methods.items():
            vars(self._owner).setdefault(name, method)
            vars(self._owner)["current"] = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        for name, method in self._methods.items():
            if vars(self._owner).get(name) is method:
                delattr(self._owner, name)
        if isinstance(error, (EOFError, ConnectionError)) and isinstance(self._env.unwrapped, SubprocVecEnv):
            raise _death(self._env.unwrapped, self._step()) from error
        if self._owner is None or not isinstance(error, Exception):
            return
        i = error.env if isinstance(error, NotFiniteError) else getattr(self._owner, "current", None)
        found = explanation(error, self._owner if i is None else self._owner.envs[i])
        if i is not None and not hasattr(error, "__notes__"):
            env = self._owner.envs[i].unwrapped
            seed = getattr(env, "_np_random_seed", None)
            (found or error).add_note(f"It was {described(i, env, seed, self._step())}.")
        if found is not None:
            raise found from error

    def restore(self) -> None:
        """Put the statistics of a ``VecNormalize`` back."""
        if self._normalize is not None:
            vars(self._normalize).update(copy.deepcopy(self._statistics))

    def require_finite(self, obs: Any, rewards: np.ndarray | None = None) -> None:
        """Check the latest observations and rewards, before and after normalization.

        :raises FloatingPointError: not finite; see :func:`~ppo_plus.require.require_finite`
        """
        step = self._step()
        if self._normalize is not None:
            try:
                require_finite("observation", self._normalize.old_obs, step)
                if rewards is not None:
                    require_finite("reward", self._normalize.old_reward, step)
            except FloatingPointError:
                self.restore()
                raise
        require_finite("observation", obs, step)
        if rewards is not None:
            require_finite("reward", rewards, step)

    def check_reset(self, obs: Any) -> None:
        """Check what the environments returned at the start of their episodes, if these are started.

        :raises TypeError: an info is not a dict
        :raises ValueError: observations have another shape than their space
        :raises FloatingPointError: observations are not finite
        """
        # An observation of two numbers can be unpacked.
        wrong = [each for each in getattr(self._env.unwrapped, "reset_infos", []) if not isinstance(each, dict)]
        if wrong:
            raise TypeError(f"env={self._env!r} returned {wrong[0]!r} as info: {RESET}")
        if obs is not None:
            check_shape(obs, self._env.observation_space, self._env.num_envs)
            self.require_finite(obs)


def _death(env: SubprocVecEnv, step: int) -> RuntimeError:
    """The error that says which worker processes have died; the others are ended."""
    for process in env.processes:
        process.join(0.5)
    codes = {i: process.exitcode for i, process in enumerate(env.processes) if process.exitcode is not None}
    for process in env.processes:
        process.kill()
        process.join(1.0)
    env.closed = True  # its `close` would wait for answers
    dead = " and ".join(f"environment {i} (exit code {code})" for i, code in codes.items())
    return RuntimeError(
        f"the worker process of {dead or 'an environment'} of SubprocVecEnv died at step {step}, and the others were "
        "ended. With ppo_plus.SupervisedVecEnv(..., restarts=N), training continues with a new environment"
    )


def _number(reward: Any) -> Any:
    return reward if isinstance(reward, (float, int, np.number)) else as_reward(reward)


class Numbers(TransformReward):
    """Makes numbers of rewards for a ``Monitor``, which adds them up and takes no arrays or lists of one number."""

    def __init__(self, env: gym.Env):
        super().__init__(env, _number)


def take_any_number(env: gym.Env) -> None:
    """Put :class:`Numbers` into each ``Monitor`` of an environment's wrappers."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Monitor) and not isinstance(env.env, Numbers):
            env.env = Numbers(env.env)
        env = env.env


def check_spaces(env: Any) -> None:
    """:raises ValueError: PPO_Plus does not support the spaces of an environment"""
    canonical_space(env.observation_space)
    try:
        make_distribution(env.action_space)
    except ValueError as error:
        if isinstance(env, gym.Env) and is_wrapped(env, ClipAction):
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


def described(i: int, env: Any, seed: int | None, step: int) -> str:
    """Environment ``i`` in a message: what it is, the seed of its last reset if it is known, the steps taken."""
    return f"environment {i}, {env}, {'unseeded' if seed is None else f'seed {seed}'}, step {step}"


def explanation(error: Exception, env: Any) -> Exception | None:
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
    if function == "step" and ("float()" in text or "0-dimensional" in text):
        # A Monitor adds rewards up.
        return ValueError(f"{name} returned something other than a number as reward: return one, such as reward.item()")
    if function == "reset" and re.search("unexpected keyword argument '(seed|options)'", text):
        return TypeError(f"{name}: {SEED}")
    if "unpack" not in text:
        return None
    # A step may reset, and a reset may step: the number of values says which of them returned too many or too few.
    is_step = "expected 5" in text or (function == "step" and "expected 2" not in text)
    return TypeError(f"{name}: {STEP if is_step else RESET}")
