"""Workers: environments in separate processes, which can be killed and may die, and whose errors are answers."""

import copy
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common import monitor
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.common.vec_env.patch_gym import _patch_env

from ppo_plus.envs.checks import (
    TIMEOUT,
    InvalidOutput,
    as_array,
    check_info,
    check_obs,
    check_reward,
    counted,
    explanation,
    prepare,
)
from ppo_plus.policy.masking import METHOD
from ppo_plus.require import is_disk_full
from ppo_plus.trees import mapped

#: Seconds that an environment may take to close.
CLOSING = 5.0


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
            # A `Monitor` may fill the disk.
            if not is_duty or isinstance(error, MemoryError) or is_disk_full(error):
                return CallerError(_sendable(error))
            # Before the environment is made, there is none to name.
            explained = None if command == "make" else explanation(error, self.env)
            reason = f"raised {error!r}" if explained is None else f"made a mistake: {explained}"
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
        prepare(self.env)
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
        info[TIMEOUT] = bool(truncated and not terminated)
        if not done:
            return obs, reward, done, info, None
        # Copied, since the reset may write into them.
        info = copy.deepcopy(info) | {"terminal_observation": mapped(as_array, obs)}
        with counted(self.env, info):
            first = self.answer("reset", {})
        if isinstance(first, CallerError):
            raise first.error
        return obs, reward, done, info, first

    def close(self) -> None:
        self.env.close()

    def set_attr(self, name: str, value: Any) -> None:
        self.env.set_wrapper_attr(name, value)

    def env_method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr(name)(*arguments, **named)

    def is_wrapped(self, wrapper_class: type[gym.Wrapper]) -> bool:
        return is_wrapped(self.env, wrapper_class)


def _sendable(error: Exception) -> Exception:
    """An error as one of Python's built-in classes, which can be sent to another process."""
    kinds = (AttributeError, TypeError, ValueError, MemoryError, RuntimeError, OSError, Exception)
    sendable = next(kind for kind in kinds if isinstance(error, kind))(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        sendable = OSError(error.errno, error.strerror)
    sendable.add_note("".join(traceback.format_exception(error)))
    return sendable


class Worker:
    """Runs the environment that ``make`` makes in a separate process, started as by SB3 by default."""

    def __init__(self, make: Callable[[], gym.Env], start_method: str | None, index: int):
        default = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.make, self.index = make, index
        self.context: Any = multiprocessing.get_context(start_method or default)
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "a daemonic process, such as those of multiprocessing.Pool, cannot start processes for environments: "
                'use vec_env="dummy" in it, or a concurrent.futures.ProcessPoolExecutor instead'
            )
        main = getattr(sys.modules["__main__"], "__file__", None)
        if main == "<stdin>" and self.context.get_start_method() != "fork":
            raise RuntimeError(
                "the processes of environments import the script that starts them, and this one was read from standard "
                'input: save it as a file, or use vec_env="dummy" or start_method="fork"'
            )
        self.process: Any = None
        self.start()

    def start(self, again: bool = False) -> None:
        self.remote, theirs = self.context.Pipe()
        arguments = (theirs, self.remote, CloudpickleWrapper(self.make), self.index)
        self.process = self.context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        # At once: the end of the process is noticed only if no other process has this end of the pipe.
        theirs.close()
        self.waiting = self.is_made = False
        self.send(("make", again))

    def send(self, message: tuple[Any, ...]) -> None:
        if self.waiting:
            # An interrupt came before the last answer was read.
            self.receive(time.monotonic() + CLOSING, CLOSING)
        # Before `waiting` is set: what cannot be pickled is not sent.
        sent = _pickled(message)
        self.waiting = True
        try:
            self.remote.send_bytes(sent)
        except OSError:
            """The process has ended, which `receive` notices."""

    def receive(self, deadline: float | None, seconds: float | None) -> Any:
        if self.process is None:
            return Fault("was ended because it hung")
        try:
            if deadline is not None and not self.remote.poll(max(0.0, deadline - time.monotonic())):
                return Fault(f"gave no answer within {seconds:g} s", hangs=True)
            answer = self.remote.recv()
            self.is_made = True
        except (EOFError, OSError):
            answer = self._death()
        self.waiting = False
        return answer

    def _death(self) -> Fault:
        self.process.join(CLOSING)
        code = self.process.exitcode
        if code == -signal.SIGTERM:
            # If all processes of a job are ended, this one is about to end, too, and the environment is not at fault.
            time.sleep(1.0)
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        if self.is_made:
            return Fault(f"died with its process ({name})")
        remedy = 'A script that starts processes has to run its code within if __name__ == "__main__":'
        return Fault(f"died with its process ({name}) before it was made", remedy=remedy)

    def end(self) -> None:
        """Ask the process to end."""
        with suppress(OSError):
            self.remote.send_bytes(_pickled(("close",)))

    def stop(self, deadline: float) -> None:
        """End the process, by force where it has not ended by itself before the deadline."""
        if self.process is None:
            return
        self.end()
        with suppress(Exception):
            # Answers are read, since a process that cannot write them does not end.
            while self.remote.poll(max(0.0, deadline - time.monotonic())):
                self.remote.recv()
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join(CLOSING)
        self.remote.close()
        if self.process.exitcode is not None:
            self.process.close()
        self.process = None


def _pickled(message: Any) -> bytes:
    """A message for ``recv``. With later protocols read-only arrays stay so, but wrappers write into infos."""
    return pickle.dumps(message, 4)


def _serve(remote: Any, parent_remote: Any, make: CloudpickleWrapper, index: int) -> None:
    """The main function of a worker process: answer commands until the other end of the pipe is closed."""
    # Ctrl-C is sent to all processes of a terminal; the one that trains handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_remote.close()
    # A fork has the generators of its parent, the same in all processes.
    np.random.seed((int(np.random.get_state()[1][0]) + index) % 2**32)  # type: ignore[index]
    random.seed(int(np.random.randint(2**31)))
    # `recv` notices that the parent has ended; an environment that hangs does not.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    guarded = GuardedEnv(make.var)
    message: tuple[Any, ...] = ()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while message != ("close",):
            message = remote.recv()
            answer = guarded.answer(*message)
            try:
                reply = _pickled(answer)
            except Exception as error:
                reply = _pickled(Fault(f"returned what cannot be sent to another process: {error!r}"))
            remote.send_bytes(reply)


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    # Time for the process to close the environment and end by itself.
    time.sleep(CLOSING)
    os._exit(1)
