"""Objects as the values that make them again: spaces, networks, dataclasses and other plain ones. Types of numbers."""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from ppo_plus.saving.format.names import Damaged, name_of

# --- types of numbers -------------------------------------------------------------------------------------------------

#: Kinds of NumPy's types that files contain; others are objects, structures and times.
ARRAY_KINDS = "biufcSU"
#: Torch's types that are stored unchanged; numbers of others are stored as their bytes.
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

    :raises ValueError: there is none, or none that files contain
    """
    if name not in _NAMED and not re.fullmatch(rf"[<>|][{ARRAY_KINDS}]\d{{1,6}}", name):
        raise ValueError(f"{name[:50]!r} is not a type of numbers")
    return np.dtype(name)


# --- spaces -----------------------------------------------------------------------------------------------------------

#: For each class the values that make a space again, without its generator.
SPACE_FIELDS: dict[type, tuple[str, ...]] = {
    spaces.Box: ("low", "high", "dtype", "bounded_below", "bounded_above"),
    spaces.Dict: ("spaces",),
    spaces.Discrete: ("n", "start", "dtype"),
    spaces.Graph: ("node_space", "edge_space"),
    spaces.MultiBinary: ("n",),
    spaces.MultiDiscrete: ("nvec", "start", "dtype"),
    spaces.OneOf: ("spaces",),
    spaces.Sequence: ("feature_space", "stack"),
    spaces.Text: ("min_length", "max_length", "charset"),
    spaces.Tuple: ("spaces",),
}
#: The attributes that have these values, where their names differ.
_SPACE_ATTRIBUTES = {"charset": "_char_list"}
#: The classes by their names in files.
SPACES = {name_of(cls): cls for cls in SPACE_FIELDS}


def space_state(cls: type, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The values that make a space again.

    :param cls: one of :data:`SPACE_FIELDS`
    :param attributes: all of the space; some are missing if Gymnasium was older
    """
    names = {name: _SPACE_ATTRIBUTES.get(name, name) for name in SPACE_FIELDS[cls]}
    return {name: attributes[each] for name, each in names.items() if each in attributes}


def _make_space(cls: type, state: Mapping[str, Any]) -> spaces.Space:
    made = _MAKERS.get(cls, cls)(**{name: state[name] for name in SPACE_FIELDS[cls] if name in state})
    inner = getattr(made, "spaces", ())
    for each in (made, *(inner.values() if isinstance(inner, Mapping) else inner)):
        if not isinstance(each, spaces.Space):
            raise TypeError(f"{each!r} is not a space")
    return made  # type: ignore[no-any-return]


def _box(low: Any, high: Any, dtype: Any, bounded_below: Any = None, bounded_above: Any = None) -> spaces.Box:
    box = spaces.Box(np.asarray(low), np.asarray(high), dtype=dtype)
    # An integer type has no infinity that says that there is no bound.
    for name, bounded in (("bounded_below", bounded_below), ("bounded_above", bounded_above)):
        if bounded is not None:
            bounded = np.asarray(bounded)
            if bounded.dtype != bool or bounded.shape != box.shape:
                raise ValueError(f"{name} must be booleans of shape {box.shape}")
            setattr(box, name, bounded)
    return box


def _discrete(n: Any, start: Any = 0, dtype: Any = None) -> spaces.Discrete:
    options = {} if dtype is None or dtype == np.int64 else {"dtype": dtype}
    return spaces.Discrete(n, start=start, **options)


def _dict(spaces: Mapping[str, Any]) -> gymnasium.spaces.Dict:
    # Pairs, since Gymnasium would sort the keys of a dict.
    return gymnasium.spaces.Dict(list(spaces.items()))


#: Functions that make a space of these values, where its class does not.
_MAKERS: dict[type, Callable[..., spaces.Space]] = {
    spaces.Box: _box,
    spaces.Dict: _dict,
    spaces.Discrete: _discrete,
    spaces.Sequence: lambda feature_space, stack=False: spaces.Sequence(feature_space, stack=stack),
    spaces.Text: lambda charset, **lengths: spaces.Text(charset="".join(charset), **lengths),
}

# --- networks ---------------------------------------------------------------------------------------------------------

#: The attributes of every module, with the values of a new one.
_NEW = vars(nn.Module())
#: Those that are saved; the others are hooks.
_SAVED = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_PART_KINDS: dict[str, Any] = {"_parameters": nn.Parameter, "_buffers": th.Tensor, "_modules": nn.Module}


def _module_state(module: nn.Module) -> dict[str, Any] | None:
    """The attributes of a module; ``None`` if they do not describe it: it has hooks, or is recurrent."""
    has_hooks = any(vars(module).get(name) != new for name, new in _NEW.items() if name not in _SAVED)
    if has_hooks or isinstance(module, nn.RNNBase):
        return None
    return {name: value for name, value in vars(module).items() if name not in _NEW or name in _SAVED}


def _make_module(cls: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    kinds = [isinstance(each, (_PART_KINDS[name], type(None))) for name in _PART_KINDS for each in state[name].values()]
    if not all(kinds) or any(name in _NEW and name not in _SAVED for name in state) or issubclass(cls, nn.RNNBase):
        raise ValueError(f"this is not a {cls.__name__}")
    made = object.__new__(cls)
    nn.Module.__init__(made)
    vars(made).update(state)
    return made


# --- objects ----------------------------------------------------------------------------------------------------------

#: Methods by which a class would be pickled in its own way.
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


def object_state(value: Any) -> dict[str, Any] | None:
    """The values from which :func:`make_object` makes an object again; ``None``: there are none that describe it."""
    cls = type(value)
    if cls in SPACE_FIELDS:
        return space_state(cls, vars(value))
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return dict(zip(cls._fields, value, strict=True))
    if isinstance(value, enum.Enum) and value.name in cls.__members__:
        return {"name": value.name}
    if isinstance(value, nn.Module):
        return _module_state(value)
    is_plain = (
        cls.__new__ is object.__new__
        and all(getattr(cls, name, None) is getattr(object, name, None) for name in _PICKLING)
        and not any(vars(each).get("__slots__") for each in cls.__mro__)
        and bool(cls.__dictoffset__)
    )
    return dict(vars(value)) if is_plain else None


def make_object(cls: type, state: dict[str, Any]) -> Any:
    """An object of a class; dataclasses and spaces check their values as they always do.

    :param cls: the class, which files may contain objects of
    :param state: from :func:`object_state`
    :raises Exception: of any kind, if they do not make an object
    """
    made: Any
    if cls in SPACE_FIELDS:
        return _make_space(cls, state)
    if issubclass(cls, enum.Enum):
        return cls[state["name"]]
    if issubclass(cls, tuple):
        return cls(**state)
    if issubclass(cls, nn.Module):
        return _make_module(cls, state)
    if dataclasses.is_dataclass(cls):
        fields = {each.name: each.init for each in dataclasses.fields(cls)}
        if not state.keys() <= fields.keys():
            raise Damaged(f"{cls.__name__} has no {sorted(state.keys() - fields.keys())}")
        made = cls(**{name: each for name, each in state.items() if fields[name]})
    else:
        made = object.__new__(cls)
    vars(made).update(state)
    return made
