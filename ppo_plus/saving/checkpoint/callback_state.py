"""The state of callbacks, to be restored when training resumes.

A callback may have two methods for it::

    def get_state(self) -> dict: ...        # numbers, strings, arrays, tensors, and lists, tuples and dicts of them
    def set_state(self, state) -> None: ... # called after training has started again

Otherwise the state is those attributes that have changed since training began and are numbers, arrays or containers of
these; the configuration, such as texts and paths, is the new callback's. The state of an environment among the
attributes, as in ``EvalCallback``, is saved if possible.
"""

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.saving.format.names import Refused, require_attributes

#: Attributes that SB3 sets on every callback.
GIVEN = {"model", "logger", "training_env", "locals", "globals", "parent"}
#: Counters of every callback.
COUNTS = {"n_calls", "num_timesteps"}


def tree_of(callback: BaseCallback) -> Iterator[BaseCallback]:
    """A callback and all in it, in a fixed order."""
    yield callback
    for name, value in vars(callback).items():
        if name not in GIVEN:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, BaseCallback):
                    yield from tree_of(each)


class CallbackStates:
    """The states of callbacks, relative to the beginning of training."""

    def __init__(self, root: BaseCallback):
        self.callbacks = [each for each in tree_of(root) if not isinstance(each, CallbackList)]
        self.configured = [_plain_attributes(callback) for callback in self.callbacks]

    def get(self) -> list[dict[str, Any]]:
        """The present states: for each callback the name of its class, what has changed, and its environments'."""
        return [_state(*each) for each in zip(self.callbacks, self.configured, strict=True)]

    def set(self, states: list[dict[str, Any]]) -> list[str]:
        """Restore states from :meth:`get` into these callbacks, matched by class and order, and return warnings."""
        waiting = list(self.callbacks)
        warnings = []
        for state in states:
            callback = next((each for each in waiting if _name(each) == state["class"]), None)
            if callback is not None:
                waiting.remove(callback)
                warnings += _put(callback, state)
            elif state["own"] or state["envs"] or state["changed"].keys() - COUNTS:
                warnings.append(
                    f"the resumed run used callback {state['class']}, which was not passed to learn(): pass it, or its "
                    "state is lost"
                )
        return warnings


def _state(callback: Any, configured: dict[str, Any]) -> dict[str, Any]:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return {"class": _name(callback), "own": copy.deepcopy(callback.get_state()), "changed": {}, "envs": {}}
    changed = {
        name: value
        for name, value in _plain_attributes(callback).items()
        if name not in configured or not _equal(value, configured[name])
    }
    envs = {name: get_state(env) for name, env in _envs(callback).items()}
    return {"class": _name(callback), "own": None, "changed": changed, "envs": envs}


def _put(callback: Any, state: dict[str, Any]) -> list[str]:
    """Restore a state into a callback; returns warnings."""
    if state["own"] is not None:
        callback.set_state(state["own"])
        return []
    title, changed, warnings = _name(callback), state["changed"], []
    require_attributes(type(callback), changed)
    if GIVEN & changed.keys():
        raise Refused(f"it sets {min(GIVEN & changed.keys())} of {title}")
    for name, value in changed.items():
        if _is_plain(value):
            setattr(callback, name, copy.deepcopy(value))
        else:
            warnings.append(f"{title}.{name} is not restored: it is not made of numbers")
    for name, env in _envs(callback).items():
        reason = set_state(env, state["envs"][name]) if name in state["envs"] else None
        if reason:
            warnings.append(f"{title}.{name} does not resume exactly: {reason}")
    return warnings


def _envs(callback: BaseCallback) -> dict[str, VecEnv]:
    return {name: each for name, each in vars(callback).items() if name not in GIVEN and isinstance(each, VecEnv)}


def _name(callback: BaseCallback) -> str:
    """The name in a file: ``saved_as`` if the class has it, so that it may be renamed."""
    return getattr(callback, "saved_as", type(callback).__qualname__)


def _plain_attributes(callback: BaseCallback) -> dict[str, Any]:
    attributes = vars(callback).items()
    return {name: copy.deepcopy(value) for name, value in attributes if name not in GIVEN and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, an array of numbers or a container of these; keys of dicts may be texts."""
    if isinstance(value, dict):
        return all(isinstance(key, str) or _is_plain(key) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, deque)):
        return all(map(_is_plain, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biuf"
    return value is None or isinstance(value, (int, float, th.Tensor))


def _equal(a: Any, b: Any) -> bool:
    """Whether two plain values are the same, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, (np.ndarray, th.Tensor)):
        return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
    return bool(a == b or (a != a and b != b))
