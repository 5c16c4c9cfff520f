"""A call of ``learn``: its progress and the state of its callbacks, and how an interrupted one is resumed.

The state of a callback is what its ``get_state()`` returns, for ``set_state(state)``. Without these methods, it is the
attributes that have changed since training began and are numbers, arrays or containers of these, and the state of
environments among the attributes. The configuration is the new callback's: arguments, texts, paths and other objects.
"""

import copy
import pickle
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.resumable.attributes import same_kind
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.saving.checkpoint import process_state
from ppo_plus.saving.format.container import naming
from ppo_plus.saving.format.names import Refused, constructor_arguments, decoding, require_attributes

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


@dataclass(eq=False)
class Call:
    """A call of ``learn`` and its progress: the rollouts that it has completed, whether every one has been learned
    from, its callbacks as they were configured, and the checkpoint that it is going to resume from."""

    total_timesteps: float | None = None
    iteration: int = 0
    between_rollouts: bool = True
    callbacks: list[BaseCallback] | None = None
    configured: list[dict[str, Any]] = field(default_factory=list)
    resumed: dict[str, Any] | None = None

    def watch(self, callback: BaseCallback) -> None:
        """Set the callback of this call, and order it: what takes checkpoints (``comes_first``) comes first, since what
        others do at the start of a rollout is done again after resuming."""
        for each in tree_of(callback):
            if isinstance(each, CallbackList):
                each.callbacks = sorted(
                    each.callbacks,
                    key=lambda root: not any(getattr(one, "comes_first", False) for one in tree_of(root)),
                )
        self.callbacks = [each for each in tree_of(callback) if not isinstance(each, CallbackList)]
        self.configured = [_plain_attributes(each) for each in self.callbacks]

    def close_bars(self) -> None:
        """Close progress bars, which an error would leave open: rich draws one at a time."""
        for each in self.callbacks or ():
            for name in ("pbar", "progress_bar", "bar"):  # SB3's, rl_zoo3's, and ours
                close = getattr(getattr(each, name, None), "close", None)
                if close is not None:
                    close()

    @property
    def in_all_processes(self) -> list[str]:
        """The callbacks in which processes that train together wait for each other (``in_all_processes``)."""
        return [type(each).__name__ for each in self.callbacks or () if getattr(each, "in_all_processes", False)]

    def state(self) -> dict[str, Any] | None:
        """Its state for a checkpoint."""
        if self.total_timesteps is None or self.callbacks is None:
            return None
        callbacks = [_state(*each) for each in zip(self.callbacks, self.configured, strict=True)]
        return {"total_timesteps": self.total_timesteps, "iteration": self.iteration, "callbacks": callbacks}

    def resume_from(self, checkpoint: dict[str, Any]) -> None:
        """Continue the call that a checkpoint was taken in, once ``learn`` is called."""
        call = checkpoint["call"]
        self.total_timesteps, self.iteration, self.resumed = call["total_timesteps"], call["iteration"], checkpoint

    @contextmanager
    def logs(self, model: Any, tb_log_name: str) -> Iterator[None]:
        """While the model sets up its logger: continue TensorBoard's files of the call that was interrupted."""
        logger = None
        if self.resumed is not None and not model._custom_logger:
            with naming(self.resumed["logs"]["folder"], "checkpoint"):
                logger = process_state.reopen(self.resumed["log"], model.tensorboard_log, tb_log_name, model.verbose)
        if logger is not None:
            model.set_logger(logger)
        yield
        if logger is not None:
            model._custom_logger = False

    def restore(self, model: Any) -> None:
        """Restore the rest of the checkpoint, once the call has started again."""
        if self.resumed is None:
            return
        resumed, self.resumed = self.resumed, None
        with naming(resumed["logs"]["folder"], "checkpoint"):
            self._restore_callbacks(resumed["call"]["callbacks"])
        process_state.set_log(model.logger, resumed["log"])
        # Last, since what comes before may draw.
        process_state.set_generators(resumed["generators"])

    def _restore_callbacks(self, states: list[dict[str, Any]]) -> None:
        """Restore states of callbacks, which are matched by class and order."""
        waiting = list(self.callbacks or ())
        for state in states:
            callback = next((each for each in waiting if type(each).__qualname__ == state["class"]), None)
            if callback is not None:
                waiting.remove(callback)
                with decoding(f"the state of callback {type(callback).__qualname__}"):
                    _put(callback, state)
            elif state["own"] or state["envs"] or state["changed"].keys() - COUNTS:
                warnings.warn(
                    f"the resumed run used callback {state['class']}, which was not passed to learn(): pass it, or its "
                    "state is lost",
                    stacklevel=4,
                )


@contextmanager
def calling(model: Any, total_timesteps: float) -> Iterator[Call]:
    """A call of a model's ``learn``, while it runs: the interrupted one if there is one."""
    if model.call.resumed is None:
        model.call = Call(total_timesteps)
    elif total_timesteps != model.call.total_timesteps:
        raise ValueError(
            f"total_timesteps={total_timesteps}: this call of learn resumes an interrupted one, which had "
            f"{model.call.total_timesteps}. Pass the same"
        )
    try:
        yield model.call
    finally:
        model.call.close_bars()
        model.call = Call()


def _state(callback: Any, configured: dict[str, Any]) -> dict[str, Any]:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return {
            "class": type(callback).__qualname__,
            "own": copy.deepcopy(callback.get_state()),
            "changed": {},
            "envs": {},
        }
    changed = {
        name: value
        for name, value in _plain_attributes(callback).items()
        if name not in configured or pickle.dumps(value) != pickle.dumps(configured[name])
    }
    envs = {name: get_state(env) for name, env in _envs(callback).items()}
    return {"class": type(callback).__qualname__, "own": None, "changed": changed, "envs": envs}


def _put(callback: Any, state: dict[str, Any]) -> None:
    if state["own"] is not None:
        callback.set_state(state["own"])
        return
    title, changed = type(callback).__qualname__, state["changed"]
    require_attributes(type(callback), changed)
    if GIVEN & changed.keys():
        raise Refused(f"it sets {min(GIVEN & changed.keys())} of {title}")
    arguments = constructor_arguments(type(callback))
    for name, value in changed.items():
        why, present = "", vars(callback).get(name)
        if not _is_plain(value) or not _is_plain(present):
            why = "it is not made of numbers"
        elif not same_kind(present, value):
            why = f"{value!r:.80} instead of {present!r:.80}"
        elif name in arguments:
            why = "it is an argument, which the new callback has (to keep it, define get_state and set_state)"
        if why:
            warnings.warn(f"{title}.{name} is not restored: {why}", stacklevel=5)
        else:
            setattr(callback, name, copy.deepcopy(value))
    for name, env in _envs(callback).items():
        reason = set_state(env, state["envs"][name]) if name in state["envs"] else None
        if reason:
            warnings.warn(f"{title}.{name} does not resume exactly: {reason}", stacklevel=5)


def _envs(callback: BaseCallback) -> dict[str, VecEnv]:
    return {name: each for name, each in vars(callback).items() if name not in GIVEN and isinstance(each, VecEnv)}


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
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, (int, float, th.Tensor))
