"""Values from their description; nothing in a description is ever run."""

import base64
import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch as th

from ppo_plus.generators import make_generator
from ppo_plus.saving.format.encode import MAX_DEPTH
from ppo_plus.saving.format.names import Damaged, find, find_class_of_objects, reading_a_value
from ppo_plus.saving.format.objects import NATIVE, SPACES, TORCH_TYPES, find_dtype, make_object


def restore(description: Any, arrays: Mapping[str, th.Tensor]) -> Any:
    """What was described; tensors are on the CPU.

    :param description: from :func:`~ppo_plus.saving.format.encode.describe`
    :param arrays: from there; they become part of the value
    :raises Damaged: it is not a description
    :raises Refused: it asks for what files may not have (:mod:`ppo_plus.saving.format.names`)
    """
    with reading_a_value(), np.errstate(all="ignore"):
        return _Reader(arrays).read(description)


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
        try:
            if type(written) is list:
                return [self.read(each) for each in written]
            if not any(key.startswith("!") for key in written):
                return {key: self.read(each) for key, each in written.items()}
            ((tag, content),) = written.items()
            tag = tag.removeprefix("!")
            return self._object(tag, content) if ":" in tag else _TAGS[tag](self, content)
        finally:
            self._depth -= 1

    def items(self, content: list[Any]) -> list[Any]:
        if type(content) is not list:
            raise Damaged(f"{str(content)[:50]!r} is not a list")
        return [self.read(each) for each in content]

    def pairs(self, content: list[Any]) -> list[tuple[Any, Any]]:
        pairs = [(self.read(key), self.read(each)) for key, each in content]
        if len(dict(pairs)) != len(pairs):
            raise Damaged("a dict has a key twice")
        return pairs

    def partial(self, content: list[Any]) -> Any:
        function, args, keywords = self.items(content)
        return functools.partial(function, *args, **keywords)

    def scalar(self, content: list[Any]) -> Any:
        dtype, number = find_dtype(content[0]), self.read(content[1])
        if dtype.kind not in "biufc":
            raise Damaged(f"{content[0]!r} is not a number")
        if isinstance(number, bytes):
            return np.frombuffer(number, dtype, count=1)[0]
        return dtype.type(number)

    def array(self, content: Any) -> np.ndarray:
        if isinstance(content, str):
            data = self._take(content).numpy()
            if data.dtype.name not in NATIVE:
                raise Damaged(f"{content!r} is not an array")
            return data
        dtype, data = find_dtype(content[1]), self._bytes(content[0]).numpy()
        return data.view(dtype).reshape(data.shape[:-1])

    def tensor(self, content: Any) -> th.Tensor:
        if isinstance(content, str):
            return self._take(content)
        return self._bytes(content[0]).view(TORCH_TYPES[content[1]]).squeeze(-1)

    def parameter(self, content: list[Any]) -> th.nn.Parameter:
        data, requires_grad = self.items(content)
        return th.nn.Parameter(data, requires_grad=bool(requires_grad))

    def _bytes(self, name: str) -> th.Tensor:
        data = self._take(name)
        if data.dtype != th.uint8 or not data.dim():
            raise Damaged(f"{name!r} is not made of bytes")
        return data

    def _take(self, name: str) -> th.Tensor:
        if name not in self.arrays:
            # Once only: many uses of one array could be more than fits in memory.
            raise Damaged(f"it uses the array {name[:100]!r}, which is missing or has been used before")
        return self.arrays.pop(name)

    def _object(self, name: str, content: dict[str, Any]) -> Any:
        cls = SPACES.get(name) or find_class_of_objects(name)
        return make_object(cls, {key: self.read(each) for key, each in content.items()})


#: Readers by tag.
_TAGS: dict[str, Callable[[_Reader, Any], Any]] = {
    "tuple": lambda reader, content: tuple(reader.items(content)),
    "set": lambda reader, content: set(reader.items(content)),
    "frozenset": lambda reader, content: frozenset(reader.items(content)),
    "dict": lambda reader, content: dict(reader.pairs(content)),
    "OrderedDict": lambda reader, content: OrderedDict(reader.pairs(content)),
    "deque": lambda reader, content: deque(reader.items(content["items"]), maxlen=content["maxlen"]),
    "slice": lambda reader, content: slice(*reader.items(content)),
    "partial": _Reader.partial,
    "int": lambda _, content: int(content, 16),
    "float": lambda _, content: {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf")}[content],
    "complex": lambda reader, content: complex(*map(float, reader.items(content))),
    "bytes": lambda _, content: base64.b64decode(content, validate=True),
    "dtype": lambda _, content: find_dtype(content),
    "scalar": _Reader.scalar,
    "array": _Reader.array,
    "tensor": _Reader.tensor,
    "parameter": _Reader.parameter,
    "torch.dtype": lambda _, content: TORCH_TYPES[content],
    "device": lambda _, content: th.device(content),
    "Generator": lambda reader, content: make_generator(np.random.Generator, reader.read(content)),
    "RandomState": lambda reader, content: make_generator(np.random.RandomState, reader.read(content)),
    "name": lambda _, content: find(content),
}
