"""What a process has beside the model: its shared random generators, its logs, and the callbacks of ``learn``.

The state of a callback is what its ``get_state()`` returns, for ``set_state(state)``. Without these methods, it is the
attributes that have changed since training began and are numbers, arrays or containers of these, and the state of
environments among the attributes. The configuration is the new callback's: arguments, texts, paths and other objects.
"""

import copy
import os
import pickle
import random
import re
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.call import SET_BY_SB3
from ppo_plus.envs.resumable.attributes import NotResumableError, same_kind
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.generators import check_facts
from ppo_plus.saving.format.names import Refused, constructor_arguments, require_attributes
from ppo_plus.saving.format.values import NATIVE, STORED

#: TensorBoard's files.
EVENTS = "events.out.tfevents.*"
#: The kinds of GPUs, by the names of torch's modules.
GPUS = ("cuda", "xpu", "mps")
#: What has been recorded and not written yet: the names in a checkpoint, and the attributes of ``Logger``.
RECORDED = {"values": "name_to_value", "counts": "name_to_count", "excluded": "name_to_excluded"}
CONTAINERS = dict, list, tuple, set, deque


def get_generators() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's generators; those of GPUs only if they are in use."""
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    states["torch"] = th.get_rng_state()
    for kind in GPUS:
        gpus = getattr(th, kind)
        # Torch does not say whether Apple's is in use.
        is_used = getattr(gpus, "is_initialized", gpus.is_available)()
        states[kind] = [gpus.get_rng_state(i) for i in range(gpus.device_count())] if is_used else []
    return states


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the random generators after the block, for example after building a model, which seeds them."""
    states = get_generators()
    try:
        yield
    finally:
        set_generators(states)


def set_generators(states: dict[str, Any]) -> None:
    """:raises ValueError: the state of NumPy's generator is not valid; nothing has changed then"""
    check_facts(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states["numpy"])
    th.set_rng_state(states["torch"])
    for kind in GPUS:
        gpus = getattr(th, kind)
        for device, state in enumerate(states[kind][: gpus.device_count()]):
            gpus.set_rng_state(state, device)


def get_logger(logger: Logger) -> dict[str, Any]:
    """What a logger has recorded, without pictures, and its folder with the sizes of TensorBoard's files."""
    kept = {name for name, value in logger.name_to_value.items() if isinstance(value, np.ScalarType)}
    recorded = {part: getattr(logger, attribute).items() for part, attribute in RECORDED.items()}
    return {
        **{part: {name: value for name, value in items if name in kept} for part, items in recorded.items()},
        "run_folder": logger.dir and os.path.basename(logger.dir),
        "event_files": sizes(logger.dir, [EVENTS]) if logger.dir else {},
    }


def set_logger(logger: Logger, state: dict[str, Any]) -> None:
    """Restore the recorded values."""
    for part, attribute in RECORDED.items():
        getattr(logger, attribute).update(state[part])


def reopen(state: dict[str, Any], tensorboard_log: str | None, tb_log_name: str, verbose: int) -> Logger | None:
    """A logger that continues TensorBoard's files from where the state was taken, in the folder that the caller names:
    of the state's, only the number of the run is used. ``None``: there are no such files."""
    if not state["event_files"]:
        return None
    number = re.search(r"_[0-9]+\Z", state["run_folder"] or "")
    name = tb_log_name + (number[0] if number else "")
    kept = {os.path.join(name, file): size for file, size in state["event_files"].items()}
    if tensorboard_log is None or not all(os.path.isfile(os.path.join(tensorboard_log, file)) for file in kept):
        problem = f"tensorboard_log={tensorboard_log!r} does not have them as {name}"
        remedy = "Pass the tensorboard_log of that run to resume (ppo-plus train: -tb), and its tb_log_name to learn"
        warnings.warn(f"TensorBoard's files of the resumed run are not continued: {problem}. {remedy}", stacklevel=6)
        return None
    cut(tensorboard_log, [os.path.join(escape(name), EVENTS)], kept)
    return configure(os.path.join(tensorboard_log, name), ["tensorboard"] if verbose < 1 else ["stdout", "tensorboard"])


def cut(folder: str | Path, patterns: Iterable[str], kept: dict[str, int]) -> None:
    """Cut off what was appended to files after ``kept`` was taken by :func:`sizes`, so that nothing is in them twice;
    files that did not exist then are emptied. The patterns are the caller's, and ``kept`` may be untrusted: what else
    it names is left alone.

    :raises Refused: a file leads through a link
    """
    for name, size in sizes(folder, patterns).items():
        path = os.path.abspath(os.path.join(folder, name))
        # What is above both the folder and the file is the caller's, and may be a link.
        above = os.path.commonpath([os.path.abspath(folder), path])
        if os.path.realpath(path) != os.path.join(os.path.realpath(above), os.path.relpath(path, above)):
            raise Refused(f"{path} leads through a link, and is not cut: remove the link, or leave it out of the logs")
        if size > kept.get(name, 0):
            os.truncate(path, max(kept.get(name, 0), 0))


def sizes(folder: str | Path, patterns: Iterable[str]) -> dict[str, int]:
    """The sizes of the files below a folder that patterns match."""
    # The folder itself may not exist yet, if patterns lead out of it.
    paths = [os.path.normpath(os.path.join(escape(str(folder)), pattern)) for pattern in patterns]
    return {os.path.relpath(file, folder): os.path.getsize(file) for path in paths for file in glob(path)}


# --- callbacks --------------------------------------------------------------------------------------------------------


def get_callback(callback: BaseCallback, configured: dict[str, bytes]) -> dict[str, Any]:
    """The state of a callback, whose :func:`plain_attributes` before training were ``configured``."""
    title = type(callback).__qualname__
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return {"class": title, "own": copy.deepcopy(callback.get_state()), "changed": {}, "envs": {}}
    now = plain_attributes(callback)
    changed = {name: copy.deepcopy(vars(callback)[name]) for name in now if now[name] != configured.get(name)}
    # Those that are closed have no state.
    envs = {name: get_state(env) for name, env in _envs(callback).items() if not getattr(env, "closed", False)}
    kept = SET_BY_SB3 | constructor_arguments(type(callback)).keys() | now.keys()
    values = {name: value for name, value in vars(callback).items() if name not in kept}
    # A container that was plain when training began, such as an empty list, has other values in it now.
    filled = {name for name in values if name in configured and isinstance(values[name], CONTAINERS)}
    if lost := [name for name, value in values.items() if name in filled or _is_lost(value)]:
        lack = f"checkpoints lack {' and '.join(f'{title}.{name}' for name in lost)}"
        warnings.warn(f"{lack}: define get_state and set_state in the callback to keep it", stacklevel=5)
    return {"class": title, "own": None, "changed": changed, "envs": envs}


def set_callbacks(callbacks: list[BaseCallback], states: list[dict[str, Any]]) -> None:
    """Restore states of callbacks, which are matched by class and order."""
    waiting = [*callbacks]
    for state in states:
        callback = next((one for one in waiting if type(one).__qualname__ == state["class"]), None)
        if callback is not None:
            waiting.remove(callback)
            _set_callback(callback, state)
        elif state["own"] or state["envs"] or state["changed"].keys() - {"n_calls", "num_timesteps"}:  # all have these
            used = f"the resumed run used callback {state['class']}, which was not passed to learn()"
            warnings.warn(f"{used}: pass it, or its state is lost", stacklevel=4)


def _set_callback(callback: Any, state: dict[str, Any]) -> None:
    if state["own"] is not None:
        callback.set_state(state["own"])
        return
    title, changed = state["class"], state["changed"]
    require_attributes(type(callback), changed)
    fixed = SET_BY_SB3 | constructor_arguments(type(callback)).keys()
    for name, value in changed.items():
        present = vars(callback).get(name)
        if name in fixed or not (_is_plain(value) and _is_plain(present) and same_kind(present, value)):
            why = "it is an argument, or not a number where there was one (define get_state and set_state to keep it)"
            warnings.warn(f"{title}.{name} is not restored: {why}", stacklevel=5)
        else:
            are_tensors = isinstance(value, th.Tensor) and isinstance(present, th.Tensor)
            setattr(callback, name, value.to(present.device, copy=True) if are_tensors else copy.deepcopy(value))
    for name, env in _envs(callback).items():
        try:
            reason = set_state(env, state["envs"][name]) if name in state["envs"] else None
        except (ValueError, NotResumableError) as error:  # it is another one now
            reason = str(error)
        if reason:
            warnings.warn(f"{title}.{name} does not resume exactly: {reason}", stacklevel=5)


def _envs(callback: BaseCallback) -> dict[str, VecEnv]:
    attributes = vars(callback).items()
    return {name: value for name, value in attributes if name not in SET_BY_SB3 and isinstance(value, VecEnv)}


def plain_attributes(callback: BaseCallback) -> dict[str, bytes]:
    """The attributes of a callback that are numbers, arrays or containers of these, pickled: copies take longer."""
    attributes = vars(callback).items()
    return {name: pickle.dumps(value) for name, value in attributes if name not in SET_BY_SB3 and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, an array of numbers or a container of these; keys of dicts may be texts. Subclasses,
    such as a named tuple, may be something else."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return all(type(key) is str or _is_plain(key) for key in value) and all(map(_is_plain, value.values()))
    if kind in (list, tuple, set, deque):
        return all(map(_is_plain, value))
    if kind is np.ndarray or isinstance(value, np.generic):
        return value.dtype.isnative and value.dtype.name in NATIVE
    if kind in (th.Tensor, th.nn.Parameter):
        return value.layout == th.strided and value.dtype in STORED and not (kind is th.Tensor and value.requires_grad)
    return value is None or kind in (bool, int, float)


def _is_lost(value: object) -> bool:
    """Whether a value is, or contains, a generator, a learned tensor or a container of numbers that is not plain."""
    if isinstance(value, CONTAINERS) and not _is_plain(value):
        parts = value.values() if isinstance(value, dict) else value
        return _is_plain({**value} if isinstance(value, dict) else [*value]) or any(map(_is_lost, parts))
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    return isinstance(value, generators) or (type(value) is th.Tensor and value.requires_grad)
