"""Values as a description and named arrays, and back. Nothing in a description is ever run.

A description is JSON: numbers, text, ``null``, lists and objects mean themselves, and an object with a single key that
begins with ``!`` is what JSON has no form for: ``{"!tuple": [1, 2]}``, ``{"!array": "weights"}``,
``{"!ppo_plus:Linear": {"start": 0.1, "end": 0.0}}``. A dict of the user's with such a key, or with other keys than
text, is written as ``{"!dict": [[key, value], ...]}``. Numbers are kept bit for bit, and numbers by the million are in
separate arrays.
"""

import base64
import dataclasses
import functools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from ppo_plus.saving.format.names import (
    Damaged,
    Refused,
    decoding,
    find,
    find_class_of_objects,
    is_registered,
    name_of,
)

#: How deeply values may be nested.
MAX_DEPTH = 64
#: How many keys of a set or a dict may have the same hash.
MAX_ALIKE = 64
#: Integers up to here are numbers in every reader of JSON.
_PLAIN_INT = 2**53


class Undescribable(TypeError):
    """Raised for a value that has no description; the message has its path, the value and the remedy."""


def describe(value: Any, name: str = "value") -> tuple[Any, dict[str, th.Tensor]]:
    """A value as JSON, and the arrays that it names; ``name`` is for messages. Values that several places share are
    written several times. Raises :class:`Undescribable`."""
    writer = _Writer()
    return writer.write(value, name), writer.arrays


def restore(description: Any, arrays: Mapping[str, th.Tensor]) -> Any:
    """What was described; tensors are on the CPU, and the arrays become part of the value. Raises :class:`Damaged` if
    it is not a description, and :class:`Refused` if it asks for what files may not have."""
    with decoding(), np.errstate(all="ignore"):
        return _Reader(arrays).read(description)


def unknown_names(value: Any) -> set[str]:
    """The names of classes and functions in a value that this program, reading a file, would not find."""
    writer, unknown = _Writer(), set()
    writer.write(value, "value")
    for name, look_up in writer.names:
        try:
            look_up(name)
        except Refused:
            unknown.add(name)
    return unknown


class _Writer:
    """Writes one value; notes its ``arrays``, and the ``names`` of classes and functions with what looks them up."""

    def __init__(self) -> None:
        self.arrays: dict[str, th.Tensor] = {}
        self.names: set[tuple[str, Callable[[str], Any]]] = set()
        self._depth = 0

    def write(self, value: Any, path: str) -> Any:
        if self._depth >= MAX_DEPTH:
            raise _undescribable(path, value, f"contains itself, or is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        written = self._write(value, path)
        self._depth -= 1
        return written

    def _write(self, value: Any, path: str) -> Any:
        kind = next((base for base in (np.dtype, np.generic) if isinstance(value, base)), type(value))
        if _is_json(value):
            return value
        if kind is list:
            return self.items(value, path)
        if kind is dict and not any(type(key) is not str or key.startswith("!") for key in value):
            return {key: self.write(each, f"{path}[{key!r}]") for key, each in value.items()}
        if kind in _FORMS:
            return {f"!{_FORMS[kind].tag}": _FORMS[kind].write(self, value, path)}
        if isinstance(value, (type, FunctionType)):
            return {"!name": self.named(value, path, find)}
        state = object_state(value)
        if state is None:
            raise _undescribable(path, value, f"cannot be described: {_REMEDY}")
        title = self.named(kind, path, _class_of_objects)
        return {f"!{title}": {key: self.write(each, f"{path}.{key}") for key, each in state.items()}}

    def named(self, value: Any, path: str, look_up: Callable[[str], Any]) -> str:
        """The name of a class or a function."""
        name = name_of(value)
        if name.startswith("ppo_plus.") and not is_registered(value):
            raise _undescribable(path, value, "is not public, and may change: use what ppo_plus exports")
        if not isinstance(value, type) and not is_registered(value) and "<" in name:
            raise _undescribable(path, value, f"is a lambda or inside a function, so that it has no name: {_REMEDY}")
        self.names.add((name, look_up))
        return name

    def items(self, value: Any, path: str) -> list[Any]:
        return [self.write(each, f"{path}[{i}]") for i, each in enumerate(value)]

    def pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        written = []
        for i, (key, each) in enumerate(value.items()):
            title = repr(key) if isinstance(key, (str, int)) else f"key {i}"
            written.append([self.write(key, f"{path}, key {title}"), self.write(each, f"{path}[{title}]")])
        return written

    def dtype(self, value: np.dtype[Any], path: str) -> str:
        if not value.isnative or value.name not in NATIVE:
            raise _undescribable(path, value, "is not a plain type of numbers: take it out")
        return value.name

    def scalar(self, value: np.generic, path: str) -> list[Any]:
        number = value.item()
        if value.dtype.kind not in "biuf" or type(number) not in (bool, int, float):
            raise _undescribable(path, value, "is not a plain number: convert it")
        return [self.dtype(value.dtype, path), self.write(number, path)]

    def array(self, value: np.ndarray, path: str) -> str:
        if not value.dtype.isnative or value.dtype.name not in NATIVE:
            raise _undescribable(path, value, "contains no plain numbers: convert it")
        return self._keep(th.from_numpy(np.array(value, order="C").view(value.dtype.name)), path)

    def tensor(self, value: th.Tensor, path: str) -> str:
        if value.layout != th.strided or value.dtype not in STORED:
            raise _undescribable(path, value, "is not a plain tensor: convert it")
        return self._keep(value.detach().cpu().clone(memory_format=th.contiguous_format), path)

    def parameter(self, value: nn.Parameter, path: str) -> list[Any]:
        return [{"!tensor": self.tensor(value, path)}, value.requires_grad]

    def _keep(self, data: th.Tensor, path: str) -> str:
        name, i = path, 1
        while name in self.arrays:
            name, i = f"{path}~{i}", i + 1
        self.arrays[name] = data
        return name


class _Reader:
    """Reads one value; ``arrays`` are those that have not been used."""

    def __init__(self, arrays: Mapping[str, th.Tensor]):
        self.arrays = dict(arrays)
        self._depth = 0

    def read(self, written: Any) -> Any:
        if written is None or type(written) in (bool, int, float, str):
            return written
        self._depth += 1
        if self._depth > MAX_DEPTH + 5:  # a pair or a list inside a tag is one level more
            raise Damaged("it is nested too deep")
        value = self.items(written) if type(written) is list else self._object(written)
        self._depth -= 1
        return value

    def _object(self, written: dict[str, Any]) -> Any:
        if not any(key.startswith("!") for key in written):
            return {key: self.read(each) for key, each in written.items()}
        ((tag, content),) = written.items()
        tag = tag.removeprefix("!")
        if ":" not in tag:
            return _READERS[tag](self, content)
        return make_object(_class_of_objects(tag), {key: self.read(each) for key, each in content.items()})

    def items(self, content: list[Any]) -> list[Any]:
        if type(content) is not list:
            raise Damaged(f"{str(content)[:50]!r} is not a list")
        return [self.read(each) for each in content]

    def pairs(self, content: list[Any]) -> list[tuple[Any, Any]]:
        pairs = [(self.read(key), self.read(each)) for key, each in content]
        if len(dict.fromkeys(_spread([key for key, _ in pairs]))) != len(pairs):
            raise Damaged("a dict has a key twice")
        return pairs

    def partial(self, content: list[Any]) -> Any:
        function, args, keywords = self.items(content)
        return functools.partial(function, *args, **keywords)

    def scalar(self, content: list[Any]) -> Any:
        return find_dtype(content[0]).type(self.read(content[1]))

    def array(self, name: str) -> np.ndarray:
        return self.tensor(name).numpy()

    def tensor(self, name: str) -> th.Tensor:
        if name not in self.arrays:
            # Once only: many uses of one array could be more than fits in memory.
            raise Damaged(f"it uses the array {name[:100]!r}, which is missing or has been used before")
        return self.arrays.pop(name)

    def parameter(self, content: list[Any]) -> nn.Parameter:
        data, requires_grad = self.items(content)
        return nn.Parameter(data, requires_grad=bool(requires_grad))


class _Form(NamedTuple):
    """How values of a type are written under a tag, and read from what is there."""

    tag: str
    write: Callable[[_Writer, Any, str], Any]
    read: Callable[[_Reader, Any], Any]


def _text(tag: str, write: Callable[[Any], str], read: Callable[[str], Any]) -> _Form:
    return _Form(tag, lambda _, value, path: write(value), lambda _, content: read(content))


def _made_of(items: Callable[[_Writer, Any, str], Any], kind: type) -> _Form:
    read = _Reader.pairs if items is _Writer.pairs else _Reader.items
    spread = _spread if kind in (set, frozenset) else list
    return _Form(kind.__name__, items, lambda reader, content: kind(spread(read(reader, content))))


def _spread(keys: list[Any]) -> list[Any]:
    """The keys, of which few may have the same hash: the time that a set or a dict needs grows with their square."""
    if max(Counter(map(hash, keys)).values(), default=0) > MAX_ALIKE:
        raise Damaged(f"more than {MAX_ALIKE} keys have the same hash")
    return keys


_FORMS: dict[type, _Form] = {
    int: _text("int", hex, lambda text: int(text, 16)),
    float: _text("float", repr, {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__),
    bytes: _text(
        "bytes", lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)
    ),
    th.dtype: _text("torch.dtype", str, lambda text: _TORCH_TYPES[text]),
    th.device: _text("device", str, th.device),
    tuple: _made_of(_Writer.items, tuple),
    set: _made_of(_Writer.items, set),
    frozenset: _made_of(_Writer.items, frozenset),
    dict: _made_of(_Writer.pairs, dict),
    OrderedDict: _made_of(_Writer.pairs, OrderedDict),
    deque: _Form(
        "deque",
        lambda writer, value, path: {"maxlen": value.maxlen, "items": writer.items(value, path)},
        lambda reader, content: deque(reader.items(content["items"]), maxlen=content["maxlen"]),
    ),
    functools.partial: _Form(
        "partial",
        lambda writer, value, path: writer.items([value.func, list(value.args), value.keywords], f"{path}.partial"),
        _Reader.partial,
    ),
    np.dtype: _Form("dtype", _Writer.dtype, lambda _, content: find_dtype(content)),
    np.generic: _Form("scalar", _Writer.scalar, _Reader.scalar),
    np.ndarray: _Form("array", _Writer.array, _Reader.array),
    th.Tensor: _Form("tensor", _Writer.tensor, _Reader.tensor),
    nn.Parameter: _Form("parameter", _Writer.parameter, _Reader.parameter),
}
_READERS = {form.tag: form.read for form in _FORMS.values()} | {"name": lambda _, content: find(content)}


def _is_json(value: Any) -> bool:
    """Whether a value is its own description."""
    if type(value) is int:
        return abs(value) <= _PLAIN_INT
    return value is None or type(value) in (bool, str) or (type(value) is float and math.isfinite(value))


def _class_of_objects(name: str) -> type:
    return SPACES[name][0] if name in SPACES else find_class_of_objects(name)


_REMEDY = "use a schedule such as ppo_plus.linear(3e-4), or a module-level function or class with ppo_plus.register"


def _undescribable(path: str, value: Any, problem: str) -> Undescribable:
    what = getattr(value, "__qualname__", None) or " ".join(repr(value).split())
    return Undescribable(f"{path} ({what[:200]}) {problem}")


# --- forms ------------------------------------------------------------------------------------------------------------


class Optional(dict[Any, Any]):
    """The form of a dict that may lack entries of the form, and has no others."""


def require_form(value: Any, form: Any) -> None:
    """Check a value that was read before it is used: the file may be damaged, or a stranger's.

    :param form: a type (of integers: at least 0), ``None``, a function that says whether a value is valid, a list with
        the form of its items, a dict with the forms of its entries (under ``str``: of all others), or a tuple of forms,
        one of which fits
    :raises Damaged: a part of the value is missing or not valid
    """
    for path in _misfits(value, form, ""):
        raise Damaged(f"its part {path[:200]!r} is missing or not valid")


def _misfits(value: Any, form: Any, path: str) -> Iterator[str]:
    """The paths of the parts that do not fit."""
    if isinstance(form, tuple):
        first = [next(_misfits(value, option, path), None) for option in form]
        if None not in first:
            yield first[-1] if first else path  # type: ignore[misc]
    elif isinstance(form, list) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from _misfits(item, form[0], f"{path}.{i}")
    elif isinstance(form, dict) and isinstance(value, dict) and all(isinstance(name, str) for name in value):
        # A tuple of no forms fits nothing.
        others = form.get(str, () if isinstance(form, Optional) else object)
        missing = [] if isinstance(form, Optional) else [name for name in form if name is not str and name not in value]
        yield from (f"{path}.{name}".removeprefix(".") for name in missing)
        for name, entry in value.items():
            yield from _misfits(entry, form.get(name, others), f"{path}.{name}".removeprefix("."))
    else:
        if form is int:
            fits = type(value) is int and value >= 0
        elif isinstance(form, type):
            fits = isinstance(value, form)
        else:
            fits = form(value) if callable(form) else value is form
        if not fits:
            yield path


# --- types of numbers -------------------------------------------------------------------------------------------------

#: NumPy's types that torch stores.
NATIVE = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
#: Torch's types that are stored.
STORED = frozenset(getattr(th, name) for name in {*NATIVE, "bfloat16"})
_TORCH_TYPES: dict[str, th.dtype] = {str(each): each for each in vars(th).values() if isinstance(each, th.dtype)}


def find_dtype(name: str) -> np.dtype:
    """:raises ValueError: NumPy has no type of this name, or files do not contain it"""
    if name not in NATIVE:
        raise ValueError(f"{name[:50]!r} is not a type of numbers")
    return np.dtype(name)


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
        state = {name: each for name, each in vars(value).items() if name not in _NEW or name in _SAVED}
        return state if is_described else None
    is_plain = (
        cls.__new__ is object.__new__
        and all(getattr(cls, name, None) is getattr(object, name, None) for name in _PICKLING)
        and not any(vars(each).get("__slots__") for each in cls.__mro__)
        and bool(cls.__dictoffset__)
    )
    return dict(vars(value)) if is_plain else None


def make_object(cls: type, state: dict[str, Any]) -> Any:
    """An object of a class; dataclasses and spaces check their values as usual, and raise errors of any kind."""
    if name_of(cls) in SPACES:
        values = {name: state[name] for name in SPACES[name_of(cls)][1] if name in state}
        if cls is spaces.Dict:
            values["spaces"] = list(values["spaces"].items())  # pairs: Gymnasium would sort the keys of a dict
        if cls is spaces.Discrete and values.get("dtype") == np.int64:
            del values["dtype"]  # older Gymnasium has no other
        return cls(**values)
    if issubclass(cls, tuple):
        return cls(**state)
    made: Any = object.__new__(cls)
    if issubclass(cls, nn.Module):
        valid = all(isinstance(each, (_PARTS[part], type(None))) for part in _PARTS for each in state[part].values())
        if not valid or any(name in _NEW and name not in _SAVED for name in state) or issubclass(cls, nn.RNNBase):
            raise ValueError(f"this is not a {cls.__name__}")
        nn.Module.__init__(made)
    elif dataclasses.is_dataclass(cls):
        fields = {each.name: each.init for each in dataclasses.fields(cls)}
        if not state.keys() <= fields.keys():
            raise Damaged(f"{cls.__name__} has no {sorted(state.keys() - fields.keys())}")
        made = cls(**{name: each for name, each in state.items() if fields[name]})
    vars(made).update(state)
    return made
