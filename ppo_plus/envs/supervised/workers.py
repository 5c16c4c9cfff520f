"""Workers: processes with environments, which can be killed and may die, and whose errors are answers.

A worker steps its environments one after another. Messages go through a pipe. A step of all environments is an empty
message, with the actions in shared memory; the answer is empty, too, unless an info has more than the flag of a time
limit, an episode has ended, or an environment has failed.
"""

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

from ppo_plus.envs.checks import TIMEOUT, InvalidOutput, check_info, check_obs, check_reward, check_spaces, counted
from ppo_plus.envs.resumable.attributes import State
from ppo_plus.envs.resumable.state import as_resumable
from ppo_plus.envs.supervised.shared_memory import SharedArrays, write_row
from ppo_plus.policy.masking import METHOD
from ppo_plus.process import assigned
from ppo_plus.require import NotFinite, is_disk_full

#: Seconds for which a process that has stepped looks for the next step without sleeping: to wake it takes longer.
LOOKING = 3e-4
#: Seconds that an environment may take to close.
CLOSING = 5.0
#: Commands that an environment has to answer in time, and in which an error is its fault, and not the caller's; and
#: seconds beyond the limit that it may take to be made again.
DUTIES, STARTING = ("step", "reset", METHOD), 60.0
#: What this process shares with the one that trains, by name.
ATTACHED: dict[str, SharedArrays] = {}
# At its exit, Python sends SIGTERM to processes that were not closed, and waits for them. SDL, with which pygame draws,
# would catch the signal, also in processes of SB3 and Gymnasium.
os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")


@dataclass(frozen=True)
class Fault:
    """The answer of an environment that failed: the reason, as the predicate of a sentence about it, and its error."""

    reason: str
    cause: BaseException | None = None
    #: Whether its process has ended, with all environments in it.
    loses_process: bool = False
    #: Whether it returned NaN or infinity.
    not_finite: bool = False


class GuardedEnv:
    """One environment, which answers commands and raises no errors, for another process.

    :param row: its row of shared arrays
    """

    def __init__(self, make: Callable[[], gym.Env], row: int):
        self._make, self._row = make, row
        self.env: Any = None
        #: What is shared, once both processes have it.
        self._arrays: Any = None
        #: Whether action masks that fit were asked for: from then on, each step writes them.
        self._is_masked = False

    def answer(self, command: str, *arguments: Any) -> bytes:
        """The value, a :class:`Fault` or an error of the caller's, pickled; empty if a step is all in shared memory."""
        try:
            value = getattr(self, command)(*arguments)
            return b"" if command == "step" and value is None else _pickled(value)
        except Exception as error:
            return _pickled(_failure(error, command, *arguments))

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

    def share(self, observation_space: spaces.Space, action_space: spaces.Space, k: int, name: str) -> None:
        # Once for all environments of a process, whose open files are few.
        self._arrays = ATTACHED[name] = ATTACHED.get(name) or SharedArrays(observation_space, action_space, k, name)

    def reset(self, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        obs, info = self._resumable.reset(**arguments)
        check_info(info)
        return check_obs(obs, self._space), info

    def step(self, action: Any = None) -> tuple[dict[str, Any], Any] | None:
        """Write a step's result into shared memory, also the first observation of the next episode.

        :param action: ``None``: it is shared, too
        :return: what remains: the info, and at the end of an episode that of the next reset, or the fault in it;
            ``None``: nothing
        """
        # A copy: an environment may keep its action.
        action = self._arrays.actions[self._row].copy() if action is None else action
        obs, reward, terminated, truncated, info = self._resumable.step(action)
        obs, reward = check_obs(obs, self._space), check_reward(reward)
        check_info(info)
        first: dict[str, Any] | Fault | Exception | None = None
        done = bool(terminated or truncated)
        info[TIMEOUT] = bool(truncated and not terminated)
        if done:
            # The `Resumable` has copied both, since the reset may write into them.
            info["terminal_observation"] = obs
            with counted(self.env, info):
                try:
                    obs, first = self.reset({})
                except Exception as error:
                    first = _failure(error, "reset")
                    if isinstance(first, Exception):
                        raise
        mask = self.action_masks() if self._is_masked and not isinstance(first, Fault) else None
        if has_mask := self._fits(mask):
            self._arrays.flags[self._row, 3:] = mask
        self._arrays.rewards[self._row], self._arrays.flags[self._row, :3] = reward, (done, info[TIMEOUT], has_mask)
        write_row(self._arrays.obs, self._row, obs)
        return (info, first) if done or len(info) > 1 else None

    def close(self) -> None:
        if self.env is not None:
            self.env.close()

    def action_masks(self) -> Any:
        mask = self.env.get_wrapper_attr(METHOD)()
        self._is_masked |= self._fits(mask)
        return mask

    def _fits(self, mask: Any) -> bool:
        """Whether shared memory can have an action mask."""
        return isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (bool, self._arrays.flags[0, 3:].shape)

    def env_method(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr(name)(*arguments, **named)

    def resumable_method(self, name: str, arguments: tuple[State, ...]) -> State | str | None:
        return getattr(self._resumable, name)(*arguments)  # type: ignore[no-any-return]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper]) -> bool:
        return is_wrapped(self.env, wrapper_class)


def _failure(error: Exception, command: str, *arguments: Any) -> Fault | Exception:
    """The answer if a command raised an error."""
    if isinstance(error, InvalidOutput):
        return Fault(error.args[0], not_finite=isinstance(error, NotFinite))
    is_duty = command in DUTIES or (command, *arguments) == ("make", True)
    # A `Monitor` may fill the disk.
    if not is_duty or isinstance(error, MemoryError) or is_disk_full(error):
        return _sendable(error)
    return Fault(f"raised {error!r}", RemoteTraceback("\n" + "".join(traceback.format_exception(error))))


def _sendable(error: Exception) -> Exception:
    """An error as one of Python's built-in classes, which can be sent to another process."""
    kinds = (AttributeError, KeyError, IndexError, TypeError, ValueError, MemoryError, RuntimeError, OSError, Exception)
    sendable = next(kind for kind in kinds if isinstance(error, kind))(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        sendable = OSError(error.errno, error.strerror)
    sendable.add_note("".join(traceback.format_exception(error)))
    return sendable


class Worker:
    """Runs environments in a process, started as by SB3 by default; ``first`` is the first one's number among all."""

    def __init__(
        self, makes: Sequence[Callable[[], gym.Env]], start_method: str | None, first: int, timeout: float | None
    ):
        default = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.makes, self.members, self.timeout = makes, range(first, first + len(makes)), timeout
        self.context: Any = multiprocessing.get_context(start_method or default)
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
        self.waiting = self.has_hung = False
        self.send("make", dict.fromkeys(self.members, (again,)))

    def share(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Share arrays with the process, once its environments are made."""
        given = observation_space, action_space, len(self.makes)
        self.arrays = SharedArrays(*given)
        try:
            self.send("share", dict.fromkeys(self.members, (*given, self.arrays.memory.name)))
            self.receive()
        finally:
            # Both have it, or the other one never will.
            self.arrays.memory.unlink()

    def send(self, command: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Call environments, given the arguments of each by its number."""
        seconds = self.timeout if command in DUTIES else None
        if command == "make" and self.timeout is not None:
            seconds = self.timeout + STARTING
        self._send(_pickled((command, arguments)), seconds)

    def step(self, actions: np.ndarray) -> None:
        """Step all environments, with actions in an array that is shared."""
        self._ready()
        if self.arrays is not None:  # the process may have been ended since
            self.arrays.actions[...] = actions
        self._send(b"", self.timeout)

    def _ready(self) -> None:
        if self.waiting:
            # An interrupt came before the last answer was read, which would be taken for that of the next message.
            self.receive()
            if self.waiting:
                self.stop(time.monotonic())

    def _send(self, message: bytes, seconds: float | None) -> None:
        self._ready()
        self.waiting = True
        #: Seconds that each environment may take; ``None``: no limit.
        self._seconds = seconds
        with suppress(OSError):  # the process has ended, which `receive` notices
            self.remote.send_bytes(message)

    def receive(self) -> dict[int, Any]:
        """The answers to the last message by number, or the fault of the environment that has lost the process."""
        if self.process is None or self.has_hung:
            return {self.members.start: Fault("was ended because it hung", loses_process=True)}
        try:
            if self._seconds is not None and not self.remote.poll(self._seconds * len(self.members)):
                self.has_hung = True
                self.process.kill()
                fault = Fault(f"gave no answer within {self._seconds:g} s", loses_process=True)
                return {self._current.value: fault}
            message = self.remote.recv_bytes()
            answers = {i: _unpickled(answer) for i, answer in pickle.loads(message).items()} if message else {}
        except (EOFError, OSError):
            answers = {self._current.value: self._death()}
        self.waiting = False
        return answers

    def _death(self) -> Fault:
        self.process.join(CLOSING)
        code = self.process.exitcode
        if code in (-signal.SIGTERM, 255):  # 255: the server that starts processes has ended
            # If all processes of a job are ended, this one is about to end, too, and the environment is not at fault.
            time.sleep(1.0)
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return Fault(f"died with its process ({name})", loses_process=True)

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


def _unpickled(answer: bytes) -> Any:
    try:
        return pickle.loads(answer)
    except Exception as error:
        return Fault(f"returned an object that cannot be unpickled ({error!r})")


def _serve(remote: Connection, parent: Connection, makes: CloudpickleWrapper, first: int, current: c_int) -> None:
    """The main function of a worker process: answer messages until the other end of the pipe is closed."""
    # Ctrl-C is sent to all processes of a terminal; the one that trains handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent.close()
    # A fork has the generators of its parent, the same in all processes.
    np.random.seed((int(np.random.get_state()[1][0]) + first) % 2**32)  # type: ignore[index]
    random.seed(int(np.random.randint(2**31)))
    # `recv_bytes` notices that the parent has ended; an environment that hangs does not.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    envs = {first + row: GuardedEnv(make, row) for row, make in enumerate(makes.var)}
    command, message = "", b"-"
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while command != "close":
            if not message:
                _look_for_step(remote)
            message = remote.recv_bytes()
            try:
                command, arguments = pickle.loads(message) if message else ("step", dict.fromkeys(envs, ()))
            except Exception as error:  # this process does not know the class of an argument
                remote.send_bytes(_pickled({first: _pickled(_sendable(error))}))
                continue
            answers = {}
            for i, own in arguments.items():
                current.value = i
                if answer := envs[i].answer(command, *own):
                    answers[i] = answer
            remote.send_bytes(_pickled(answers) if answers else b"")
    for env in envs.values():
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


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    # Time for the process to close the environment and end by itself.
    time.sleep(CLOSING)
    os._exit(1)
