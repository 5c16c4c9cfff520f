"""Ctrl-C and other early ends of a command: one line, and an exit code. It imports nothing slow, so that the handlers
are in place before anything slow is imported."""

import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

Handler = Callable[[int, FrameType | None], Any]

#: What interrupts: Ctrl-C, and what a scheduler sends before it kills.
SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: Whether one has ever come in this process.
_has_come = False


@contextmanager
def exit_codes(codes: Mapping[type[Exception], int], interrupted: str = "") -> Iterator[None]:
    """Turn what ends the block early into one line on standard error and an exit code.

    :param codes: exit code of each expected exception; any other one shows its traceback
    :param interrupted: printed on Ctrl-C and SIGTERM, whose exit code is 130
    """
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        # The handlers that ignore further signals stay: the exit takes a while, too.
        if interrupted:
            print(interrupted, file=sys.stderr, flush=True)
        _ignore_for_good()
        sys.exit(130)
    except tuple(codes) as error:
        print(f"ppo-plus: error: {str(error).strip()}", file=sys.stderr)
        sys.exit(next(code for kind, code in codes.items() if isinstance(error, kind)))
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            for number, handler in before.items():
                signal.signal(number, handler)


def raise_if_lost() -> None:
    """Raise ``KeyboardInterrupt`` again, where work goes on although one was raised. Code with a bare ``except:`` loses
    it, such as Python's own ``copyreg``, which vector environments run at each step to copy observations.

    :raises KeyboardInterrupt: a signal came
    """
    # The handlers know it, but training asks at each step, and asking them takes microseconds.
    if _has_come and any(signal.getsignal(number) is _ignore for number in SIGNALS):
        raise KeyboardInterrupt


@contextmanager
def shielded_children() -> Iterator[None]:
    """Start processes that Ctrl-C in the terminal does not reach. Nothing interrupts their start, or this process might
    not know of one that runs: what arrives in the block does so when it ends."""
    with _postponed(), _blocked():
        yield


@contextmanager
def _postponed() -> Iterator[None]:
    """Keep signals that have a handler in Python until the block ends.

    Blocking them in this thread would not do: another thread takes them, and Python runs the handler in this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # which nothing interrupts
        return
    before: dict[int, Handler] = {n: handler for n in SIGNALS if callable(handler := signal.getsignal(n))}
    arrived: list[tuple[int, FrameType | None]] = []

    def postpone(number: int, frame: FrameType | None) -> None:
        arrived.append((number, frame))

    def put_back(number: int) -> None:
        if signal.getsignal(number) is postpone:  # else one came before this, and all others are ignored
            signal.signal(number, before[number])

    def hand_over() -> None:
        with ExitStack() as handed:
            for number, frame in reversed(arrived):
                handed.callback(before[number], number, frame)

    # Stacks, since a handler may raise, and the rest is done nevertheless; what is put on them last is done first.
    with ExitStack() as end:
        end.callback(hand_over)
        for number in before:
            end.callback(put_back, number)
            signal.signal(number, postpone)
        yield


@contextmanager
def _blocked() -> Iterator[None]:
    """Processes that start in the block inherit the blocked signal."""
    if not hasattr(signal, "pthread_sigmask"):
        yield  # Windows
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def this_command() -> str:
    """The command line of this process, to paste into a shell, without passwords."""
    name = Path(sys.argv[0]).name
    words = [name, *sys.argv[1:]] if name == "ppo-plus" else sys.orig_argv
    return shlex.join(map(without_password, words))


def without_password(word: str) -> str:
    """An argument with the passwords of URLs in it replaced by ``***``.

    :param word: any argument
    """
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", re.sub(r"([?&]password=)[^&\s]*", r"\1***", word))


def interrupt_once(numbers: Iterable[int] = SIGNALS) -> NoReturn:
    """What a handler does: raise ``KeyboardInterrupt``, and ignore further signals, which would interrupt the cleanup.

    :param numbers: the signals that are ignored from now on
    :raises KeyboardInterrupt: always
    """
    global _has_come
    _has_come = True
    # A function ignores them, not SIG_IGN: Python prints a traceback ("ignored due to race condition") for a signal
    # that arrives while SIG_IGN takes the place of its handler.
    for number in numbers:
        signal.signal(number, _ignore)
    raise KeyboardInterrupt


def _interrupt(*_: object) -> NoReturn:
    interrupt_once()


def _ignore(*_: object) -> None:
    """A handler that does nothing."""


def _ignore_for_good() -> None:
    """Ignore signals until the process has ended: Python takes its own handlers away before that."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
