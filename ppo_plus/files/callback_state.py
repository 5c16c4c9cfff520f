"""What callbacks have counted and found out during training, to be kept over an interruption.

A callback that offers two methods speaks for itself::

    def get_state(self) -> dict: ...        # numbers, strings, arrays, tensors, and lists, tuples and dicts of them
    def set_state(self, state) -> None: ... # called once training has started again

Of others the attributes are kept that hold such values and have changed since training began: what a callback was
configured with is the new one's. Of an environment among its attributes, as ``EvalCallback`` has one, the state is kept
where it can be.
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

#: What every callback is given anew.
GIVEN = {"model", "logger", "training_env", "locals", "globals", "parent"}
#: What every callback counts.
COUNTS = {"n_calls", "num_timesteps"}
SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.ndarray, th.Tensor)


def tree_of(callback: BaseCallback) -> Iterator[BaseCallback]:
    """A callback and all in it, in a fixed order."""
    yield callback
    for name, held in vars(callback).items():
        if name not in GIVEN:
            for each in held if isinstance(held, list) else [held]:
                if isinstance(each, BaseCallback):
                    yield from tree_of(each)


class CallbackStates:
    """The states of callbacks, seen from the beginning of training.

    :param root: the callback of a call of ``learn``, which has not started yet
    """

    def __init__(self, root: BaseCallback):
        self.callbacks = [each for each in tree_of(root) if not isinstance(each, CallbackList)]
        self.configured = [_plain_attributes(callback) for callback in self.callbacks]

    def get(self) -> list[dict[str, Any]]:
        """The present states: for each callback the name of its class, what has changed, and its environments'."""
        return [_state(*each) for each in zip(self.callbacks, self.configured, strict=True)]

    def set(self, states: list[dict[str, Any]]) -> list[str]:
        """Put kept states into these callbacks, which are taken in turn for those of the same class.

        :param states: from :meth:`get`
        :return: what there is to warn of
        """
        waiting = list(self.callbacks)
        warnings = []
        for state in states:
            callback = next((each for each in waiting if _name(each) == state["class"]), None)
            if callback is None and (state["own"] or state["envs"] or state["changed"].keys() - COUNTS):
                warnings.append(
                    f"the run that is gone on with had a callback {state['class']}, which is not there now: pass it to "
                    "learn, or what it has counted is lost"
                )
            elif callback is not None:
                waiting.remove(callback)
                warnings += _put(callback, state)
        return warnings


def _state(callback: Any, configured: dict[str, Any]) -> dict[str, Any]:
    if _speaks(callback):
        return {"class": _name(callback), "own": copy.deepcopy(callback.get_state()), "changed": {}, "envs": {}}
    changed = {
        name: value
        for name, value in _plain_attributes(callback).items()
        if name not in configured or not _equal(value, configured[name])
    }
    envs = {name: get_state(value) for name, value in vars(callback).items() if _is_env(name, value)}
    return {"class": _name(callback), "own": None, "changed": changed, "envs": envs}


def _put(callback: Any, state: dict[str, Any]) -> list[str]:
    """Put a state into a callback; what there is to warn of."""
    if state["own"] is not None:
        callback.set_state(state["own"])
        return []
    for name, value in state["changed"].items():
        setattr(callback, name, copy.deepcopy(value))
    envs = {name: env for name, env in vars(callback).items() if name in state["envs"] and _is_env(name, env)}
    reasons = {name: set_state(env, state["envs"][name]) for name, env in envs.items()}
    return [
        f"{_name(callback)}.{name} does not go on exactly where it stood: {reason}"
        for name, reason in reasons.items()
        if reason is not None
    ]


def _speaks(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _is_env(name: str, value: Any) -> bool:
    return name not in GIVEN and isinstance(value, VecEnv)


def _name(callback: BaseCallback) -> str:
    return type(callback).__qualname__


def _plain_attributes(callback: BaseCallback) -> dict[str, Any]:
    """Copies of the attributes that hold numbers, text, arrays and containers of these."""
    attributes = vars(callback).items()
    return {name: copy.deepcopy(value) for name, value in attributes if name not in GIVEN and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple, set, deque)):
        return all(map(_is_plain, value))
    return isinstance(value, SCALARS)


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
