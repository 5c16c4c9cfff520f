"""Attributes of objects as plain values, which a file can contain, and back."""

import copy
import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd as GymRunningMeanStd
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

#: Plain values, which a file can contain.
State = dict[str, Any]

#: Attributes that are points in time, and the clock they were read from.
CLOCKS = {"t_start": time.time, "episode_start_time": time.perf_counter}
#: Objects among the attributes, and which of their own attributes change.
_PARTS = {
    GymRunningMeanStd: ("mean", "var", "count"),
    RunningMeanStd: ("mean", "var", "count"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
}
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})


class NotResumableError(RuntimeError):
    """The reason why an environment cannot resume within its episode."""


def plain(value: Any) -> Any:
    """A copy that consists of plain values.

    :raises NotResumableError: it contains something else
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
    raise NotResumableError(f"{value!r:.80}, a {kind.__name__}, which is not a plain value")


def get_attributes(owner: Any, names: Iterable[str]) -> State:
    """Those attributes that an object has, as plain values; points in time as the seconds since."""
    values = vars(owner)
    return {
        name: CLOCKS[name]() - values[name] if name in CLOCKS else _packed(values[name])
        for name in names
        if name in values
    }


def set_attributes(owner: Any, names: Iterable[str], state: State) -> None:
    """Put back what :func:`get_attributes` returned."""
    for name in names:
        if name in state:
            value = state[name]
            setattr(owner, name, CLOCKS[name]() - value if name in CLOCKS else _restored(vars(owner).get(name), value))


def _packed(value: Any) -> Any:
    """As :func:`plain`; the long lists of numbers of a ``Monitor`` as arrays."""
    if type(value) is list and set(map(type, value)) in ({int}, {float}):
        return np.array(value)
    return plain(value)


def _restored(old: Any, value: Any) -> Any:
    """What :func:`_packed` made of an attribute, as the type of its present value ``old``."""
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
    return hashlib.sha256(json.dumps(value, default=_bits).encode()).hexdigest()


def _bits(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes().hex()
    return repr(value)
