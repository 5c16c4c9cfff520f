"""Ctrl-C is one line and exit code 130, whatever arrives when."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ppo_plus.zoo import interrupts, tune
from ppo_plus.zoo.interrupts import exit_codes, raise_if_lost, shielded_children, without_password

#: The module alone, without the package, which takes seconds to import.
LOAD = f"import runpy; exit_codes = runpy.run_path({interrupts.__file__!r})['exit_codes']"
WORK = f"""
{LOAD}
with exit_codes({{}}, "interrupted"):
    try:
        print("ready", flush=True)
        while True:
            pass
    finally:
        # Cleaning up takes a while, too.
        sum(range(100_000))
"""


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGINT"] * 2, ["SIGINT", "SIGTERM"], ["SIGTERM", "SIGINT"] * 20])
@pytest.mark.parametrize("attempt", range(5))
def test_one_line_whatever_arrives(signals, attempt):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", WORK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    for name in signals:
        os.kill(process.pid, getattr(signal, name))
    _, err = process.communicate(timeout=600)
    assert (err, process.returncode) == ("interrupted\n", 130)


def test_expected_errors_are_a_line_and_a_code(capsys):
    with pytest.raises(SystemExit) as ended, exit_codes({OSError: 3}):
        raise FileNotFoundError("no such study\n")
    assert ended.value.code == 3
    assert capsys.readouterr().err == "ppo-plus: error: no such study\n"


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_handlers_are_put_back(error):
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    try:
        with exit_codes({}):
            assert [signal.getsignal(number) for number in interrupts.SIGNALS] != before
            if error:
                raise error
    except ZeroDivisionError:
        pass
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


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
def test_no_start_of_a_process_is_interrupted(number, handlers, thread):
    """What arrives meanwhile interrupts when the block ends."""
    started = []
    with pytest.raises(SystemExit, match="130"), exit_codes({}), shielded_children():
        os.kill(os.getpid(), number)
        started.append(is_shielded())
    assert started == [True]


def test_all_that_arrived_is_handled(handlers):
    """In its order, although each handler raises."""
    handled = []

    def handler(number, frame):
        handled.append((number, frame is not None))
        raise KeyboardInterrupt

    for number in interrupts.SIGNALS:
        signal.signal(number, handler)
    with pytest.raises(KeyboardInterrupt), shielded_children():
        for number in interrupts.SIGNALS:
            signal.raise_signal(number)
    # Ctrl-C is blocked in the block.
    assert handled == [(signal.SIGTERM, True), (signal.SIGINT, True)]
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == [handler] * 2


@pytest.mark.parametrize("n_calls", [1, 2])
def test_one_that_comes_as_the_block_begins_is_the_only_one(n_calls, handlers, monkeypatch):
    """Interrupted after any change of a handler, the way out is not interrupted again."""
    install, calls = signal.signal, []

    def signal_after(number, handler):
        previous = install(number, handler)
        calls.append(number)
        if len(calls) == n_calls:
            signal.raise_signal(signal.SIGTERM)
        return previous

    with pytest.raises(SystemExit, match="130"), exit_codes({}):
        monkeypatch.setattr(signal, "signal", signal_after)
        try:
            with shielded_children():
                pass
        finally:
            monkeypatch.undo()
            for number in interrupts.SIGNALS:
                signal.raise_signal(number)


def test_what_was_lost_is_raised_again(handlers):
    with pytest.raises(SystemExit, match="130"), exit_codes({}):
        raise_if_lost()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise_if_lost()
        raise AssertionError("lost")


def test_processes_are_started_in_any_thread():
    def start():
        with shielded_children():
            return is_shielded()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(start).result()
    assert not is_shielded()


def is_shielded():
    """Whether Ctrl-C does not reach a process that is started now."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    return subprocess.check_output([sys.executable, "-S", "-c", code], text=True, timeout=600) == "True\n"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("postgresql+psycopg://me:secret@server/studies", "postgresql+psycopg://me:***@server/studies"),
        ("--storage=postgresql://me@server/x?user=a&password=secret", "--storage=postgresql://me@server/x?user=a&password=***"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("gamma:0.99", "gamma:0.99"),
    ],
)  # fmt: skip
def test_passwords_are_not_printed(word, shown):
    assert without_password(word) == shown


def test_the_command_is_the_one_that_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/ppo-plus", "tune", "--study-name", "my study"])
    assert interrupts.this_command() == "ppo-plus tune --study-name 'my study'"
    monkeypatch.setattr(sys, "argv", ["scripts/tune.py", "--env", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "scripts/tune.py", "--env", "x"])
    assert interrupts.this_command() == "python3 scripts/tune.py --env x"


@pytest.mark.slow
def test_neither_the_command_nor_the_tuner_needs_the_other():
    """The tuner does not know the command line, and the command line loads Optuna when it is needed."""
    code = "import sys, ppo_plus.zoo.cli; assert 'optuna' not in sys.modules; import ppo_plus.zoo.tune.tuner as t"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    for path in Path(tune.__file__).parent.glob("*.py"):
        assert "zoo.cli" not in path.read_text(), path
