"""Atomic writes: a file is written under another name in the same folder, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

#: The pattern of names of files that are being written, or were when their process was killed.
UNFINISHED = ".*.part"


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces ``path`` at the end of the block.

    If the block ends early (an error, a full disk, the end of the process), ``path`` is unchanged; if the process is
    killed, a file ``.NAME.….part`` may be left. A power failure leaves one of the two files.
    """
    path = Path(os.path.realpath(path))  # through a link, as writing in place would
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            with suppress(OSError):  # not every file system has permissions
                unfinished.chmod(path.stat().st_mode & 0o7777)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, completely or not at all; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
