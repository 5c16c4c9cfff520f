"""MuJoCo's rendering, with and without a screen, and its warnings, printed once."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec

import gymnasium as gym

#: Values of ``MUJOCO_GL`` that draw without a screen, and the library that each needs.
OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}


def has_screen() -> bool:
    """Whether windows can be shown; assumed on other systems than Linux."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def require_screen(env_id: str) -> None:
    """Check that MuJoCo can show a window: without a screen it would end the process.

    :param env_id: id of an environment that has been created
    :raises ValueError: MuJoCo is used, and there is no screen
    """
    if "mujoco" in sys.modules and not has_screen():
        raise ValueError(
            f"there is no screen to show {env_id} on (DISPLAY is not set): add --no-render, or make a GIF with "
            f"ppo-plus record --env {env_id}"
        )


def draw_without_screen() -> None:
    """Without a screen, set ``MUJOCO_GL`` to an installed library, unless it is set. MuJoCo reads it when it is
    imported."""
    if not has_screen() and "MUJOCO_GL" not in os.environ:
        for name, library in OFFSCREEN.items():
            if find_library(library) is not None:
                os.environ["MUJOCO_GL"] = name
                break


def require_drawing(env_id: str) -> None:
    """Check that MuJoCo can draw.

    :param env_id: id of an environment that was created after :func:`draw_without_screen`
    :raises ValueError: MuJoCo is used, and there is no library to draw with
    """
    if "mujoco" in sys.modules and not has_screen() and "MUJOCO_GL" not in os.environ:
        raise ValueError(
            f"there is no screen, and no library for MuJoCo to draw {env_id} without one: install EGL or "
            "OSMesa (on Debian and Ubuntu: apt install libegl1)"
        )


@contextmanager
def warnings_once(env_id: str) -> Iterator[None]:
    """Print each warning of MuJoCo about the models of environments created in the block once per process. MuJoCo would
    print it for each environment, and again whenever its model is read.

    :param env_id: Gymnasium environment id; warnings are unchanged unless Gymnasium defines it with MuJoCo
    """
    spec = gym.registry.get(env_id)
    if not str(spec and spec.entry_point).startswith("gymnasium.envs.mujoco") or find_spec("mujoco") is None:
        yield
        return
    import mujoco

    found: list[str] = []
    before = mujoco.get_mju_user_warning()
    # Only this: an exception in this function would end the process.
    mujoco.set_mju_user_warning(found.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
        for text in found:
            _print(text)


@cache
def _print(text: str) -> None:
    print(f"MuJoCo: {text}", file=sys.stderr)
