"""MuJoCo's rendering, with and without a screen."""

import os
import sys
from ctypes.util import find_library

#: Values of ``MUJOCO_GL`` that draw without a screen, and the library that each needs.
OFFSCREEN = {"egl": "EGL", "osmesa": "OSMesa"}


def has_screen() -> bool:
    """Whether windows can be shown; assumed on other systems than Linux."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def draw_without_screen() -> None:
    """Without a screen, set ``MUJOCO_GL``, which MuJoCo reads when it is imported, to an installed library."""
    if not has_screen() and "MUJOCO_GL" not in os.environ:
        for name, library in OFFSCREEN.items():
            if find_library(library) is not None:
                os.environ["MUJOCO_GL"] = name
                break


def require_drawing(env_id: str, window: bool) -> None:
    """Check that MuJoCo can draw, if an environment uses it: without a screen, a window would end the process."""
    if "mujoco" not in sys.modules or has_screen():
        return
    if window:
        raise ValueError(
            f"there is no screen to show {env_id} on (DISPLAY is not set): add --no-render, or make a GIF: "
            "the same command with record instead of enjoy"
        )
    if "MUJOCO_GL" not in os.environ:
        raise ValueError(
            f"there is no screen, and no library for MuJoCo to draw {env_id} without one: install EGL or "
            "OSMesa (on Debian and Ubuntu: apt install libegl1)"
        )
