"""What MuJoCo asks of a process: a screen, or another way to draw; and its warnings, each of them once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec

import gymnasium as gym

#: Ways to draw without a screen, values of ``MUJOCO_GL``, and the library that each of them needs.
OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}


def has_screen() -> bool:
    """Whether windows can be shown. Elsewhere than on Linux it cannot be told, and is taken for granted."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def require_screen(env_id: str) -> None:
    """Ask before MuJoCo shows a window: without a screen it ends the process.

    :param env_id: an environment that has been made
    :raises ValueError: it is MuJoCo's, and there is no screen
    """
    if "mujoco" in sys.modules and not has_screen():
        raise ValueError(
            f"there is no screen to show {env_id} on (DISPLAY is not set): add --no-render, or make a GIF with "
            f"ppo-plus record --env {env_id}"
        )


def draw_without_screen() -> None:
    """Where there is no screen, choose for MuJoCo what it draws with, unless ``MUJOCO_GL`` is set. It is read when
    MuJoCo is imported."""
    if not has_screen() and "MUJOCO_GL" not in os.environ:
        for name, library in OFFSCREEN.items():
            if find_library(library) is not None:
                os.environ["MUJOCO_GL"] = name
                break


def require_drawing(env_id: str) -> None:
    """Ask before MuJoCo draws.

    :param env_id: an environment that has been made after :func:`draw_without_screen`
    :raises ValueError: it is MuJoCo's, and there is nothing to draw with
    """
    if "mujoco" in sys.modules and not has_screen() and "MUJOCO_GL" not in os.environ:
        raise ValueError(
            f"there is no screen, and no library with which MuJoCo could draw {env_id} without one: install EGL or "
            "OSMesa (on Debian and Ubuntu: apt install libegl1)"
        )


@contextmanager
def warnings_once(env_id: str) -> Iterator[None]:
    """While environments are made, keep back what MuJoCo says of their models, and tell each of it once in a process:
    it would be told for each environment, and again whenever its model is read.

    :param env_id: Gymnasium environment id; nothing is kept back of others than Gymnasium's own of MuJoCo
    """
    spec = gym.registry.get(env_id)
    if not str(spec and spec.entry_point).startswith("gymnasium.envs.mujoco") or find_spec("mujoco") is None:
        yield
        return
    import mujoco

    found: list[str] = []
    before = mujoco.get_mju_user_warning()
    # An exception in this function would end the process: it does no more than this.
    mujoco.set_mju_user_warning(found.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
        for text in found:
            _tell(text)


@cache
def _tell(text: str) -> None:
    print(f"MuJoCo: {text}", file=sys.stderr)
