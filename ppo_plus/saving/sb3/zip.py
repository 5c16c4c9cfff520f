"""Models as SB3 saves them: weights, and JSON with pickles in it, which are read but never run."""

import base64
import io
import json
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import torch as th

from ppo_plus.saving.format.container import PathOrFile, naming, opened
from ppo_plus.saving.format.names import Damaged, Refused, reading_a_value
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.trees import tree_leaves

#: Members that PPO leaves empty.
VARIABLES = ("pytorch_variables", "tensors")
#: The largest size of compressed members: so many bytes, or so many times the size of the file.
MOST_BYTES, MOST_TIMES = 2**26, 20

#: Attributes that are made again if they are missing, or that only belong to the episodes.
NOT_NEEDED = frozenset(
    "collector lr_schedule _last_episode_starts _last_lstm_states _last_obs _last_original_obs".split()
)


class SavedBySB3(NamedTuple):
    """What could be read of a model."""

    data: dict[str, Any]
    unread: dict[str, str]
    parameters: dict[str, Any]


def read_sb3_zip(path_or_file: PathOrFile, skipped: Collection[str] = ()) -> SavedBySB3:
    """Read what can be read without running anything.

    :raises Refused: its weights cannot be read so
    :raises Damaged: it is damaged, or no saved model
    """
    with naming(path_or_file, "saved model"):
        with opened(path_or_file) as file:
            members = _members(file)
        data, unread = _attributes(members.pop("data"), skipped)
        return SavedBySB3(data, unread, {name: _tensors(name, content) for name, content in members.items()})


def check_unread(path_or_file: PathOrFile, unread: Mapping[str, str], needed: Collection[str]) -> None:
    """Raise an error if something needed could not be read, and warn of anything else.

    :raises Refused: one of them could not be read; says which, and the remedy
    """
    missing = {name: reason for name, reason in unread.items() if name in needed}
    if missing:
        what = ", ".join(f"{name} ({reason})" for name, reason in missing.items())
        remedy = ", ".join(f"{name}=" for name in missing)
        with naming(path_or_file):
            raise Refused(
                f"it contains pickles that could run code: {what}. Pass {remedy} or, if you trust "
                "its source, trust_pickle=True (--trust-model)"
            )
    lost = sorted(unread.keys() - NOT_NEEDED)
    if lost:
        warnings.warn(f"{path_or_file} is read without {', '.join(lost)}: trust_pickle=True reads them", stacklevel=5)


def _members(file: Any) -> dict[str, bytes]:
    """The members of interest by name, those of weights without their suffix ``.pth``."""
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            _check_members(infos, size)
            paths = [PurePosixPath(info.filename) for info in infos]
            weights = [path for path in paths if path.suffix == ".pth" and len(path.parts) == 1]
            wanted = {path.stem: str(path) for path in weights if path.stem not in VARIABLES}
            members = {name: archive.read(path) for name, path in {**wanted, "data": "data"}.items()}
    except Refused:
        raise
    except Exception as error:  # zipfile raises many kinds
        raise Damaged(f"{type(error).__name__}: {str(error)[:200]}") from error
    if len(members) == 1:
        # If an archive was cut, an inner one may look like all of it.
        raise Damaged("it has no weights")
    return members


def _check_members(infos: list[zipfile.ZipInfo], size: int) -> None:
    if len({info.filename for info in infos}) != len(infos):
        raise Damaged("it has a member twice")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise Damaged("its members are compressed in another way than SB3's")
    if sum(info.file_size for info in infos) > max(MOST_BYTES, MOST_TIMES * size):
        raise Damaged(f"its members are more than {MOST_TIMES} times larger than itself")


def _attributes(text: bytes, skipped: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        written = {name: each for name, each in json.loads(text.decode()).items() if name not in skipped}
    except Exception as error:
        raise Damaged(f"its attributes: {type(error).__name__}: {str(error)[:200]}") from error
    data, unread = {}, {}
    for name, each in written.items():
        try:
            data[name] = _value(each)
        except Refused as error:
            unread[name] = str(error)
    return data, unread


def _value(written: Any) -> Any:
    if not (isinstance(written, dict) and ":serialized:" in written):
        return written
    with reading_a_value():
        pickled = base64.b64decode(written[":serialized:"], validate=True)
    return value_of(parse(pickled), len(pickled))


def _tensors(name: str, content: bytes) -> Any:
    """What torch saved, read by its reader that knows tensors only."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist(), len(content))
        found = th.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _require_whole(found)
        return found
    except Refused:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:200]
        raise Refused(f"{name}.pth cannot be read as tensors alone ({type(error).__name__}: {reason})") from error


def _require_whole(value: Any) -> None:
    """:raises Refused: a tensor is larger than what is stored of it, as copies of it would be"""
    for each in tree_leaves(value):
        if isinstance(each, th.Tensor) and (
            each.layout != th.strided or each.numel() * each.element_size() > each.untyped_storage().nbytes()
        ):
            raise Refused("it has a tensor that is larger than its numbers")
