"""Values as a description and named arrays, and back. Nothing in a description is ever run.

A description is JSON: numbers, text, ``null``, lists and objects mean themselves, and an object with a single key that
begins with ``!`` is what JSON has no form for: ``{"!tuple": [1, 2]}``, ``{"!array": "weights"}``,
``{"!ppo_plus:Linear": {"start": 0.1, "end": 0.0}}``. A dict of the user's with such a key, or with other keys than
text, is written as ``{"!dict": [[key, value], ...]}``. Numbers are kept bit for bit, and arrays are separate.
"""

import base64
import dataclasses
import functools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from ppo_plus.saving.format import names
from ppo_plus.saving.format.names import Damaged, decoding, find, name_of

#: A value of JSON.
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
#: How deeply values may be nested.
MAX_DEPTH = 64


class Undescribable(TypeError):
    """Raised for a value that has no description; the message has its path, the value and the remedy."""


def describe(value: object, name: str = "value", weights: set[int] | None = None) -> tuple[Json, dict[str, th.Tensor]]:
    """A value as JSON, and the arrays that it names; ``name`` is for messages. Values that several places share are
    written several times. Raises :class:`Undescribable`, also for a weight whose id is in ``weights`` already."""
    writer = _Writer(weights)
    return writer.write(value, name), writer.arrays


def restore(description: Json, arrays: Mapping[str, th.Tensor]) -> Any:
    """What was described; tensors are on the CPU, and the arrays become part of the value. Raises :class:`Damaged` if
    it is not a description, and :class:`Refused` if it asks for what files may not have."""
    with decoding(), np.errstate(all="ignore"):
        return _Reader(arrays).read(description)


class _Writer:
    """Writes one value; notes its ``arrays``."""

    def __init__(self, weights: set[int] | None) -> None:
        self.arrays: dict[str, th.Tensor] = {}
        self._weights = weights
        self._depth = 0

    def write(self, value: Any, path: str) -> Json:
        if self._depth >= MAX_DEPTH:
            raise _undescribable(path, value, f"contains itself, or is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        written = self._write(value, path)
        self._depth -= 1
        return written

    def _write(self, value: Any, path: str) -> Json:
        cls = next((base for base in (np.dtype, np.generic) if isinstance(value, base)), type(value))
        if _is_json(value):
            return value
        if cls is list:
            return [self.write(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if cls is dict and not any(type(key) is not str or key.startswith("!") for key in value):
            return {key: self.write(entry, f"{path}[{key!r}]") for key, entry in value.items()}
        if cls in (dict, OrderedDict):
            return {f"!{cls.__name__}": self._pairs(value, path)}
        if cls is nn.Parameter:
            if self._weights is not None and id(value) in self._weights:
                raise _undescribable(path, cls, "is in another place, too, with which it is shared: pass a function")
            if self._weights is not None:
                self._weights.add(id(value))
            return {"!parameter": [self._write(value.data, path), value.requires_grad]}
        if isinstance(value, (type, FunctionType)):
            return {"!name": _name(value, path)}
        if cls in _KINDS:
            return {f"!{_KINDS[cls].tag}": self._content(value, path, _KINDS[cls])}
        state = object_state(value)
        if state is None:
            remedy = _REMEDY if callable(value) else "use numbers and texts in its place"
            raise _undescribable(path, value, f"cannot be described: {remedy}")
        return {f"!{_name(cls, path)}": {key: self.write(entry, f"{path}.{key}") for key, entry in state.items()}}

    def _pairs(self, value: Mapping[Any, Any], path: str) -> list[Json]:
        written: list[Json] = []
        for i, (key, entry) in enumerate(value.items()):
            title = repr(key) if isinstance(key, (str, int)) else f"key {i}"
            written.append([self.write(key, f"{path}, key {title}"), self.write(entry, f"{path}[{title}]")])
        return written

    def _content(self, value: Any, path: str, kind: "_Kind") -> Json:
        try:
            content = kind.reduce(value)
        except ValueError as error:
            raise _undescribable(path, value, str(error)) from None
        if kind.content is not th.Tensor:
            return self._write(content, path)
        name, i = path, 1
        while name in self.arrays:
            name, i = f"{path}~{i}", i + 1
        self.arrays[name] = content
        return name


class _Reader:
    """Reads one value; ``arrays`` are those that have not been used."""

    def __init__(self, arrays: Mapping[str, th.Tensor]):
        self.arrays = dict(arrays)

    def read(self, written: Json) -> Any:
        if isinstance(written, list):
            return [self.read(item) for item in written]
        if not isinstance(written, dict):
            return written
        if not any(key.startswith("!") for key in written):
            return {key: self.read(entry) for key, entry in written.items()}
        ((tag, content),) = written.items()
        return self._tagged(tag.removeprefix("!"), content)

    def _tagged(self, tag: str, content: Json) -> Any:
        if ":" in tag and isinstance(content, dict):
            cls = SPACES[tag][0] if tag in SPACES else names.find_class_of_objects(tag)
            return make_object(cls, {key: self.read(entry) for key, entry in content.items()})
        kind = _BY_TAG[tag]
        if kind.content is th.Tensor:
            if not isinstance(content, str) or content not in self.arrays:
                # Once only: many uses of one array could be more than fits in memory.
                raise Damaged(f"it uses the array {str(content)[:100]!r}, which is missing or has been used before")
            return kind.make(self.arrays.pop(content))
        value = self.read(content)
        if type(value) is not kind.content:
            raise Damaged(f"{str(content)[:50]!r} is not a {kind.content.__name__}")
        return kind.make(value)


class _Kind(NamedTuple):
    """How values of a type are written: under a tag, as simpler content of a type, from which they are made again.

    ``reduce`` raises :class:`ValueError` with the problem if a value has no description.
    """

    tag: str
    content: type
    reduce: Callable[[Any], Any]
    make: Callable[[Any], Any]


def _dtype(value: np.dtype[Any]) -> str:
    if not value.isnative or value.name not in NATIVE:
        raise ValueError("is not of a plain type of numbers: convert it")
    return value.name


def _array(value: np.ndarray) -> th.Tensor:
    return th.from_numpy(np.array(value, order="C").view(_dtype(value.dtype)))


def _tensor(value: th.Tensor) -> th.Tensor:
    if value.layout != th.strided or value.dtype not in STORED:
        raise ValueError("is not a plain tensor: convert it")
    if value.requires_grad:
        raise ValueError("requires gradients: make it a torch.nn.Parameter, or detach it")
    return value.detach().cpu().clone(memory_format=th.contiguous_format)


#: NumPy's types that torch stores.
NATIVE = {
    name: np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
}
#: Torch's types that are stored.
STORED = frozenset(getattr(th, name) for name in {*NATIVE, "bfloat16"})
_TORCH_TYPES: dict[str, th.dtype] = {str(dtype): dtype for dtype in vars(th).values() if isinstance(dtype, th.dtype)}

_KINDS: dict[type, _Kind] = {
    int: _Kind("int", str, hex, lambda text: int(text, 16)),
    float: _Kind("float", str, repr, {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__),
    bytes: _Kind(
        "bytes", str, lambda data: base64.b64encode(data).decode(), lambda text: base64.b64decode(text, validate=True)
    ),
    tuple: _Kind("tuple", list, list, tuple),
    set: _Kind("set", list, list, set),
    frozenset: _Kind("frozenset", list, list, frozenset),
    deque: _Kind(
        "deque",
        dict,
        lambda items: {"maxlen": items.maxlen, "items": [*items]},
        lambda content: deque(content["items"], maxlen=content["maxlen"]),
    ),
    functools.partial: _Kind(
        "partial",
        list,
        lambda function: [function.func, [*function.args], function.keywords],
        lambda content: functools.partial(names.counted(content[0]), *content[1], **content[2]),
    ),
    th.dtype: _Kind("torch.dtype", str, str, _TORCH_TYPES.__getitem__),
    th.device: _Kind("device", str, str, th.device),
    np.dtype: _Kind("dtype", str, _dtype, NATIVE.__getitem__),
    np.generic: _Kind(
        "scalar",
        list,
        lambda scalar: [_dtype(scalar.dtype), scalar.item()],
        lambda content: NATIVE[content[0]].type(content[1]),
    ),
    np.ndarray: _Kind("array", th.Tensor, _array, th.Tensor.numpy),
    th.Tensor: _Kind("tensor", th.Tensor, _tensor, lambda tensor: tensor),
    # The writer reduces these, by the paths in messages and names of arrays.
    dict: _Kind("dict", list, list, dict),
    OrderedDict: _Kind("OrderedDict", list, list, OrderedDict),
    nn.Parameter: _Kind("parameter", list, list, lambda content: nn.Parameter(content[0], bool(content[1]))),
    type: _Kind("name", str, name_of, find),
}
_BY_TAG = {kind.tag: kind for kind in _KINDS.values()}


def _is_json(value: object) -> TypeGuard[Json]:
    """Whether a value is its own description."""
    if type(value) is int:
        return abs(value) <= 2**53  # these are numbers in every reader of JSON
    return value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value))


_REMEDY = "use a schedule such as ppo_plus.linear(3e-4), or a module-level function or class with ppo_plus.register"


def _name(value: names.Named, path: str) -> str:
    """The name of a class or a function."""
    name = name_of(value)
    if not isinstance(value, type) and not names.is_registered(value) and "<" in name:
        raise _undescribable(path, value, f"is a lambda or inside a function, so that it has no name: {_REMEDY}")
    return name


def _undescribable(path: str, value: object, problem: str) -> Undescribable:
    what = getattr(value, "__qualname__", None) or " ".join(repr(value).split())
    return Undescribable(f"{path} ({what[:200]}) {problem}")


# --- objects ----------------------------------------------------------------------------------------------------------

#: Spaces by their names in files: the class, and the values that make a space again, without its generator.
SPACES: dict[str, tuple[type, tuple[str, ...]]] = {
    name_of(cls): (cls, fields)
    for cls, fields in {
        spaces.Box: ("low", "high", "dtype"),
        spaces.Dict: ("spaces",),
        spaces.Discrete: ("n", "start", "dtype"),
        spaces.MultiBinary: ("n",),
        spaces.MultiDiscrete: ("nvec", "start", "dtype"),
        spaces.Tuple: ("spaces",),
    }.items()
}
#: The attributes of every module, with the values of a new one.
_NEW = vars(nn.Module())
#: Those that are saved; the others are hooks.
_SAVED = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_PARTS: dict[str, Any] = {"_parameters": nn.Parameter, "_buffers": th.Tensor, "_modules": nn.Module}
#: Methods by which a class would be pickled in its own way.
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


def object_state(value: Any) -> dict[str, Any] | None:
    """The values from which :func:`make_object` makes an object again; ``None``: there are none that describe it."""
    cls = type(value)
    if name_of(cls) in SPACES:
        return {name: getattr(value, name) for name in SPACES[name_of(cls)][1]}
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return dict(zip(cls._fields, value, strict=True))
    if isinstance(value, nn.Module):
        # What torch keeps elsewhere is lost: hooks, and the memory of recurrent layers.
        has_hooks = any(vars(value).get(name) != new for name, new in _NEW.items() if name not in _SAVED)
        is_described = not has_hooks and not isinstance(value, nn.RNNBase)
        state = {name: part for name, part in names.own(value).items() if name not in _NEW or name in _SAVED}
        return state if is_described else None
    is_plain = (
        cls.__new__ is object.__new__
        and all(getattr(cls, name, None) is getattr(object, name, None) for name in _PICKLING)
        and not any(vars(base).get("__slots__") for base in cls.__mro__)
        and bool(cls.__dictoffset__)
    )
    return names.own(value) if is_plain else None


def make_object(cls: type, state: dict[str, Any]) -> Any:
    """An object of a class; dataclasses and spaces check their values as usual, and raise errors of any kind."""
    if name_of(cls) in SPACES:
        values = {name: state[name] for name in SPACES[name_of(cls)][1] if name in state}
        if cls is spaces.Dict:
            values["spaces"] = list(values["spaces"].items())  # pairs: Gymnasium would sort the keys of a dict
        return cls(**values)
    if issubclass(cls, tuple):
        return cls(**state)
    made: Any = object.__new__(cls)
    fields: dict[str, bool] = {}
    if issubclass(cls, nn.Module):
        valid = all(isinstance(entry, (_PARTS[part], type(None))) for part in _PARTS for entry in state[part].values())
        if not valid or any(name in _NEW and name not in _SAVED for name in state) or issubclass(cls, nn.RNNBase):
            raise ValueError(f"this is not a {cls.__name__}")
        nn.Module.__init__(made)
    elif dataclasses.is_dataclass(cls):
        fields = {field.name: field.init for field in dataclasses.fields(cls)}
        made = cls(**{name: value for name, value in state.items() if fields.get(name, not names.is_registered(cls))})
    names.require_attributes(cls, state.keys() - fields)
    vars(made).update(state)
    return made
