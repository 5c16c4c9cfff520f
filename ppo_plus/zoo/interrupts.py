"""One handler for Ctrl-C and SIGTERM. It sets a flag, which loops check.

Training checks it at each step, the tuner and its workers between their steps, so that nothing is interrupted in the
middle. Code that does not check it, because it hangs or takes long, is interrupted by a second signal, or
:data:`PATIENCE` seconds after the first.
"""

import errno
import signal
import sys
from collections.abc import Iterator, Mapping
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
    deferred = False  # whether a signal sets the flag
    came: int | None = None  # the flag: number of the first signal
    raised = False  # whether it was raised; then further signals are ignored, so that they do not disturb the cleanup


def check() -> None:
    """Raise ``KeyboardInterrupt`` if a signal came, each time: code with a bare ``except:`` loses the first one."""
    if _State.came is not None:
        _State.raised = True
        raise KeyboardInterrupt


def came() -> int | None:
    """Number of the signal that came; ``None`` if none did."""
    return _State.came


def _handle(number: int, _frame: object) -> None:
    if _State.came is None:
        _State.came = number
        if ALARM:
            signal.signal(signal.SIGALRM, _handle)
            signal.alarm(PATIENCE)
    elif not _State.raised:
        check()


@contextmanager
def deferred(ends_process: bool = False) -> Iterator[None]:
    """Within the block, signals set a flag, which :func:`check` raises, as does the end of the block. The outermost of
    nested blocks counts. Ignored signals stay ignored.

    :param ends_process: whether the process ends with the block. If it was interrupted, further signals are ignored
        until then, because Python takes its own handlers away before the end.
    :raises KeyboardInterrupt: a signal came, and nothing else was raised
    """
    if _State.deferred:
        yield
        return
    # None: it was not set from Python.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (*SIGNALS, *ALARM)}
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
