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


def get_state(logger: Logger) -> dict[str, Any]:
    """What has been recorded and not written yet (numbers and texts; no pictures), and TensorBoard's folder with the
    sizes of its files."""
    values = {name: value for name, value in logger.name_to_value.items() if isinstance(value, np.ScalarType)}
    return {
        "values": values,
        "counts": {name: logger.name_to_count[name] for name in values if name in logger.name_to_count},
        "excluded": {name: logger.name_to_excluded[name] for name in values if name in logger.name_to_excluded},
        "folder": logger.dir,
        "sizes": {} if logger.dir is None else sizes(logger.dir, [EVENTS]),
    }


def set_state(logger: Logger, state: dict[str, Any]) -> None:
    """Restore the recorded values."""
    logger.name_to_value.update(state["values"])
    logger.name_to_count.update(state["counts"])
    logger.name_to_excluded.update(state["excluded"])


def reopen(state: dict[str, Any], verbose: int) -> Logger | None:
    """A logger that continues TensorBoard's files from where the state was taken; ``None``: there were none."""
    if state["folder"] is None:
        return None
    cut(state["folder"], [EVENTS], state["sizes"])
    return configure(state["folder"], ["tensorboard"] if verbose < 1 else ["stdout", "tensorboard"])


def sizes(folder: str | Path, patterns: Iterable[str]) -> dict[str, int]:
    """The sizes of files."""
    return {os.path.relpath(path, folder): path.stat().st_size for path in _matching(folder, patterns)}


def cut(folder: str | Path, patterns: Iterable[str], kept: dict[str, int]) -> None:
    """Cut off what was appended to files after their sizes were taken, so that nothing is in them twice.

    :param folder: the folder
    :param patterns: as for :func:`sizes`
    :param kept: from :func:`sizes`; files that did not exist then are emptied
    """
    for path in _matching(folder, patterns):
        size = kept.get(os.path.relpath(path, folder), 0)
        if path.stat().st_size > size:
            os.truncate(path, size)


def _matching(folder: str | Path, patterns: Iterable[str]) -> list[Path]:
    # The folder itself may not exist yet, if patterns lead out of it.
    paths = [os.path.normpath(os.path.join(escape(str(folder)), pattern)) for pattern in patterns]
    return sorted({Path(found) for path in paths for found in glob(path)})
