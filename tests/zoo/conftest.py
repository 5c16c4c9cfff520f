"""What several tests of the zoo need."""

import signal
from contextlib import suppress
from itertools import count

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from ppo_plus.zoo.interrupts import SIGNALS


@pytest.fixture
def settings(tmp_path):
    """Write a settings file and return its path."""

    def write(text):
        path = tmp_path / "settings.yml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def handlers():
    """Puts the handlers of signals back, which ends of commands change."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def loses_interrupt(monkeypatch):
    """A function: a signal comes at the hundredth step of CartPole, where a bare ``except:`` has the interrupt."""

    def lose(number):
        step, steps = CartPoleEnv.step, count(1)

        def losing(self, action):
            with suppress(KeyboardInterrupt):
                if next(steps) == 100:
                    signal.raise_signal(number)
            return step(self, action)

        monkeypatch.setattr(CartPoleEnv, "step", losing)

    return lose
