"""Coefficients over time: schedules made of numbers, callables, schedule objects and strings.

A schedule maps the remaining progress, which falls from 1 to 0 during ``learn()``, to a value, as in SB3. The objects
here are plain dataclasses, so a model that uses them can be saved, loaded and sent to another process.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch as th

Schedule = Callable[[float], float]
#: A coefficient over time: a number, a string such as ``"lin_3e-4"``, or a function of the remaining progress.
ScheduleLike = float | str | Schedule


@dataclass(frozen=True)
class Constant:
    """The same value throughout."""

    value: float

    def __call__(self, progress_remaining: float) -> float:
        return self.value


@dataclass(frozen=True)
class Linear:
    r"""From ``start`` to ``end`` in a straight line: :math:`end + (start - end)\,p`."""

    start: float
    end: float = 0.0

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * progress_remaining


@dataclass(frozen=True)
class Cosine:
    r"""From ``start`` to ``end`` along half a cosine: :math:`end + (start - end)(1 - \cos \pi p)/2`.

    Flat at both ends (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts).
    """

    start: float
    end: float = 0.0

    def __call__(self, progress_remaining: float) -> float:
        return self.end + (self.start - self.end) * (1 - math.cos(math.pi * progress_remaining)) / 2


@dataclass(frozen=True, eq=False)
class Sampled:
    """A function by its values, which a file has where it cannot have the function: exact at these, with straight lines
    between them.

    :param values: at equal steps of the remaining progress from 0 to 1, at least two, in double precision
    """

    values: th.Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.values.dtype != th.float64 or self.values.ndim != 1 or len(self.values) < 2:
            raise ValueError("Sampled: values must be at least two numbers in double precision")

    def __call__(self, progress_remaining: float) -> float:
        last = len(self.values) - 1
        place = min(max(progress_remaining, 0.0), 1.0) * last
        i = min(int(place), last - 1)
        before, after = self.values[i : i + 2].tolist()
        return float(after if place == last else before + (place - i) * (after - before))


@dataclass(frozen=True)
class Unknown:
    """Stands for a schedule that a file does not contain; ``learn`` asks for the real one.

    :param reason: why the file does not contain it
    """

    reason: str

    def __call__(self, progress_remaining: float) -> float:
        """A number to build an optimizer with, whose state is then replaced."""
        return 0.0


#: Formulas, which can be compared.
FORMULAS = (Constant, Linear, Cosine)
#: The names by which ``ppo_plus`` has them.
constant, linear, cosine = Constant, Linear, Cosine

#: Prefixes of schedule strings, as in the zoo's YAML files: ``"lin_3e-4"``, ``"cos_3e-4"``, ``"lin_3e-4_1e-5"``.
PREFIXES: dict[str, type[Linear] | type[Cosine]] = {"lin": Linear, "cos": Cosine}


def make_schedule(name: str, value: Any, low: float = 0.0, strict: bool = False) -> Schedule:
    """The schedule for an argument, checked for both ends of training if it is one of ours or SB3's.

    Other callables are not called here: they may count their calls. Their values are checked during training.

    :param value: a number, a string (:data:`PREFIXES`), or a callable of the remaining progress
    :param low: smallest value allowed
    :param strict: whether the value must be above ``low`` at the start of training; schedules may decay to it
    """
    if isinstance(value, str):
        schedule = _parse(name, value)
    else:
        is_function = callable(value) and not _builds(value)
        schedule = value if is_function else Constant(_number(name, value))
    inner = _inner(schedule)
    is_sb3s = type(inner).__module__ == "stable_baselines3.common.utils"
    # Between both ends, no value of SB3's classes is below both.
    if is_sb3s or isinstance(inner, (*FORMULAS, Sampled)):
        value_at(1.0, name, schedule, low, strict)
        value_at(0.0, name, schedule, low)
    return schedule


def value_at(progress_remaining: float, name: str, schedule: Schedule, low: float = 0.0, strict: bool = False) -> float:
    """The value of an argument's schedule as a Python float.

    :raises ValueError: it is below ``low`` (``strict``: not above), or not finite
    :raises TypeError: it is not a number
    """
    value = schedule(progress_remaining)
    message = f"{name}: the schedule {schedule!r} returned {value!r} at progress_remaining={progress_remaining}"
    try:
        value = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{message}; it must return a number") from None
    if math.isfinite(value) and (value > low or (value == low and not strict)):
        return value
    bound = "" if low == -math.inf else f" and above {low:g}" if strict else f" and at least {low:g}"
    if isinstance(schedule, Constant):
        raise ValueError(f"{name}={value!r} must be finite{bound}")
    raise ValueError(f"{message}; values must be finite{bound}")


def _builds(value: Any) -> bool:
    """Whether a schedule makes objects of a class, which may be large in an untrusted file."""
    value = _inner(value)
    return isinstance(value, partial) and isinstance(value.func, type)


def _inner(value: Any) -> Any:
    """What SB3's ``FloatSchedule``, if it is one, converts the values of."""
    while hasattr(value, "value_schedule"):
        value = value.value_schedule
    return value


def _parse(name: str, text: str) -> Schedule:
    prefix, *numbers = text.strip().split("_")
    values: list[float] = []
    with suppress(ValueError):
        values = [float(number) for number in numbers or [prefix]]
    if values and not numbers:
        return Constant(values[0])
    if prefix in PREFIXES and len(values) in (1, 2):
        return PREFIXES[prefix](*values)
    raise ValueError(
        f'{name}={text!r} is not a valid schedule: write a number, "lin_START", "cos_START" or "lin_START_END", '
        'for example "lin_3e-4"'
    )


def _number(name: str, value: Any) -> float:
    with suppress(TypeError, ValueError):
        if not isinstance(value, bool):
            return float(value)
    raise TypeError(
        f'{name}={value!r} must be a number, a string such as "lin_3e-4", or a function of the remaining progress'
    )
