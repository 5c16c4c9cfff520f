"""Ctrl-C and SIGTERM: one line and exit code 130, whatever arrives when."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from parametrization import sample

from ppo_plus.zoo import interrupts
from ppo_plus.zoo.interrupts import check, deferred, ending_at_once, exit_codes, uninterrupted

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
    with pytest.raises(KeyboardInterrupt), deferred([signal.SIGINT]), deferred():
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


@pytest.fixture
def thread():
    """Another thread, which may take this process's signals."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_nothing_is_interrupted_in_a_shielded_block(number, handlers, thread):
    """However often it comes; the next check raises it."""
    done = []
    with pytest.raises(SystemExit, match="130"), exit_codes({}):
        with uninterrupted(), uninterrupted():
            for _ in range(3):
                os.kill(os.getpid(), number)
                time.sleep(0.01)
            done.append("started")
        check()
        done.append("not reached")
    assert done == ["started"]


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


def test_other_threads_have_no_handlers():
    def work():
        with deferred():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(work).result() == signal.getsignal(signal.SIGINT)


#: A command that is sent Ctrl-C when it begins to import a module.
COMMAND = """
import os, signal, sys

class Moment:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

moment, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Moment())
from ppo_plus.zoo.cli import main
main()
"""

#: Commands, and what they are about to import.
MOMENTS = [
    ("plot", "numpy"),
    ("train", "gymnasium.envs.classic_control.cartpole"),  # when the run has its folder already
    ("train", "torch"),
    ("enjoy", "ppo_plus.zoo.cli.results"),
    ("tune", "optuna"),
]


@pytest.mark.parametrize(("command", "moment"), sample(MOMENTS, 4))
def test_one_line_while_importing(tmp_path, command, moment):
    env = "-e" if command == "plot" else "--env"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, moment, command, env, "CartPole-v1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "interrupted\n", 130)
    assert not list(tmp_path.glob("logs/*/*"))


def test_code_that_catches_everything_does_not_stop_it():
    code = f"""
{LOAD}
import os, signal
with module["ending_at_once"]():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        input()
    except BaseException as error:
        raise ImportError("as NumPy's C code does") from error
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.stderr, done.returncode) == ("interrupted\n", 130)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN, lambda *_: None])
def test_early_handlers_leave_those_of_others_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with ending_at_once():
            assert (signal.getsignal(signal.SIGINT) is handler) == (handler is not signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_has_an_exit_code(number, capsys):
    with pytest.raises(SystemExit if number != errno.EACCES else OSError) as stop, exit_codes({}):
        raise OSError(number, os.strerror(number), "history.png")
    if number != errno.EACCES:
        assert stop.value.code == errno.ENOSPC and "history.png" in capsys.readouterr().err
