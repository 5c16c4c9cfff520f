"""A file is read as it was written, or raises an error of one line; it runs no code, and memory is bounded."""

import io
import json
import pickle
import random
import struct
import tracemalloc
import zipfile
from collections import deque

import numpy as np
import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces
from parametrization import sample
from poison import Evil, forbid_pickles

from ppo_plus import ColoredNoise, MlpPolicy, linear
from ppo_plus.saving.format import container
from ppo_plus.saving.format.container import ARRAYS, DESCRIPTION, VERSION, read, write
from ppo_plus.saving.format.names import Damaged, Refused
from ppo_plus.saving.format.values import Undescribable, describe

VALUE = {
    "weights": {"policy": {"0.weight": th.arange(40.0).reshape(8, 5), "0.bias": th.ones(8, dtype=th.bfloat16)}},
    "history": deque([{"r": 1.5, "l": 3}, {"r": float("nan"), "l": np.int64(4)}], maxlen=100),
    "space": spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3, start=1)),
    "schedule": linear(0.1),
    "noise": ColoredNoise(0.5, 16),
    "class": MlpPolicy,
    "!tuple": (1, 2**200, -0.0, b"\0", "ü"),
    "masks": np.array([True, False]),
}


def text_of(value):
    """A value as text and numbers, to compare."""
    description, arrays = describe(value)
    numbers = {name: (str(each.dtype), each.reshape(-1, 1).view(th.uint8).tolist()) for name, each in arrays.items()}
    return json.dumps([description, numbers])


EXPECTED = text_of(VALUE)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "value.zip"
    write(path, "test", VALUE)
    return path.read_bytes()


def archive_of(text, arrays=None, how=zipfile.ZIP_STORED, **others):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr(DESCRIPTION, text if isinstance(text, (str, bytes)) else json.dumps(text))
        archive.writestr(ARRAYS, safetensors.torch.save({}) if arrays is None else arrays)
        for name, data in others.items():
            archive.writestr(name, data)
    return file.getvalue()


HEAD = {"format": "ppo_plus test", "version": VERSION, "packages": {}, "value": 1}


def test_a_value_comes_back_from_a_path_and_from_an_open_file(tmp_path):
    write(tmp_path / "new" / "a.zip", "test", VALUE)
    assert text_of(read(tmp_path / "new" / "a.zip", "test")) == EXPECTED
    assert text_of(read(str(tmp_path / "new" / "a"), "test")) == EXPECTED
    file = io.BytesIO()
    write(file, "test", VALUE)
    file.seek(5)
    assert text_of(read(file, "test")) == EXPECTED and file.tell() == 5 and not file.closed


def test_people_and_other_programs_can_read_it(written):
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        head = json.loads(archive.read(DESCRIPTION))
        arrays = safetensors.torch.load(archive.read(ARRAYS))
    assert head["format"] == "ppo_plus test" and head["version"] == VERSION and "torch" in head["packages"]
    assert head["value"]["!dict"][3] == ["schedule", {"!ppo_plus:Linear": {"start": 0.1, "end": 0.0}}]
    assert th.equal(arrays["test['weights']['policy']['0.weight']"], VALUE["weights"]["policy"]["0.weight"])


def test_tensors_that_share_memory_are_written(tmp_path):
    flat = th.arange(6.0)
    write(tmp_path / "a", "test", [flat, flat[2:], flat.reshape(2, 3).T, flat])
    assert [each.tolist() for each in read(tmp_path / "a", "test")][1:3] == [[2, 3, 4, 5], [[0, 3], [1, 4], [2, 5]]]


def test_what_cannot_be_described_leaves_the_earlier_file(tmp_path):
    write(tmp_path / "a", "test", 1)
    with pytest.raises(Undescribable, match="test"):
        write(tmp_path / "a", "test", lambda: 1)
    assert read(tmp_path / "a", "test") == 1 and [each.name for each in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("name", ["a", "a.zip", "a_vecnormalize.zip"])
def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"/{name}'$"):
        read(tmp_path / name, "test")


def test_a_folder_may_have_the_name_of_a_file(tmp_path):
    (tmp_path / "Nav-v0").mkdir()
    with pytest.raises(IsADirectoryError):
        container.is_container(tmp_path / "Nav-v0")
    write(tmp_path / "Nav-v0", "test", 1)
    (tmp_path / "text").write_bytes(b"text")
    assert not container.is_container(tmp_path / "text")
    assert container.is_container(tmp_path / "Nav-v0") and read(str(tmp_path / "Nav-v0"), "test") == 1


def refusal(data, tmp_path, kind="test"):
    path = tmp_path / "some.zip"
    path.write_bytes(data)
    with pytest.raises(Refused) as raised:
        read(path, kind)
    message = str(raised.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 700
    return raised.value


def test_another_kind_raises_an_error(written, tmp_path):
    assert str(refusal(written, tmp_path, "model")).endswith("is a ppo_plus test, not a ppo_plus model")


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(VERSION - 1, "use the ppo_plus that wrote it, or train again"), (VERSION + 1, "update ppo_plus")],
)
def test_another_version_raises_an_error_with_the_remedy(version, remedy, tmp_path):
    head = HEAD | {"version": version, "packages": {"ppo_plus": "7.1"}, "value": {"!new": 1}}
    error = refusal(archive_of(head), tmp_path)
    assert f"it has version {version} of the format, written by ppo_plus 7.1" in str(error)
    assert str(error).endswith(f"reads version {VERSION}: {remedy}") and not isinstance(error, Damaged)


def test_a_forbidden_name_raises_an_error_with_the_remedy(tmp_path):
    error = refusal(archive_of(HEAD | {"value": {"!name": "os:system"}}), tmp_path)
    assert "os:system" in str(error) and "ppo_plus.register" in str(error)


def test_pickles_are_not_read(tmp_path):
    evil = pickle.dumps(Evil(tmp_path / "ran"))
    for data in (evil, archive_of(evil), archive_of(HEAD, evil)):
        assert isinstance(refusal(data, tmp_path), Damaged)
    assert not (tmp_path / "ran").exists()


def tensors(header, data=b""):
    """A file of arrays with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return archive_of(HEAD | {"value": {"!array": "a"}}, struct.pack("<Q", len(text)) + text + data)


def array(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def with_twice():
    file = io.BytesIO(archive_of(HEAD))
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(DESCRIPTION, json.dumps(HEAD | {"value": 2}))
    return file.getvalue()


DAMAGED = {
    "head: no JSON": lambda: archive_of("{"),
    "head: no object": lambda: archive_of("[]"),
    "head: deep": lambda: archive_of('{"format": ' + "[" * 100_000),
    "head: no value": lambda: archive_of({key: HEAD[key] for key in ("format", "version", "packages")}),
    "head: no version": lambda: archive_of(HEAD | {"version": "1"}),
    "arrays: missing": lambda: archive_of(HEAD | {"value": {"!array": "a"}}),
    "arrays: a huge header": lambda: archive_of(HEAD, struct.pack("<Q", 2**63) + b"{}"),
    "arrays: no JSON": lambda: tensors(b"{"),
    "arrays: huge": lambda: tensors({"a": array("F32", [10**12], 0, 4 * 10**12)}),
    "arrays: huge without data": lambda: tensors({"a": array("F32", [10**12], 0, 0)}),
    "arrays: an overflow": lambda: tensors({"a": array("F32", [0, 2**62, 2**62], 0, 0)}),
    "arrays: unknown numbers": lambda: tensors({"a": array("PY", [4], 0, 4)}, b"1234"),
    "archive: text": lambda: b"text",
    "archive: nothing": lambda: b"",
    "archive: a bomb": lambda: archive_of(b" " * 100_000_000 + json.dumps(HEAD).encode(), how=zipfile.ZIP_DEFLATED),
    "archive: another member": lambda: archive_of(HEAD, **{"data.pkl": b""}),
    "archive: a path": lambda: archive_of(HEAD, **{"../../evil.py": b"raise SystemExit"}),
    "archive: a member twice": with_twice,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_anything_else_is_damaged_and_takes_little_memory(kind, tmp_path):
    data = DAMAGED[kind]()
    tracemalloc.start()
    assert isinstance(refusal(data, tmp_path), Damaged)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert [each.name for each in tmp_path.iterdir()] == ["some.zip"]


def test_a_member_that_is_said_to_be_huge_is_damaged(written, tmp_path):
    """Both sizes of a member in the archive's table of contents."""
    data = bytearray(written)
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 28] = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    assert isinstance(refusal(bytes(data), tmp_path), Damaged)


# --- damaged at random ------------------------------------------------------------------------------------------------


def mutated(data, rng):
    """Some bytes with a bit flipped, cut out, repeated or set to zero."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        i = rng.randrange(len(data))
        j = i + rng.choice((1, 2, 8, 100, len(data)))
        how = rng.choice(("flip", "flip", "cut", "repeat", "zero"))
        if how == "flip":
            data[i] ^= 1 << rng.randrange(8)
        else:
            data[i:j] = {"cut": b"", "repeat": 2 * data[i:j], "zero": bytes(len(data[i:j]))}[how]
        if not data:
            break
    return bytes(data)


@pytest.mark.parametrize("seed", sample(range(10), 5))
def test_a_mutated_file_is_the_same_or_an_error(written, seed, monkeypatch):
    forbid_pickles(monkeypatch)
    rng = random.Random(seed)
    n_refused = 0
    for _ in range(150):
        try:
            value = read(io.BytesIO(mutated(written, rng)), "test")
        except Damaged:
            n_refused += 1
            continue
        assert text_of(value) == EXPECTED
    assert n_refused > 75
