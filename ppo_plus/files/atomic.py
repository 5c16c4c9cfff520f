"""Files that are whole at any time: written beside their place, then put there in one step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

#: What the names of files match that are being written, or were when their process was killed.
UNFINISHED = ".*.part"


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` at the end of the block.

    Whatever ends the block before (an error, a full disk, the end of the process), ``path`` is what it was; only where
    the process is killed a file ``.NAME.….part`` may stay beside it. Once the block has ended the file outlasts a power
    failure too.

    :param path: the file to make or to replace; missing folders are made
    :raises OSError: it cannot be written
    """
    path = Path(os.path.realpath(path))  # through a link, as writing in place would
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            with suppress(OSError):  # not every file system has permissions
                beside.chmod(path.stat().st_mode & 0o7777)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    _settle(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def _settle(folder: Path) -> None:
    """Let what was renamed in a folder outlast a power failure, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
