"""One handler for Ctrl-C and SIGTERM. It sets a flag, which loops check.

Training checks it at each step, the tuner and its workers between their steps, so that nothing is interrupted in the
middle. Code that does not check it, because it hangs or takes long, is interrupted by a second signal, or
:data:`PATIENCE` seconds after the first. This module imports nothing slow, so that the handler is in place early.
"""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

#: Ctrl-C, and the signal that a scheduler sends before it kills a process.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: The signal that calls the handler again; Windows has none.
ALARM = {signal.SIGALRM} if hasattr(signal, "SIGALRM") else set()
#: Exit code of a command that was interrupted.
INTERRUPTED = 130
#: Seconds after which ``KeyboardInterrupt`` is raised anywhere in the process, if nothing has checked the flag.
PATIENCE = 5


class _State:
    deferred = False  # whether a signal sets the flag; else it ends the process at once
    came: int | None = None  # the flag: number of the first signal
    raised = False  # whether it was raised; then further signals are ignored, so that they do not disturb the cleanup
    n_shields = 0  # how many blocks of `uninterrupted` the main thread is in


def check() -> None:
    """Raise ``KeyboardInterrupt`` if a signal came, each time: code with a bare ``except:`` loses the first one."""
    if _State.came is not None:
        _State.raised = True
        raise KeyboardInterrupt


def came() -> int | None:
    """Number of the signal that came; ``None`` if none did."""
    return _State.came


def _handle(number: int, _frame: object) -> None:
    if not _State.deferred:
        # Not by `print`, which fails if the signal came while it was printing.
        os.write(2, b"interrupted\n")
        os._exit(INTERRUPTED)
    if _State.came is None:
        _State.came = number
        _call_again(PATIENCE)
    elif _State.n_shields:
        _call_again(1)
    elif not _State.raised:
        check()


def _call_again(seconds: int) -> None:
    if ALARM:
        signal.signal(signal.SIGALRM, _handle)
        signal.alarm(seconds)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process, as there is nothing to save yet. It does not raise
    ``KeyboardInterrupt``, of which NumPy's and torch's imports from C would make an ``ImportError``."""
    # A shell's background job ignores Ctrl-C, and a caller may have set a handler.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _handle:  # else it is ignored until the process has ended
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def deferred(numbers: Iterable[int] = SIGNALS, ends_process: bool = False) -> Iterator[None]:
    """Within the block, signals set a flag, which :func:`check` raises, as does the end of the block. The outermost of
    nested blocks counts. Ignored signals stay ignored.

    :param ends_process: whether the process ends with the block. If it was interrupted, further signals are ignored
        until then, because Python takes its own handlers away before the end.
    :raises KeyboardInterrupt: a signal came, and nothing else was raised
    """
    if _State.deferred or threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: it was not set from Python.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (*numbers, *ALARM)}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    _State.deferred = True
    try:
        for number in before.keys() - ALARM:
            signal.signal(number, _handle)
        yield
        check()
    finally:
        try:
            if _State.came is not None and ALARM:
                signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if _State.came is not None and ends_process else handler)
        finally:
            _State.deferred, _State.came, _State.raised = False, None, False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within the block, nothing raises within :func:`deferred` but :func:`check`, not even a second signal."""
    # Python handles signals in the main thread.
    counts = int(threading.current_thread() is threading.main_thread())
    _State.n_shields += counts
    try:
        yield
    finally:
        _State.n_shields -= counts


@contextmanager
def exit_codes(codes: Mapping[type[Exception], int], interrupted: str = "") -> Iterator[None]:
    """Turn expected exceptions in the block into one line on standard error and their exit codes, a full disk into 28,
    and Ctrl-C and SIGTERM into the line ``interrupted`` and exit code 130."""
    try:
        with deferred(ends_process=True):
            yield
    except KeyboardInterrupt:
        if interrupted:
            print(interrupted, file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        from ppo_plus.require import is_disk_full

        code = next((code for kind, code in codes.items() if isinstance(error, kind)), None)
        if is_disk_full(error):
            code = errno.ENOSPC
        if code is None:
            raise
        print(f"ppo-plus: error: {str(error).strip() or type(error).__name__}", file=sys.stderr)
        sys.exit(code)
