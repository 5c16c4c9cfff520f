"""Locks of processes, which the system releases when they end, for whatever reason."""

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
    """Acquire the lock of a file unless another process has it, and return whether it was acquired. The file is created
    if missing, and not deleted: otherwise two processes could have a lock of the same name."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")  # for users who look for the process
        file.flush()
        yield True
