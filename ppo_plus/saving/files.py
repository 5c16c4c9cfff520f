"""Files that are written completely or not at all, files of lines that grow, and locks of processes."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

#: The pattern of names of files that are being written, or were when their process was killed.
UNFINISHED = ".*.part"


def file_name(env_id: str) -> str:
    """An environment id without characters that have a meaning in paths: ``ALE-Pong-v5``."""
    return env_id.replace("/", "-").replace(":", "-")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write under another name in the same folder, which replaces ``path`` at the end of the block.

    If the block ends early (an error, a full disk, the end of the process), ``path`` is unchanged; if the process is
    killed, a file ``.NAME.….part`` may be left. A power failure leaves one of the two files.
    """
    path = Path(os.path.realpath(path))  # through a link, as writing in place would
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name[:50]}.{uuid4().hex}.part")  # names have at most 255 bytes
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


def append_lines(file: BinaryIO, lines: bytes) -> None:
    """Append records to a JSON Lines file that this process has locked, and wait until the disk has them.

    A process that is killed and a full disk leave a part of a line at the end, which is cut.

    :param file: opened to read and to write
    :param lines: the records, each with the end of its line
    """
    content = b"\n"
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        content = file.read()
    if content != b"\n":
        file.seek(0)
        end = file.read().rpartition(b"\n")[2]
        if is_whole(end):
            lines = b"\n" + lines  # an editor has removed the last line's end
        else:
            file.truncate(file.tell() - len(end))
            file.seek(0, os.SEEK_END)
    file.write(lines)
    file.flush()
    os.fsync(file.fileno())


def is_whole(line: bytes) -> bool:
    """Whether a line that has no end is a whole record: no part of a JSON object is valid JSON."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@contextmanager
def claim(path: str | Path) -> Iterator[bool]:
    """Acquire the lock of a file unless another process has it, and return whether it was acquired. The file is created
    if missing, and not deleted: else two processes could lock the same name. The end of the process releases it. A file
    system may have no locks; then it is always acquired."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
                raise
        file.truncate(0)
        file.write(f"{os.getpid()}\n")  # for users who look for the process
        file.flush()
        yield True
