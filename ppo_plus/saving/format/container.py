"""One value as one file: a zip archive of a text that people can read and the arrays that it names.

``description.json`` says what the file is, its version, the packages that wrote it, and the value
(:mod:`ppo_plus.saving.format.values`); ``arrays.safetensors`` has the numbers, and other programs read it too. Neither
is compressed, so reading takes no more memory than a few times the file; the archive's checksums see every changed bit.
"""

import io
import json
import os
import platform
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import safetensors.torch
import torch as th

from ppo_plus.public import version_of
from ppo_plus.saving.files import replacing
from ppo_plus.saving.format.names import Damaged, Refused, decoding
from ppo_plus.saving.format.values import describe, restore

#: The version of the format. It changes when older files can no longer be read.
VERSION = 3
DESCRIPTION, ARRAYS = MEMBERS = ("description.json", "arrays.safetensors")
#: Packages whose versions are noted, for people.
PACKAGES = ("ppo_plus", "stable_baselines3", "torch", "gymnasium", "numpy")

#: What can be passed as a file.
PathOrFile = str | os.PathLike[str] | io.BufferedIOBase | BinaryIO


def write(path_or_file: PathOrFile, kind: str, value: object) -> None:
    """Write a value of a kind, such as ``"model"``, completely or not at all; raises :class:`OSError`, and as
    :func:`~ppo_plus.saving.format.values.describe`."""
    description, arrays = describe(value, kind)
    packages = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    head = {"format": f"ppo_plus {kind}", "version": VERSION, "packages": packages, "value": description}
    text = json.dumps(head, indent=1, allow_nan=False).encode()
    with opened_to_write(path_or_file) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(DESCRIPTION, text)
        archive.writestr(ARRAYS, safetensors.torch.save(arrays))


def read(path_or_file: PathOrFile, kind: str) -> Any:
    """The value in a file; nothing in it is run. Raises ``Damaged``, ``Refused`` and ``OSError``."""
    head, arrays = read_parts(path_or_file, kind)
    with naming(path_or_file):
        return restore(head["value"], arrays)


def read_parts(path_or_file: PathOrFile, kind: str) -> tuple[dict[str, Any], dict[str, th.Tensor]]:
    """The description in a file, with its head, and the arrays; errors as for :func:`read`."""
    with naming(path_or_file):
        with opened(path_or_file) as file, decoding():
            size = file.seek(0, io.SEEK_END)
            with zipfile.ZipFile(file) as archive:
                _check_members(archive.infolist(), size)
                text, data = (archive.read(name) for name in MEMBERS)
        with decoding():
            return _head(text, kind), safetensors.torch.load(data)


def is_container(path_or_file: PathOrFile) -> bool:
    """Whether a file is one of these, damaged or not, rather than one of SB3's."""
    # zipfile raises many kinds of errors.
    with opened(path_or_file) as file, suppress(Exception), zipfile.ZipFile(file) as archive:
        return bool({*MEMBERS} & {*archive.namelist()})
    return False


def with_suffix(path: Path) -> Path:
    """A file by its name, which may lack SB3's suffix."""
    zipped = Path(f"{path}.zip")
    return zipped if not path.is_file() and zipped.is_file() else path


@contextmanager
def opened(path_or_file: PathOrFile) -> Iterator[BinaryIO]:
    """A file to read, also by its name without SB3's suffix; an open one stays open, at its position."""
    if isinstance(path_or_file, (str, os.PathLike)):
        with with_suffix(Path(path_or_file)).open("rb") as file:
            yield file
    else:
        position = path_or_file.tell()
        try:
            yield cast(BinaryIO, path_or_file)
        finally:
            path_or_file.seek(position)


@contextmanager
def naming(path_or_file: PathOrFile, what: str = "file of ppo_plus") -> Iterator[None]:
    """Begin error messages about a file with its name, and with what it should be. An error that is neither of an
    argument nor of the system means that the file is damaged."""
    name = path_or_file if isinstance(path_or_file, (str, os.PathLike)) else getattr(path_or_file, "name", "the file")
    try:
        with decoding(passing=(ValueError, TypeError, OSError)):
            yield
    except Refused as error:
        text = " ".join(str(error).split())
        problem = f"is not a valid {what} (damaged or truncated?)" if isinstance(error, Damaged) else "is not read"
        raise type(error)(f"{name} {problem}: {text}") from error.__cause__


def opened_to_write(path_or_file: PathOrFile) -> AbstractContextManager[BinaryIO]:
    """A file that is written completely or not at all, with SB3's suffix if it has none; an open one stays open."""
    if isinstance(path_or_file, (str, os.PathLike)):
        path = Path(path_or_file)
        return replacing(path if path.suffix else path.with_name(f"{path.name}.zip"))
    return nullcontext(cast(BinaryIO, path_or_file))


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    if sorted(info.filename for info in infos) != sorted(MEMBERS):
        raise Damaged(f"it must contain {' and '.join(MEMBERS)}, once each, and nothing else")
    if any(info.compress_type != zipfile.ZIP_STORED or info.file_size > size for info in infos):
        raise Damaged("its members must not be compressed, nor larger than the file")


def _head(text: bytes, kind: str) -> dict[str, Any]:
    """The description, checked to be one of this kind and version."""
    head: dict[str, Any] = json.loads(text.decode())
    title, number, by = head["format"], head["version"], head["packages"].get("ppo_plus")
    if title != f"ppo_plus {kind}":
        raise Refused(f"it is a {title[:100]}, not a ppo_plus {kind}")
    if number != VERSION:
        remedy = "update ppo_plus" if number > VERSION else "use the ppo_plus that wrote it, or train again"
        written = f"version {number} of the format, written by ppo_plus {str(by)[:30]}"
        raise Refused(f"it has {written}, and this ppo_plus reads version {VERSION}: {remedy}")
    return head
