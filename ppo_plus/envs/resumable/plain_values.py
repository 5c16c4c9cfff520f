"""Attributes of objects as plain values, which a file can hold, and put back as what they were."""

import copy
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd as GymRunningMeanStd
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

#: Plain values, which a file can hold.
State = dict[str, Any]

#: Names of attributes, and for points in time the clock they were read from.
Clocks = dict[str, Callable[[], float] | None]

#: Objects among the attributes, and which of theirs change.
_PARTS = {
    GymRunningMeanStd: ("mean", "var", "count"),
    RunningMeanStd: ("mean", "var", "count"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
}
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})


class NotResumableError(RuntimeError):
    """The reason why an environment cannot go on where it stood."""


def plain(value: Any) -> Any:
    """A copy that is made of plain values.

    :raises NotResumableError: something else is in it
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    # Vectorized environments return observations as the latter.
    if kind in (dict, OrderedDict):
        return {plain(key): plain(each) for key, each in value.items()}
    if kind in (list, tuple, set):
        return kind(plain(each) for each in value)
    if kind is deque:
        return deque(map(plain, value), value.maxlen)
    if kind in _PARTS:
        return {name: plain(getattr(value, name)) for name in _PARTS[kind] if hasattr(value, name)}
    raise NotResumableError(f"{value!r:.80}, a {kind.__name__}, which is no plain value")


def taken(owner: Any, clocks: Clocks) -> State:
    """Attributes that an object has, as plain values; points in time as the seconds since."""
    held = vars(owner)
    return {
        name: _packed(held[name]) if clock is None else clock() - held[name]
        for name, clock in clocks.items()
        if name in held
    }


def put(owner: Any, clocks: Clocks, state: State) -> None:
    """Put back what :func:`taken` returned."""
    for name, clock in clocks.items():
        if name in state:
            old = vars(owner).get(name)
            setattr(owner, name, _restored(old, state[name]) if clock is None else clock() - state[name])


def _packed(value: Any) -> Any:
    """As :func:`plain`; long lists of numbers, which ``Monitor`` keeps, as an array."""
    if type(value) is list and set(map(type, value)) in ({int}, {float}):
        return np.array(value)
    return plain(value)


def _restored(old: Any, value: Any) -> Any:
    """What :func:`_packed` made of an attribute, again of the kind of its present value ``old``."""
    if type(old) in _PARTS:
        new = copy.copy(old)
        for name, part in value.items():
            setattr(new, name, _restored(getattr(old, name), part))
        return new
    if isinstance(old, dict) and isinstance(value, dict):
        return {key: _restored(old.get(key), each) for key, each in value.items()}
    if isinstance(old, list) and isinstance(value, np.ndarray):
        return value.tolist()
    return copy.deepcopy(value)


def fingerprint(value: Any) -> str:
    """Equal for values that are equal bit by bit, NaN included."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        digest.update(f"{type(part).__name__}(".encode())
        if isinstance(part, dict):
            for key, each in part.items():
                add(key)
                add(each)
        elif isinstance(part, (list, tuple)):
            for each in part:
                add(each)
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode() + part.tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b")")

    add(value)
    return digest.hexdigest()
