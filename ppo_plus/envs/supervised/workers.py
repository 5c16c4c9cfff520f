"""Workers that run a guarded environment in a separate process, which can be killed and may die."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from ppo_plus.envs.supervised.guarded import Fault, GuardedEnv

#: Seconds that an environment may take to close.
CLOSING = 5.0


class Worker:
    """Runs the environment that ``make`` makes in a separate process, started as by SB3 by default."""

    def __init__(self, make: Callable[[], gym.Env], start_method: str | None, index: int):
        default = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.make, self.index = make, index
        self.context: Any = multiprocessing.get_context(start_method or default)
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
