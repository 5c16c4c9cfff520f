"""The types of numbers that files hold."""

import re

import numpy as np
import torch as th

#: Kinds of NumPy's types that files hold; others are objects, structures and times.
ARRAY_KINDS = "biufcSU"
#: Torch's types that are stored as they are; numbers of others are stored as their bytes.
STORED = frozenset(
    {
        *(th.bool, th.int8, th.int16, th.int32, th.int64, th.uint8, th.uint16, th.uint32, th.uint64),
        *(th.float16, th.bfloat16, th.float32, th.float64),
    }
)
#: Torch's types by name, such as ``"torch.float32"``.
TORCH_TYPES = {str(each): each for each in vars(th).values() if isinstance(each, th.dtype)}
#: NumPy's types that torch stores.
NATIVE = frozenset(str(each).removeprefix("torch.") for each in STORED - {th.bfloat16})
_NAMED = NATIVE | {"complex64", "complex128"}


def dtype_name(dtype: np.dtype) -> str:
    """The name of a NumPy type: ``"float32"``, or with the order of its bytes ``">f4"``."""
    return dtype.name if dtype.isnative and dtype.name in _NAMED else dtype.str


def find_dtype(name: str) -> np.dtype:
    """NumPy's type of a name.

    :raises ValueError: there is none, or none that files hold
    """
    if name not in _NAMED and not re.fullmatch(rf"[<>|][{ARRAY_KINDS}]\d{{1,6}}", name):
        raise ValueError(f"{name[:50]!r} is no type of numbers")
    return np.dtype(name)
