"""What MuJoCo asks of a process: something to draw with, and its warnings once."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from ppo_plus.zoo import mujoco

SCREENS = "DISPLAY", "WAYLAND_DISPLAY"


@pytest.fixture
def no_screen(monkeypatch):
    """A process on Linux without a screen, which has chosen nothing to draw with."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "mujoco", mujoco)
    for name in (*SCREENS, "MUJOCO_GL"):
        # Set before it is taken away, so that it is taken away again at the end, where a test sets it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_window_needs_a_screen(no_screen, monkeypatch):
    with pytest.raises(ValueError, match=r"no screen to show Ant-v5 on .*--no-render, .*record instead of enjoy"):
        mujoco.require_drawing("Ant-v5", window=True)
    for name in SCREENS:
        with monkeypatch.context() as screen:
            screen.setenv(name, ":0")
            mujoco.require_drawing("Ant-v5", window=True)
    monkeypatch.delitem(sys.modules, "mujoco")
    mujoco.require_drawing("CartPole-v1", window=True)


@pytest.mark.parametrize(
    "libraries, chosen", [(["EGL", "OSMesa"], "egl"), (["OSMesa"], "osmesa"), (["GL"], None)], ids=str
)
def test_without_a_screen_an_installed_library_draws(no_screen, monkeypatch, libraries, chosen):
    monkeypatch.setattr(mujoco, "find_library", lambda name: name if name in libraries else None)
    mujoco.draw_without_screen()
    assert os.environ.get("MUJOCO_GL") == chosen
    expected = nullcontext() if chosen else pytest.raises(ValueError, match="to draw Ant-v5 .* libegl1")
    with expected:
        mujoco.require_drawing("Ant-v5", window=False)


def test_a_choice_is_kept(no_screen, monkeypatch):
    monkeypatch.setattr(mujoco, "find_library", lambda name: name)
    with monkeypatch.context() as choice:
        choice.setenv("MUJOCO_GL", "osmesa")
        mujoco.draw_without_screen()
        assert os.environ["MUJOCO_GL"] == "osmesa"
    with monkeypatch.context() as screen:
        screen.setenv("DISPLAY", ":0")
        mujoco.draw_without_screen()
        assert "MUJOCO_GL" not in os.environ


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a screen")
def test_played_and_recorded_without_a_screen(tmp_path):
    """In processes of their own, since MuJoCo chooses once what draws."""
    variables = {name: value for name, value in os.environ.items() if name not in (*SCREENS, "MUJOCO_GL")}

    def ppo_plus(command):
        line = [sys.executable, "-m", "ppo_plus", *command.split()]
        return subprocess.run(line, cwd=tmp_path, env=variables, text=True, capture_output=True, timeout=600)

    assert ppo_plus("train --env InvertedPendulum-v5 -n 32 -params n_envs:1 n_steps:32").returncode == 0
    played = ppo_plus("enjoy --env InvertedPendulum-v5")
    assert played.returncode == 2 and "there is no screen" in played.stderr
    recorded = ppo_plus("record --env InvertedPendulum-v5 -n 2")
    if any(map(mujoco.find_library, mujoco.OFFSCREEN.values())):
        assert recorded.stdout.endswith(".gif\n")
    else:
        assert recorded.returncode == 2 and "libegl1" in recorded.stderr
