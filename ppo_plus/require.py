"""Checks of arguments, whose errors come before any step is taken.

Every message names the argument, its value and the remedy.
"""

import difflib
import errno
import math
from collections.abc import Collection, Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
from gymnasium import spaces

#: The largest number in single precision, which networks compute in.
LARGEST = float(np.finfo(np.float32).max)
#: Arguments that SB3 keeps under another name.
ATTRIBUTES = {"stats_window_size": "_stats_window_size"}


class NotFinite(FloatingPointError, ValueError):
    """A number is NaN or infinity; with SB3 that is a ``ValueError``, which code like a study's objective catches."""


def require_int(name: str, value: Any, low: int, high: float = math.inf, or_none: bool = False) -> None:
    """An integer in ``[low, high]``, or ``None`` if ``or_none``; else :class:`TypeError` or :class:`ValueError`."""
    if or_none and value is None:
        return
    allowed = f"at least {low}{f' and at most {high}' if high < math.inf else ''}{', or None' if or_none else ''}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} must be an integer, {allowed}")
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r} must be {allowed}")


def require_number(
    name: str, value: Any, low: float, high: float = math.inf, above: bool = False, or_none: bool = False
) -> None:
    """A number in ``[low, high]``, or ``(low, high]`` if ``above``, or ``None`` if ``or_none``; else an error."""
    if or_none and value is None:
        return
    allowed = f"in {'(' if above else '['}{low:g}, {high:g}]{', or None' if or_none else ''}"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r} must be a number {allowed}")
    if not (low < value if above else low <= value) or not value <= high:
        raise ValueError(f"{name}={value!r} must be a number {allowed}")


def require_kind(name: str, value: Any, kinds: type | tuple[type, ...], remedy: str) -> None:
    """:raises TypeError: ``value`` is not of these kinds"""
    if not isinstance(value, kinds):
        raise TypeError(f"{name}={value!r} must be {remedy}")


def require_one_of(name: str, value: Any, choices: Collection[Any]) -> None:
    """:raises ValueError: ``value`` is none of ``choices``."""
    # 1 == True in Python: compare types as well.
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


def same_space(space: spaces.Space, other: spaces.Space) -> bool:
    """Whether two spaces are equal. Bounds of ±3.4e38 (old Gymnasium and gym) equal infinity."""
    if isinstance(space, spaces.Dict) and isinstance(other, spaces.Dict):
        return space.keys() == other.keys() and all(same_space(space[key], other[key]) for key in space)
    if isinstance(space, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(space) == len(other) and all(map(same_space, space, other))
    if isinstance(space, spaces.Box) and isinstance(other, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        bounds = space.low, space.high, other.low, other.high
        largest = np.float32(LARGEST)
        low, high, *others = [np.where(np.abs(bound) < largest, bound, np.copysign(np.inf, bound)) for bound in bounds]
        return space.dtype == other.dtype and all(map(np.array_equal, (low, high), others))
    return bool(space == other)


def require_spaces(env: Any, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """:raises ValueError: an environment, wrapped as for learning, does not fit the spaces of an existing model"""
    for kind, space in (("observation", observation_space), ("action", action_space)):
        other = getattr(env, f"{kind}_space")
        if not same_space(space, other):
            raise ValueError(
                f"env does not fit the model: {kind} spaces do not match, {other} of env and {space} of the model. "
                "Pass an environment like the one that it was trained in, with the same wrappers"
            )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that begins with ``name``, or else is most similar to it, to ask "did you mean …?"; ``None``: none
    is similar. ``lr`` stands for ``learning_rate``."""
    known = list(known)
    if "lr" in str(name).split("_") and "learning_rate" in known:
        return "learning_rate"
    longer = [one for one in known if len(str(name)) > 2 and one.startswith(str(name))]
    return next(iter([*longer, *difflib.get_close_matches(str(name), known, 1)]), None)


def require_installed(package: str, needed_for: str) -> None:
    """:raises ImportError: an optional package is not installed"""
    if find_spec(package) is None:
        raise ImportError(f"{needed_for} needs {package}: pip install {package}", name=package)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full, or the user's share of it."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
