"""Workers: processes with environments, which can be killed and may die, and whose errors are answers.

A worker steps its environments one after another. Messages go through a pipe. A step of all environments is an empty
message, with the actions in shared memory; the answer is empty, too, unless an info has more than the flag of a time
limit, an episode has ended, or an environment has failed.
"""

import atexit
import copy
import multiprocessing
import os
import pickle
import random
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import c_int
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
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
    check_info,
    check_obs,
    check_reward,
    check_spaces,
    check_step_info,
    counted,
    explanation,
)
from ppo_plus.envs.resumable.attributes import State
from ppo_plus.envs.resumable.state import as_resumable
from ppo_plus.envs.supervised.shared_memory import SharedArrays, write_row
from ppo_plus.policy.masking import METHOD
from ppo_plus.process import assigned
from ppo_plus.require import is_disk_full
from ppo_plus.trees import mapped

#: Seconds for which a process that has stepped looks for the next step without sleeping: to wake it takes longer.
LOOKING = 3e-4
#: Seconds that an environment may take to close.
CLOSING = 5.0


@dataclass(frozen=True)
class Fault:
    """The answer of an environment that failed: the reason, as the predicate of a sentence about it, and its error."""

    reason: str
    cause: BaseException | None = None
    #: Whether its process has ended, with all environments in it.
    loses_process: bool = False
    #: Whether it returned NaN or infinity.
    not_finite: bool = False
    #: What to do, if a fresh environment would not help.
    remedy: str = ""


@dataclass(frozen=True)
class CallerError:
    """The answer if the caller's arguments or the machine, and not the environment, are the cause of an error."""

    error: Exception


class GuardedEnv:
    """One environment, which answers commands and raises no errors, for another process."""

    def __init__(self, make: Callable[[], gym.Env]):
        self._make = make
        self.env: Any = None

    def answer(self, command: str, *arguments: Any) -> Any:
        """The value, a :class:`Fault` or a :class:`CallerError`."""
        try:
            return getattr(self, command)(*arguments)
        except InvalidOutput as error:
            return Fault(str(error), not_finite=error.not_finite)
        except Exception as error:
            # A `Monitor` may fill the disk.
            if not _is_duty(command, *arguments) or isinstance(error, MemoryError) or is_disk_full(error):
                return CallerError(_sendable(error))
            # Before the environment is made, there is none to name.
            explained = None if command == "make" else explanation(error, self.env)
            reason = f"raised {error!r}" if explained is None else f"made a mistake: {explained}"
            remedy = "" if explained is None else "A fresh environment would do the same"
            cause = RemoteTraceback("\n" + "".join(traceback.format_exception(error)))
            return Fault(reason, cause, remedy=remedy)

    def make(self, again: bool) -> tuple[str, tuple[spaces.Space, spaces.Space]]:
        """Make the environment; returns its name and spaces. If it is made again, monitors append to their files."""
        writer = monitor.ResultsWriter
        if self.env is not None:
            with suppress(Exception):
                self.env.close()
        appending: Any = lambda *args, **named: writer(*args, **named | {"override_existing": False})  # noqa: E731
        with assigned(monitor, **{"ResultsWriter": appending} if again else {}):
            self.env = _patch_env(self._make())
        check_spaces(self.env)
        self._resumable = as_resumable(self.env)
        # Kept, since wrappers would look it up in what they wrap at each step.
        self._space = self.env.observation_space
        return str(self.env.unwrapped), (self._space, self.env.action_space)

    def reset(self, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        obs, info = self._resumable.reset(**arguments)
        check_info(info)
        return check_obs(obs, self._space), info

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any], Any]:
        """As a ``VecEnv``, except that an episode ends with its last observation, and the answer of the next reset."""
        obs, reward, terminated, truncated, info = self._resumable.step(action)
        obs = check_obs(obs, self._space)
        reward = check_reward(reward)
        check_step_info(info)
        done = bool(terminated or truncated)
        info[TIMEOUT] = bool(truncated and not terminated)
        if not done:
            return obs, reward, done, info, None
        # Copied, since the reset may write into them.
        info = copy.deepcopy(info) | {"terminal_observation": mapped(np.copy, obs)}
        with counted(self.env, info):
            first = self.answer("reset", {})
        if isinstance(first, CallerError):
            raise first.error
        return obs, reward, done, info, first

    def close(self) -> None:
        if self.env is not None:
            self.env.close()

    def env_method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr(name)(*arguments, **named)

    def resumable_method(self, name: str, arguments: tuple[State, ...]) -> State | str | None:
        return getattr(self._resumable, name)(*arguments)  # type: ignore[no-any-return]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper]) -> bool:
        return is_wrapped(self.env, wrapper_class)


def _is_duty(*call: Any) -> bool:
    """Whether an error in a call is the environment's fault, and not the caller's: also in making it again."""
    return call[0] in ("step", "reset") or call[:2] in (("make", True), ("env_method", METHOD))


def _sendable(error: Exception) -> Exception:
    """An error as one of Python's built-in classes, which can be sent to another process."""
    kinds = (AttributeError, KeyError, IndexError, TypeError, ValueError, MemoryError, RuntimeError, OSError, Exception)
    sendable = next(kind for kind in kinds if isinstance(error, kind))(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        sendable = OSError(error.errno, error.strerror)
    sendable.add_note("".join(traceback.format_exception(error)))
    return sendable


class Share:
    """The environments of a worker, in its process.

    :param makes: functions that make them
    :param first: number of the first one among those of all workers
    :param current: number of the environment that is called now, which the other process reads
    """

    def __init__(self, makes: Sequence[Callable[[], gym.Env]], first: int, current: c_int):
        self.envs = dict(enumerate(map(GuardedEnv, makes), first))
        self.first, self.current = first, current
        #: What is shared, once both processes have it.
        self.arrays: Any = None
        #: Whether action masks that fit were asked for: from then on, each step writes them.
        self.is_masked = False

    def answer(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """The answers of the environments that are called, by number; in a step, those not in shared memory."""
        if command == "share":
            observation_space, action_space, name = arguments[self.first]
            self.arrays = SharedArrays(observation_space, action_space, len(self.envs), name)
            return {}
        answers = {}
        for i, own in arguments.items():
            self.current.value = i
            answer = self.envs[i].answer(command, *own)
            self.is_masked |= command == "env_method" and own[0] == METHOD and self._fits(answer)
            if command == "step" and not isinstance(answer, (Fault, CallerError)):
                answer = self._shared(i, *answer)
            if command != "step" or answer is not None:
                answers[i] = answer
        return answers

    def _shared(self, i: int, obs: Any, reward: float, done: bool, info: dict[str, Any], first: Any) -> Any:
        """Write a step's result into shared memory, also the first observation of the next episode.

        :return: what remains: the info, and at the end of an episode that of the next reset, or the fault in it;
            ``None``: nothing
        """
        arrays, row = self.arrays, i - self.first
        mask = self.envs[i].answer("env_method", METHOD, (), {}) if self.is_masked else None
        if has_mask := self._fits(mask):
            arrays.flags[row, 3:] = mask
        arrays.rewards[row], arrays.flags[row, :3] = reward, (done, info[TIMEOUT], has_mask)
        if isinstance(first, tuple):
            obs, first = first
        write_row(arrays.obs, row, obs)
        return (info, first) if done or len(info) > 1 else None

    def _fits(self, mask: Any) -> bool:
        """Whether shared memory can have an action mask."""
        return isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (bool, self.arrays.flags[0, 3:].shape)


class Worker:
    """Runs environments in a separate process, started as by SB3 by default.

    :param makes: functions that make the environments
    :param start_method: of the process; ``None``: SB3's
    :param first: number of its first environment among those of all workers
    :param timeout: seconds that a step may take; ``None``: no limit
    """

    def __init__(
        self, makes: Sequence[Callable[[], gym.Env]], start_method: str | None, first: int, timeout: float | None
    ):
        default = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.makes, self.members, self.timeout = makes, range(first, first + len(makes)), timeout
        self.context: Any = multiprocessing.get_context(start_method or default)
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "a daemonic process, such as those of multiprocessing.Pool, cannot start processes for environments: "
                'use vec_env="dummy" in it, or a concurrent.futures.ProcessPoolExecutor instead'
            )
        self.process: Any = None
        self.arrays: SharedArrays | None = None
        self.start()

    def start(self, again: bool = False) -> None:
        self.remote, theirs = self.context.Pipe()
        self._current = self.context.RawValue("i", self.members.start)
        if self.context.get_start_method() == "fork":
            # One tracker of shared memory for both processes, which others have anyway. Windows has neither.
            resource_tracker.ensure_running()
        makes = CloudpickleWrapper(list(self.makes))
        arguments = (theirs, self.remote, makes, self.members.start, self._current)
        self.process = self.context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        # At once: the end of the process is noticed only if no other process has this end of the pipe.
        theirs.close()
        self.waiting = self.is_made = self.has_hung = False
        self.send("make", dict.fromkeys(self.members, (again,)))

    def share(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Share arrays with the process, once its environments are made."""
        self.arrays = SharedArrays(observation_space, action_space, len(self.makes))
        try:
            self.send("share", {self.members.start: (observation_space, action_space, self.arrays.memory.name)})
            self.receive(None)
        finally:
            # Both have it, or the other one never will.
            self.arrays.memory.unlink()

    def send(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Call environments, given the arguments of each by its number."""
        self._send(_pickled((command, arguments)), next(iter(arguments)))

    def step(self, actions: np.ndarray) -> None:
        """Step all environments, with actions in an array that is shared."""
        assert self.arrays is not None
        self._ready()
        self.arrays.actions[...] = actions
        self._send(b"", self.members.start)

    def _ready(self) -> None:
        if self.waiting:
            # An interrupt came before the last answer was read, which would be taken for that of the next message.
            self.receive(self.timeout)
            if self.waiting:
                self.stop(time.monotonic())

    def _send(self, message: bytes, first: int) -> None:
        self._ready()
        self.waiting, self._first, self._sent = True, first, time.monotonic()
        try:
            self.remote.send_bytes(message)
        except OSError:
            """The process has ended, which `receive` notices."""

    def receive(self, seconds: float | None) -> dict[int, Any]:
        """The answers to the last message by number, or the fault of the environment that has lost the process.

        :param seconds: that each environment may take; ``None``: no limit
        """
        if self.process is None or self.has_hung:
            return {self.members.start: Fault("was ended because it hung", loses_process=True)}
        try:
            if seconds is not None and (hanging := self._hanging(seconds)) is not None:
                self.has_hung = True
                self.process.kill()
                return {hanging: Fault(f"gave no answer within {seconds:g} s", loses_process=True)}
            message = self.remote.recv_bytes()
            answers = pickle.loads(message) if message else {}
            self.is_made = True
        except (EOFError, OSError):
            answers = {self._current.value: self._death()}
        self.waiting = False
        return answers

    def _hanging(self, seconds: float) -> int | None:
        """The environment that has taken longer than so many seconds; ``None``: there is an answer."""
        current, wait = self._first, self._sent + seconds - time.monotonic()
        while not self.remote.poll(max(0.0, wait)):
            if self._current.value == current:
                return int(current)
            current, wait = self._current.value, seconds
        return None

    def _death(self) -> Fault:
        self.process.join(CLOSING)
        code = self.process.exitcode
        if code == -signal.SIGTERM:
            # If all processes of a job are ended, this one is about to end, too, and the environment is not at fault.
            time.sleep(1.0)
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        if self.is_made:
            return Fault(f"died with its process ({name})", loses_process=True)
        remedy = (
            'A script that starts processes has to be a file that runs its code within if __name__ == "__main__": '
            '(or use vec_env="dummy")'
        )
        return Fault(f"died with its process ({name}) before it was made", loses_process=True, remedy=remedy)

    def end(self) -> None:
        """Ask the process to end."""
        with suppress(OSError):
            self.remote.send_bytes(_pickled(("close", {})))

    def stop(self, deadline: float) -> None:
        """End the process, by force where it has not ended by itself before the deadline."""
        if self.process is None:
            return
        self.end()
        with suppress(Exception):
            # Answers are read, since a process that cannot write them does not end.
            while self.remote.poll(max(0.0, deadline - time.monotonic())):
                self.remote.recv_bytes()
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join(CLOSING)
        self.remote.close()
        if self.arrays is not None:
            self.arrays.close()
            self.arrays = None
        if self.process.exitcode is not None:
            self.process.close()
        self.process = None


def _pickled(message: Any) -> bytes:
    """A message for ``recv``. With later protocols read-only arrays stay so, but wrappers write into infos."""
    return pickle.dumps(message, 4)


def _serve(
    remote: Connection, parent_remote: Connection, makes: CloudpickleWrapper, first: int, current: c_int
) -> None:
    """The main function of a worker process: answer messages until the other end of the pipe is closed."""
    # Ctrl-C is sent to all processes of a terminal; the one that trains handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_remote.close()
    # A fork has the generators of its parent, the same in all processes.
    np.random.seed((int(np.random.get_state()[1][0]) + first) % 2**32)  # type: ignore[index]
    random.seed(int(np.random.randint(2**31)))
    # `recv_bytes` notices that the parent has ended; an environment that hangs does not.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    share = Share(makes.var, first, current)
    command, message = "", b"-"
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while command != "close":
            if not message:
                _look_for_step(remote)
            message = remote.recv_bytes()
            if message:
                command, arguments = pickle.loads(message)
            else:
                # Copies: an environment may keep its action.
                actions = ((action.copy(),) for action in share.arrays.actions)
                command, arguments = "step", dict(enumerate(actions, first))
            remote.send_bytes(_reply(command, arguments, share.answer(command, arguments)))
    for env in share.envs.values():
        env.answer("close")


def _look_for_step(remote: Connection) -> None:
    """Wait for the next message without sleeping, for :data:`LOOKING`; other processes may have the core meanwhile."""
    if not hasattr(select, "poll"):
        return
    poller = select.poll()
    poller.register(remote, select.POLLIN)
    end = time.perf_counter() + LOOKING
    while not poller.poll(0) and time.perf_counter() < end:
        os.sched_yield()


def _reply(command: str, arguments: Mapping[int, tuple[Any, ...]], answers: dict[int, Any]) -> bytes:
    try:
        return _pickled(answers) if answers else b""
    except Exception:
        return _pickled({i: _sendable_answer(answer, command, *arguments[i]) for i, answer in answers.items()})


def _sendable_answer(answer: Any, command: str, *arguments: Any) -> Any:
    try:
        _pickled(answer)
    except Exception as error:
        reason = f"returned what cannot be sent to another process: {error!r}"
        if command == "make":
            return Fault(reason)
        if _is_duty(command, *arguments):
            return Fault(reason, remedy="Return numbers, strings and arrays")
        return CallerError(TypeError(f"{command}{arguments!r:.200} {reason}"))
    return answer


@atexit.register
def _end_processes() -> None:
    """End the processes of environments that were not closed, also those of SB3 and Gymnasium. After this function,
    Python asks them to end and waits, but those that draw with pygame do not listen."""
    processes = [process for process in multiprocessing.active_children() if process.daemon]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + 1.0
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    # Time for the process to close the environment and end by itself.
    time.sleep(CLOSING)
    os._exit(1)
