"""Ctrl-C before there is anything to save or clean up. It imports next to nothing, so that it is in place at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

#: Exit code of a command that Ctrl-C ended.
INTERRUPTED = 130


def ending_at_once() -> AbstractContextManager[None]:
    """Within it, Ctrl-C ends the process without raising ``KeyboardInterrupt``.

    Some code would not let that one through: what NumPy and torch import from C makes an ``ImportError`` of it.
    """
    # A shell's background job ignores Ctrl-C, and other handlers are those of whoever calls us.
    return _replaced(signal.default_int_handler, _end)


def cleaning_up() -> AbstractContextManager[None]:
    """Within it, Ctrl-C raises ``KeyboardInterrupt`` again, since something is to be undone on the way out."""
    return _replaced(_end, signal.default_int_handler)


@contextmanager
def _replaced(before: Callable[..., Any], handler: Callable[..., Any]) -> Iterator[None]:
    """Replace the handler of Ctrl-C, if it is the one that is expected."""
    if signal.getsignal(signal.SIGINT) is not before:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> NoReturn:
    # Not by `print`, which cannot be entered a second time where the signal came within it.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
