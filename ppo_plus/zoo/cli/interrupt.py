"""Ctrl-C before there is anything to save or clean up. It imports next to nothing, so that it is in place at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

#: Exit code of a command that Ctrl-C ended.
INTERRUPTED = 130


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within it, Ctrl-C ends the process without raising ``KeyboardInterrupt``.

    Some code would not let that one through: what NumPy and torch import from C makes an ``ImportError`` of it.
    """
    before = signal.getsignal(signal.SIGINT)
    # A shell's background job ignores Ctrl-C, and other handlers are those of whoever calls us.
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> NoReturn:
    # Not by `print`, which cannot be entered a second time where the signal came within it.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
