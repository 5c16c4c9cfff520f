"""Ctrl-C and SIGTERM: one line and exit code 130, whatever arrives when."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from ppo_plus.zoo import interrupts
from ppo_plus.zoo.interrupts import check, deferred, exit_codes

#: The module alone, without the package, which takes seconds to import.
LOAD = f"import runpy; module = runpy.run_path({interrupts.__file__!r}); exit_codes = module['exit_codes']"
WORK = f"""
{LOAD}
exit_codes.__globals__["PATIENCE"] = 1
with exit_codes({{}}, "interrupted"):
    try:
        print("ready", flush=True)
        while True:
            BODY
    finally:
        # Cleaning up takes a while, too.
        sum(range(100_000))
"""


def start(body):
    """A process whose loop has begun."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", WORK.replace("BODY", body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGINT"] * 2, ["SIGINT", "SIGTERM"], ["SIGTERM", "SIGINT"] * 20])
def test_one_line_whatever_arrives(signals):
    process = start("module['check']()")
    for name in signals:
        os.kill(process.pid, getattr(signal, name))
    _, err = process.communicate(timeout=600)
    assert (err, process.returncode) == ("interrupted\n", 130)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [["SIGINT", "SIGTERM"], ["SIGTERM"]])
def test_work_that_does_not_ask_is_interrupted(signals):
    """By a second signal, or after a while."""
    process = start("import signal; signal.pause()")
    for name in signals:
        os.kill(process.pid, getattr(signal, name))
        time.sleep(0.1)
    began = time.monotonic()
    _, err = process.communicate(timeout=600)
    assert (err, process.returncode) == ("interrupted\n", 130)
    assert len(signals) == 2 or time.monotonic() - began > 0.5


def test_expected_errors_are_a_line_and_a_code(capsys):
    with pytest.raises(SystemExit) as ended, exit_codes({OSError: 3}):
        raise FileNotFoundError("no such study\n")
    assert ended.value.code == 3
    assert capsys.readouterr().err == "ppo-plus: error: no such study\n"


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_handlers_are_put_back(error):
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    with suppress(ZeroDivisionError), exit_codes({}):
        assert [signal.getsignal(number) for number in interrupts.SIGNALS] != before
        if error:
            raise error
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


def test_python_callers_get_keyboard_interrupt(handlers):
    """At the end of the block at the latest, and the next one begins without a signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    done = []
    with pytest.raises(KeyboardInterrupt), deferred(), deferred():
        signal.raise_signal(signal.SIGINT)
        done.append(interrupts.came())
    assert done == [signal.SIGINT] and interrupts.came() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.alarm(0) == 0
    with deferred():
        check()


def test_both_signals_at_once_are_one_interrupt(handlers, monkeypatch):
    """Python would report the second one, were it ignored by the system's own handler."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.SIGNALS)
    with pytest.raises(KeyboardInterrupt), deferred(ends_process=True):
        for number in interrupts.SIGNALS:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        check()
    assert interrupts.came() is None and not reported


def test_an_ignored_signal_stays_ignored(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred():
        signal.raise_signal(signal.SIGINT)
        check()


def test_what_was_lost_is_raised_again(handlers):
    with pytest.raises(SystemExit, match="130"), exit_codes({}):
        check()
        signal.raise_signal(signal.SIGINT)
        with suppress(KeyboardInterrupt):
            check()
        try:
            check()
        finally:
            # Nothing interrupts the cleanup.
            for number in interrupts.SIGNALS:
                signal.raise_signal(number)
        raise AssertionError("lost")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_has_an_exit_code(number, capsys):
    with pytest.raises(SystemExit if number != errno.EACCES else OSError) as stop, exit_codes({}):
        raise OSError(number, os.strerror(number), "history.png")
    if number != errno.EACCES:
        assert stop.value.code == errno.ENOSPC and "history.png" in capsys.readouterr().err
