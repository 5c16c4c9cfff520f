"""What a process has beside the model: the generators of random numbers that all of it shares, and its logs."""

import os
import random
from collections.abc import Iterable
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger, configure

from ppo_plus.generators import check_facts

#: TensorBoard's files.
EVENTS = "events.out.tfevents.*"
#: What has been recorded and not written yet: the names in a checkpoint, and the attributes of ``Logger``.
RECORDED = {"values": "name_to_value", "counts": "name_to_count", "excluded": "name_to_excluded"}
#: The state of a logger without files in which nothing is recorded.
NO_LOG: dict[str, Any] = {"values": {}, "counts": {}, "excluded": {}, "folder": None, "sizes": {}}


def get_generators() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's generators; those of GPUs only if they are in use."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
    }


def set_generators(states: dict[str, Any]) -> None:
    """:raises ValueError: the state of NumPy's generator is not valid; nothing has changed then"""
    check_facts(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states["numpy"])
    th.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: th.cuda.device_count()]):
        th.cuda.set_rng_state(state, device)


def get_log(logger: Logger) -> dict[str, Any]:
    """The recorded numbers and texts, but no pictures, and TensorBoard's folder with the sizes of its files."""
    kept = {name for name, value in logger.name_to_value.items() if isinstance(value, np.ScalarType)}
    recorded = {part: getattr(logger, attribute).items() for part, attribute in RECORDED.items()}
    return {
        **{part: {name: value for name, value in items if name in kept} for part, items in recorded.items()},
        "folder": logger.dir,
        "sizes": {} if logger.dir is None else sizes(logger.dir, [EVENTS]),
    }


def set_log(logger: Logger, state: dict[str, Any]) -> None:
    """Restore the recorded values."""
    for part, attribute in RECORDED.items():
        getattr(logger, attribute).update(state[part])


def reopen(state: dict[str, Any], verbose: int) -> Logger | None:
    """A logger that continues TensorBoard's files from where the state was taken; ``None``: there were none."""
    if state["folder"] is None:
        return None
    cut(state["folder"], [EVENTS], state["sizes"])
    return configure(state["folder"], ["tensorboard"] if verbose < 1 else ["stdout", "tensorboard"])


def sizes(folder: str | Path, patterns: Iterable[str]) -> dict[str, int]:
    """The sizes of the files below a folder that patterns match."""
    # The folder itself may not exist yet, if patterns lead out of it.
    paths = [os.path.normpath(os.path.join(escape(str(folder)), pattern)) for pattern in patterns]
    return {os.path.relpath(found, folder): os.path.getsize(found) for path in paths for found in glob(path)}


def cut(folder: str | Path, patterns: Iterable[str], kept: dict[str, int]) -> None:
    """Cut off what was appended to files after ``kept`` was taken by :func:`sizes`, so that nothing is in them twice;
    files that did not exist then are emptied."""
    for name, size in sizes(folder, patterns).items():
        if size > kept.get(name, 0):
            os.truncate(os.path.normpath(os.path.join(folder, name)), kept.get(name, 0))
