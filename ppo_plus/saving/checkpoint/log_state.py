"""The state of a logger, and the lengths of its files."""

import os
from collections.abc import Iterable
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import Logger, configure

#: TensorBoard's files.
EVENTS = "events.out.tfevents.*"
#: What has been recorded and not written yet: the names in a checkpoint, and the attributes of ``Logger``.
RECORDED = {"values": "name_to_value", "counts": "name_to_count", "excluded": "name_to_excluded"}
#: The state of a logger without files in which nothing is recorded.
EMPTY: dict[str, Any] = {"values": {}, "counts": {}, "excluded": {}, "folder": None, "sizes": {}}


def get_state(logger: Logger) -> dict[str, Any]:
    """The recorded numbers and texts, but no pictures, and TensorBoard's folder with the sizes of its files."""
    kept = {name for name, value in logger.name_to_value.items() if isinstance(value, np.ScalarType)}
    recorded = {part: getattr(logger, attribute).items() for part, attribute in RECORDED.items()}
    return {
        **{part: {name: value for name, value in items if name in kept} for part, items in recorded.items()},
        "folder": logger.dir,
        "sizes": {} if logger.dir is None else sizes(logger.dir, [EVENTS]),
    }


def set_state(logger: Logger, state: dict[str, Any]) -> None:
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
