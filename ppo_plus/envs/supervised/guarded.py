"""One environment, guarded: whatever it does is an answer."""

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common import monitor
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from ppo_plus.envs.errors import RESET, explanation
from ppo_plus.envs.supervised.faults import DISK_FULL, Fault, Wrong, check_obs, check_reward
from ppo_plus.policy.masking import METHOD


class _Elsewhere(Exception):
    """An error in another process, as its traceback."""


@dataclass(frozen=True)
class Refusal:
    """The answer where whoever asked, or the machine, is to blame.

    :param error: what to raise
    """

    error: Exception


class Guarded:
    """One environment, which answers commands and raises nothing.

    :param make: makes it
    :param elsewhere: whether the answers go to another process, which not every error does
    """

    #: Commands in which an error is the environment's fault, not that of whoever asks.
    DUTIES = ("make", "step", "reset")

    def __init__(self, make: Callable[[], gym.Env], elsewhere: bool):
        self._make, self._elsewhere = make, elsewhere

    def answer(self, command: str, *arguments: Any) -> Any:
        """The value, a :class:`Fault` or a :class:`Refusal`."""
        try:
            return getattr(self, command)(*arguments)
        except Wrong as error:
            return Fault(str(error), not_finite=error.not_finite)
        except Exception as error:
            is_duty = command in self.DUTIES or (command == "env_method" and arguments[0] == METHOD)
            if not is_duty or isinstance(error, MemoryError) or getattr(error, "errno", None) in DISK_FULL:
                return Refusal(_sendable(error) if self._elsewhere else error)
            # Before the environment is made, there is none to name.
            found = None if command == "make" else explanation(error, self.env)
            reason = f"raised {error!r}" if found is None else f"made a mistake: {found}"
            return Fault(reason, _Elsewhere(_traceback(error)) if self._elsewhere else error)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def make(self, again: bool) -> tuple[str, tuple[spaces.Space, spaces.Space]]:
        """Make the environment.

        :param again: whether there was one before, with whose files a ``Monitor`` is to go on
        :return: its name, and its spaces
        """
        with _appending() if again else nullcontext():
            self.env: Any = _patch_env(self._make())
        # Wrappers would ask what they wrap for it, at each step.
        self._space = self.env.observation_space
        return str(self.env.unwrapped), (self._space, self.env.action_space)

    def reset(self, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**arguments)
        if not isinstance(info, dict):
            raise Wrong(f"returned {info!r:.200} as info: {RESET}")
        check_obs(obs, self._space)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any], Any]:
        """
        :return: as of a ``VecEnv``, but behind the end of an episode the last observation, and besides what the reset
            has answered
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        check_obs(obs, self._space)
        reward = check_reward(reward)
        done = bool(terminated or truncated)
        info["TimeLimit.truncated"] = bool(truncated and not terminated)
        if not done:
            return obs, reward, done, info, None
        # Copied, since the reset may write into it.
        info["terminal_observation"] = copy.deepcopy(obs)
        first = self.answer("reset", {})
        if isinstance(first, Refusal):
            raise first.error
        return obs, reward, done, info, first

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def has_attr(self, name: str) -> bool:
        try:
            self.env.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def get_attr(self, name: str) -> Any:
        return self.env.get_wrapper_attr(name)

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self.env, name, value)

    def env_method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr(name)(*arguments, **named)

    def is_wrapped(self, wrapper_class: type[gym.Wrapper]) -> bool:
        return is_wrapped(self.env, wrapper_class)


@contextmanager
def _appending() -> Iterator[None]:
    """Monitors that are made meanwhile go on with the files that are there."""
    writer = monitor.ResultsWriter

    def append(*arguments: Any, **named: Any) -> monitor.ResultsWriter:
        return writer(*arguments, **{**named, "override_existing": False})

    monitor.ResultsWriter = append  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        monitor.ResultsWriter = writer  # type: ignore[misc]


def _traceback(error: BaseException) -> str:
    return "\n" + "".join(traceback.format_exception(error))


def _sendable(error: Exception) -> Exception:
    """An error as one of Python's own, which can be sent to another process."""
    found: Exception
    if isinstance(error, OSError) and error.errno is not None:
        found = OSError(error.errno, error.strerror, error.filename)
    else:
        kind = next(kind for kind in (AttributeError, TypeError, ValueError, MemoryError, RuntimeError, Exception)
                    if isinstance(error, kind))  # fmt: skip
        found = kind(str(error))
    found.add_note(_traceback(error))
    return found
