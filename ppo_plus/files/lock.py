"""Locks that processes hold, and that the system releases when they end, however they do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def claim(path: str | Path) -> Iterator[bool]:
    """Hold a lock, if no other process holds it. The file stays: deleting it would let two processes hold a lock of the
    same name.

    :param path: the lock's file, made if it is not there
    :return: whether it is held
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # For people who look for the process.
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield True
