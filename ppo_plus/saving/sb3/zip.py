"""Models as SB3 saves them: weights, and JSON with pickles in it, which are run only if they are trusted."""

import base64
import io
import json
import zipfile
from collections.abc import Collection
from typing import Any, NamedTuple

import torch as th

from ppo_plus.saving.format.container import PathOrFile, naming, opened
from ppo_plus.saving.format.names import Damaged, Refused, decoding
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.trees import tree_leaves

#: The members of interest.
MEMBERS = {"policy": "policy.pth", "policy.optimizer": "policy.optimizer.pth", "data": "data"}
#: The largest size of compressed members: so many bytes, or so many times the size of the file.
MOST_BYTES, MOST_TIMES = 2**26, 20


class SavedBySB3(NamedTuple):
    """What could be read of a model, and by name why the other attributes could not."""

    data: dict[str, Any]
    unread: dict[str, str]
    parameters: dict[str, Any]


def read_sb3_zip(path_or_file: PathOrFile, skipped: Collection[str] = ()) -> SavedBySB3:
    """A saved model without what only running its pickles could read; raises :class:`Refused` if weights are so."""
    with naming(path_or_file, "saved model"):
        with opened(path_or_file) as file, decoding("the archive"):
            members = _members(file)
        data, unread = _attributes(members.pop("data", b""), skipped)
        return SavedBySB3(data, unread, {name: _tensors(name, content) for name, content in members.items()})


def _members(file: Any) -> dict[str, bytes]:
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        _check_members(infos, size)
        names = {info.filename for info in infos}
        return {name: archive.read(path) for name, path in MEMBERS.items() if path in names}


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len({info.filename for info in infos}) != len(infos):
        raise Damaged("it has a member twice")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise Damaged("its members are compressed in another way than SB3's")
    if sum(info.file_size for info in infos) > max(MOST_BYTES, MOST_TIMES * size):
        raise Damaged(f"its members are more than {MOST_TIMES} times larger than itself")


def _attributes(text: bytes, skipped: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Those that can be read, and why the others cannot."""
    with decoding("its attributes"):
        written = {name: each for name, each in json.loads(text.decode()).items() if name not in skipped}
    data, unread = {}, {}
    for name, each in written.items():
        try:
            if isinstance(each, dict) and ":serialized:" in each:
                with decoding():
                    pickled = base64.b64decode(each[":serialized:"], validate=True)
                each = value_of(parse(pickled), len(pickled))
            data[name] = each
        except Refused as error:
            unread[name] = str(error)
    return data, unread


def _tensors(name: str, content: bytes) -> Any:
    """What torch saved, read by its reader that knows tensors only."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist(), len(content))
        found = th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Refused:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise Refused(f"{name}.pth cannot be read as tensors alone ({type(error).__name__}: {reason})") from error
    for each in tree_leaves(found):
        if isinstance(each, th.Tensor) and (
            each.layout != th.strided or each.numel() * each.element_size() > each.untyped_storage().nbytes()
        ):
            raise Refused("it has a tensor that is larger than its numbers")  # copies of it would be larger too
    return found
