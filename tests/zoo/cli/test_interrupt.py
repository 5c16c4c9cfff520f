"""Ctrl-C while a command is still importing is one line and exit code 130."""

import signal
import subprocess
import sys

import pytest
from products import sample

from ppo_plus.zoo.cli.interrupt import ending_at_once

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
    ("train", "argparse"),
    ("train", "ppo_plus.zoo.cli.arguments"),
    ("train", "numpy"),
    ("train", "torch"),
    ("train", "stable_baselines3"),
    ("train", "gymnasium.envs.classic_control.cartpole"),  # when the run has its folder already
    ("enjoy", "ppo_plus.zoo.cli.plot"),
    ("enjoy", "gymnasium"),
    ("plot", "ppo_plus.zoo.cli.tune"),
    ("plot", "numpy"),
    ("tune", "ppo_plus.zoo.cli.tune"),
    ("tune", "optuna"),
]


@pytest.mark.parametrize("begun", sample(MOMENTS, 3), ids="-".join)
def test_one_line_while_importing(tmp_path, begun):
    command, moment = begun
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
    code = """
import os, signal
from ppo_plus.zoo.cli.interrupt import ending_at_once
with ending_at_once():
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
def test_handlers_are_put_back_and_those_of_others_left_alone(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with ending_at_once():
            assert (signal.getsignal(signal.SIGINT) is handler) == (handler is not signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
