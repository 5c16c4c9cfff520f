"""Where a guarded environment lives: in this process, or in one of its own, which can be ended and which may die."""

import copy
import math
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from ppo_plus.envs.supervised.faults import Fault
from ppo_plus.envs.supervised.guarded import Guarded, Refusal

#: Seconds that an environment may take to close.
CLOSING = 5.0


def closing_deadline() -> float:
    """Until when environments that are closed now may take, by ``time.monotonic``."""
    return time.monotonic() + CLOSING


class Local:
    """An environment in this process.

    :param make: makes it
    """

    def __init__(self, make: Callable[[], gym.Env]):
        self.make = make
        self.start()

    def start(self, again: bool = False) -> None:
        self.guarded: Guarded | None = Guarded(self.make, elsewhere=False)
        self.send(("make", again))

    def send(self, message: tuple[Any, ...]) -> None:
        self.message = message

    def receive(self, deadline: float | None, seconds: float | None) -> Any:
        assert self.guarded is not None
        answer = self.guarded.answer(*self.message)
        if self.message[0] != "step" or isinstance(answer, (Fault, Refusal)):
            return answer
        obs, reward, done, info, first = answer
        # Environments may use their dicts again; observations are stacked at once.
        return obs, reward, done, copy.deepcopy(info), first

    def end(self) -> None:
        """There is nobody to be told before."""

    def stop(self, deadline: float) -> None:
        if self.guarded is not None and hasattr(self.guarded, "env"):
            self.guarded.answer("close")
        self.guarded = None


class Process:
    """An environment in a process of its own.

    :param make: makes it
    :param context: of ``multiprocessing``
    """

    def __init__(self, make: Callable[[], gym.Env], context: Any):
        self.make, self.context = make, context
        self.process: Any = None
        self.start()

    def start(self, again: bool = False) -> None:
        self.remote, theirs = self.context.Pipe()
        arguments = (theirs, self.remote, CloudpickleWrapper(self.make))
        self.process = self.context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        # At once: as long as anybody else has this end, nobody notices that the process is gone.
        theirs.close()
        self.arrives = _waiter(self.remote)
        self.waiting = False
        self.send(("make", again))

    def send(self, message: tuple[Any, ...]) -> None:
        if self.waiting:
            # Somebody was interrupted before it was read.
            self.receive(time.monotonic() + CLOSING, CLOSING)
        # Before anything is waited for: what cannot be pickled is never sent.
        sent = _pickled(message)
        self.waiting = True
        try:
            self.remote.send_bytes(sent)
        except OSError:
            """That there is nobody is noticed where the answer is read."""

    def receive(self, deadline: float | None, seconds: float | None) -> Any:
        if self.process is None:
            return Fault("was ended, since it hung")
        try:
            if deadline is not None and not self.arrives(max(0.0, deadline - time.monotonic())):
                return Fault(f"gave no answer within {seconds:g} s", hangs=True)
            answer = self.remote.recv()
        except (EOFError, OSError):
            answer = Fault(self._death())
        self.waiting = False
        return answer

    def _death(self) -> str:
        self.process.join(CLOSING)
        code = self.process.exitcode
        if code == -signal.SIGTERM:
            # Who ends all processes of a job is about to end this one, too, and that is no fault of the environment's.
            time.sleep(1.0)
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"died with its process ({name})"

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
            while self.arrives(max(0.0, deadline - time.monotonic())):
                self.remote.recv()
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join(CLOSING)
        self.remote.close()
        if self.process.exitcode is not None:
            self.process.close()
        self.process = None


def context(start_method: str | None) -> Any:
    """How processes are started; SB3's choice where none is given."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context(start_method or ("forkserver" if "forkserver" in methods else "spawn"))


def _pickled(message: Any) -> bytes:
    """What ``recv`` makes the message of again. ``send`` takes twice as long, since it makes a pickler in Python.

    By this protocol, since a later one leaves arrays read-only that were so, and wrappers may write into infos.
    """
    return pickle.dumps(message, 4)


def _waiter(remote: Any) -> Callable[[float], Any]:
    """What waits up to so many seconds for a message, and is true where there is one."""
    if not hasattr(select, "poll"):
        return remote.poll  # type: ignore[no-any-return]
    # Made once: `remote.poll` makes such an object each time, which takes longer than to wait for most messages.
    poll = select.poll()
    poll.register(remote, select.POLLIN)
    return lambda seconds: poll.poll(math.ceil(seconds * 1000))


def _serve(remote: Any, parent_remote: Any, make: CloudpickleWrapper) -> None:
    """What runs in a process: answer until there is nobody to answer."""
    # Sent to all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent_remote.close()
    # Whoever waits for a message notices by itself that there is nobody; an environment that hangs does not.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    guarded = Guarded(make.var, elsewhere=True)
    message: tuple[Any, ...] = ()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while message != ("close",):
            message = remote.recv()
            remote.send_bytes(_reply(guarded.answer(*message)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # Time to end by itself, and to close the environment.
        time.sleep(CLOSING)
        os._exit(1)


def _reply(answer: Any) -> bytes:
    try:
        return _pickled(answer)
    except Exception as error:
        return _pickled(Fault(f"answered what cannot be sent to another process: {error!r}"))
