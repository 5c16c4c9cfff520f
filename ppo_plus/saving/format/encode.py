"""Values as a description and named arrays.

A description is JSON: numbers, text, ``null``, lists and objects mean themselves, and an object with a single key that
begins with ``!`` is what JSON has no form for: ``{"!tuple": [1, 2]}``, ``{"!array": "weights"}``,
``{"!ppo_plus.formulas.schedules:Linear": {"start": 0.1, "end": 0.0}}``. A dict of the user's with such a key, or with
other keys than text, is written as ``{"!dict": [[key, value], ...]}``. Numbers are kept bit for bit, and numbers by the
million are in separate arrays.
"""

import base64
import functools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch as th

from ppo_plus.generators import generator_facts
from ppo_plus.saving.format.names import is_registered, name_of
from ppo_plus.saving.format.objects import ARRAY_KINDS, NATIVE, STORED, dtype_name, object_state

#: How deeply values may be nested.
MAX_DEPTH = 64
#: Integers up to here are numbers in every reader of JSON.
_PLAIN_INT = 2**53


class Undescribable(TypeError):
    """Raised for a value that has no description; the message has its path, the value and the remedy."""


def describe(value: Any, name: str = "value") -> tuple[Any, dict[str, th.Tensor]]:
    """A value as JSON and arrays. Values that several places share are written several times.

    :param value: anything made of plain Python, NumPy, torch, spaces, and classes and functions that have names
    :param name: what to call it in messages
    :return: the description, and the arrays that it names
    :raises Undescribable: something in it has no description
    """
    writer = _Writer()
    return writer.write(value, name), writer.arrays


class _Writer:
    """Writes one value; ``arrays`` are those in it."""

    def __init__(self) -> None:
        self.arrays: dict[str, th.Tensor] = {}
        self._open: list[int] = []

    def write(self, value: Any, path: str) -> Any:
        if id(value) in self._open:
            raise _undescribable(path, value, "contains itself: take the reference out")
        if len(self._open) >= MAX_DEPTH:
            raise _undescribable(path, value, f"is nested more than {MAX_DEPTH} deep: make it flatter")
        self._open.append(id(value))
        try:
            return self._write(value, path)
        finally:
            self._open.pop()

    def _write(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind in _NUMBERS:
            return _NUMBERS[kind](value)
        if kind is dict and not _looks_special(value):
            return {key: self.write(each, f"{path}[{key!r}]") for key, each in value.items()}
        if kind in (list, tuple, set, frozenset):
            return self._sequence(kind, value, path)
        if kind in (dict, OrderedDict):
            return {f"!{kind.__name__}": self._pairs(value, path)}
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self, value, path)
        for kinds, method in _METHODS:
            if isinstance(value, kinds):
                return method(self, value, path)
        if isinstance(value, type) or _is_function(value):
            return {"!name": _named(value, path)}
        return self._object(value, path)

    def _sequence(self, kind: type, value: Any, path: str) -> Any:
        written = [self.write(each, f"{path}[{i}]") for i, each in enumerate(value)]
        if kind is list:
            return written
        return {f"!{kind.__name__}": written if kind is tuple else sorted(written, key=repr)}

    def _pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        def text(key: Any, i: int) -> str:
            return repr(key) if isinstance(key, (str, int)) else f"key {i}"

        return [
            [self.write(key, f"{path}, key {i}"), self.write(each, f"{path}[{text(key, i)}]")]
            for i, (key, each) in enumerate(value.items())
        ]

    def _deque(self, value: deque[Any], path: str) -> Any:
        return {"!deque": {"maxlen": value.maxlen, "items": self._sequence(list, value, path)}}

    def _slice(self, value: slice, path: str) -> Any:
        return {"!slice": [self.write(each, path) for each in (value.start, value.stop, value.step)]}

    def _partial(self, value: Any, path: str) -> Any:
        parts = [value.func, list(value.args), value.keywords]
        return {"!partial": [self.write(each, f"{path}.partial[{i}]") for i, each in enumerate(parts)]}

    def _dtype(self, value: np.dtype[Any], path: str) -> Any:
        if value.kind not in ARRAY_KINDS or value.subdtype is not None:
            raise _undescribable(path, value, "is not a plain type of numbers: take it out")
        return {"!dtype": dtype_name(value)}

    def _scalar(self, value: np.generic, path: str) -> Any:
        number = value.item()
        if type(number) not in (bool, *_NUMBERS) or value.dtype.kind not in "biufc" or value.dtype.itemsize > 16:
            raise _undescribable(path, value, "is not a plain number: convert it")
        # Of NaN there are many.
        plain = number if number == number else float("nan")
        if value.dtype.type(plain).tobytes() != value.tobytes():
            return {"!scalar": [dtype_name(value.dtype), {"!bytes": base64.b64encode(value.tobytes()).decode()}]}
        return {"!scalar": [dtype_name(value.dtype), self.write(plain, path)]}

    def _array(self, value: np.ndarray, path: str) -> Any:
        if value.dtype.kind not in ARRAY_KINDS or not value.dtype.itemsize or type(value) is not np.ndarray:
            raise _undescribable(path, value, "contains objects or structures: convert it to numbers")
        name = dtype_name(value.dtype)
        data = np.array(value, order="C")
        if name in NATIVE:
            return {"!array": self._keep(th.from_numpy(data.view(name)), path)}
        flat = data.reshape(*data.shape, 1).view(np.uint8)
        return {"!array": [self._keep(th.from_numpy(flat), path), name]}

    def _tensor(self, value: th.Tensor, path: str) -> Any:
        is_parameter = type(value) is th.nn.Parameter
        if not (type(value) is th.Tensor or is_parameter) or value.layout != th.strided or value.is_quantized:
            raise _undescribable(path, value, "is not a plain tensor: convert it")
        data = value.detach().cpu().clone(memory_format=th.contiguous_format).resolve_conj().resolve_neg()
        if value.dtype in STORED:
            written: Any = {"!tensor": self._keep(data, path)}
        else:
            written = {"!tensor": [self._keep(data.unsqueeze(-1).view(th.uint8), path), str(value.dtype)]}
        return {"!parameter": [written, value.requires_grad]} if is_parameter else written

    def _keep(self, data: th.Tensor, path: str) -> str:
        name, i = path, 1
        while name in self.arrays:
            name, i = f"{path}~{i}", i + 1
        self.arrays[name] = data
        return name

    def _object(self, value: Any, path: str) -> Any:
        state = object_state(value)
        if state is None:
            raise _undescribable(path, value, f"cannot be described: {_REMEDY}")
        name = _named(type(value), path)
        return {f"!{name}": {key: self.write(each, f"{path}.{key}") for key, each in state.items()}}


#: Writers of other containers, by exact type.
_CONTAINERS: dict[type, Callable[[_Writer, Any, str], Any]] = {
    deque: _Writer._deque,
    slice: _Writer._slice,
    functools.partial: _Writer._partial,
}
#: Writers of kinds that have subclasses.
_METHODS: tuple[tuple[Any, Callable[[_Writer, Any, str], Any]], ...] = (
    (np.dtype, _Writer._dtype),
    (np.generic, _Writer._scalar),
    (np.ndarray, _Writer._array),
    (th.Tensor, _Writer._tensor),
    (th.dtype, lambda _, value, path: {"!torch.dtype": str(value)}),
    (th.device, lambda _, value, path: {"!device": str(value)}),
    (
        (np.random.Generator, np.random.RandomState),
        lambda writer, value, path: {f"!{type(value).__name__}": writer.write(generator_facts(value), path)},
    ),
)
#: Writers of numbers and the like, by exact type.
_NUMBERS: dict[type, Callable[[Any], Any]] = {
    int: lambda value: value if abs(value) <= _PLAIN_INT else {"!int": hex(value)},
    float: lambda value: value if math.isfinite(value) else {"!float": repr(value)},
    complex: lambda value: {"!complex": [_NUMBERS[float](value.real), _NUMBERS[float](value.imag)]},
    bytes: lambda value: {"!bytes": base64.b64encode(value).decode()},
}


def _looks_special(value: dict[Any, Any]) -> bool:
    """Whether a dict would look like the description of something else."""
    return any(type(key) is not str or key.startswith("!") for key in value)


def _is_function(value: Any) -> bool:
    # A method of an object carries the object with it.
    owner = getattr(value, "__self__", None)
    return isinstance(value, (FunctionType, BuiltinFunctionType)) and (owner is None or isinstance(owner, ModuleType))


def _named(value: Any, path: str) -> str:
    """The name of a class or a function."""
    name = name_of(value)
    if name.startswith("ppo_plus.") and not is_registered(value):
        raise _undescribable(path, value, "is not public, and may change: use what ppo_plus exports")
    if not isinstance(value, type) and not is_registered(value) and "<" in name:
        what = "is a lambda" if "<lambda>" in name else "is a function inside a function"
        raise _undescribable(path, value, f"{what}, which has no name: {_REMEDY}")
    return name


_REMEDY = "use a schedule such as ppo_plus.linear(3e-4), or a module-level function or class with ppo_plus.register"


def _undescribable(path: str, value: Any, problem: str) -> Undescribable:
    what = getattr(value, "__qualname__", None) or " ".join(repr(value).split())
    return Undescribable(f"{path} ({what[:200]}) {problem}")
