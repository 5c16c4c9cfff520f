"""One environment whose errors are answers, so that they can be sent to another process."""

import copy
import errno
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common import monitor
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from ppo_plus.envs.checks import InvalidOutput, check_info, check_obs, check_reward, explanation
from ppo_plus.policy.masking import METHOD

#: Error numbers of a full disk, which a ``Monitor`` may write to.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Fault:
    """The answer of an environment that failed: the reason, as the predicate of a sentence about it, and its error."""

    reason: str
    cause: BaseException | None = None
    #: Whether it may still be running.
    hangs: bool = False
    #: Whether it returned NaN or infinity.
    not_finite: bool = False
    #: What to do, if a fresh environment would not help.
    remedy: str = ""


@dataclass(frozen=True)
class CallerError:
    """The answer if the caller's arguments or the machine, and not the environment, are the cause of an error."""

    error: Exception


class _RemoteTraceback(Exception):
    """The traceback of an error in another process."""


class GuardedEnv:
    """One environment, which answers commands and raises no errors, for another process."""

    #: Commands in which an error is the environment's fault, and not the caller's.
    DUTIES = ("make", "step", "reset")

    def __init__(self, make: Callable[[], gym.Env]):
        self._make = make

    def answer(self, command: str, *arguments: Any) -> Any:
        """The value, a :class:`Fault` or a :class:`CallerError`."""
        try:
            return getattr(self, command)(*arguments)
        except InvalidOutput as error:
            return Fault(str(error), not_finite=error.not_finite)
        except Exception as error:
            is_duty = command in self.DUTIES or (command == "env_method" and arguments[0] == METHOD)
            if not is_duty or isinstance(error, MemoryError) or getattr(error, "errno", None) in DISK_FULL:
                return CallerError(_sendable(error))
            # Before the environment is made, there is none to name.
            found = None if command == "make" else explanation(error, self.env)
            reason = f"raised {error!r}" if found is None else f"made a mistake: {found}"
            return Fault(reason, _RemoteTraceback("\n" + "".join(traceback.format_exception(error))))

    def make(self, again: bool) -> tuple[str, tuple[spaces.Space, spaces.Space]]:
        """Make the environment; returns its name and spaces. If it is made again, monitors append to their files."""
        writer = monitor.ResultsWriter
        if again:
            monitor.ResultsWriter = lambda *args, **named: writer(*args, **named | {"override_existing": False})  # type: ignore[assignment, misc]
        try:
            self.env: Any = _patch_env(self._make())
        finally:
            monitor.ResultsWriter = writer  # type: ignore[misc]
        # Kept, since wrappers would look it up in what they wrap at each step.
        self._space = self.env.observation_space
        return str(self.env.unwrapped), (self._space, self.env.action_space)

    def reset(self, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**arguments)
        check_info(info)
        check_obs(obs, self._space)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any], Any]:
        """As a ``VecEnv``, except that an episode ends with its last observation, and the answer of the next reset."""
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
        if isinstance(first, CallerError):
            raise first.error
        return obs, reward, done, info, first

    def close(self) -> None:
        self.env.close()

    def set_attr(self, name: str, value: Any) -> None:
        setattr(self.env, name, value)

    def env_method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr(name)(*arguments, **named)

    def is_wrapped(self, wrapper_class: type[gym.Wrapper]) -> bool:
        return is_wrapped(self.env, wrapper_class)


def _sendable(error: Exception) -> Exception:
    """An error as one of Python's built-in classes, which can be sent to another process."""
    kinds = (AttributeError, TypeError, ValueError, MemoryError, RuntimeError, OSError, Exception)
    found = next(kind for kind in kinds if isinstance(error, kind))(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        found = OSError(error.errno, error.strerror)
    found.add_note("".join(traceback.format_exception(error)))
    return found
