"""What a trace takes for granted: everything that Python code reads besides the tensors it is given.

A compiled form is a recording: a number that the recorded code read from an attribute, a nested object, a closure or a
global of its module is a constant in it. :func:`constants_of` lists all of these by value, so that whoever keeps a
compiled form can compare them before he uses it again. What cannot be listed, such as a generator of random numbers or
a name that is made at run time, raises :class:`Unknown`: such code is to run as it is.

Code of libraries (:data:`LIBRARIES`) is taken as given; what their objects hold is compared. Of custom code it is
compared what its functions name: their defaults, closures and globals, the classes and functions behind these, and so
on. Of objects that change all the time, such as the algorithm, only the attributes are compared that some custom
function names.
"""

import enum
import functools
import math
import os
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

from ppo_plus.compiling.torch_private import MODULE_HOOKS, TENSOR_HOOKS, are_hooks_on_all_modules

#: Packages whose code does not change while a program runs.
LIBRARIES = frozenset(
    {"gymnasium", "numpy", "optree", "ppo_plus", "sb3_contrib", "scipy", "stable_baselines3", "torch"}
    | set(sys.stdlib_module_names) - {"__main__"}
)
#: Where the standard library lies.
STANDARD_LIBRARY = os.path.dirname(os.__file__)
#: Modules whose functions answer otherwise each time.
VOLATILE = frozenset({"datetime", "io", "os", "random", "secrets", "socket", "time", "uuid", "numpy.random"})
#: Names by which code reads what it does not name, in the process or in files.
DYNAMIC = frozenset(
    {
        "__dict__",
        "__getattribute__",
        "__import__",
        "attrgetter",
        "eval",
        "exec",
        "getattr",
        "globals",
        "import_module",
        "input",
        "locals",
        "methodcaller",
        "open",
        "read_bytes",
        "read_text",
        "vars",
    }
)
#: What is compared as it is.
ATOMS = (
    int, str, bytes, bool, complex, type(None), type(...), range, slice, enum.Enum,
    np.dtype, th.dtype, th.device, th.layout, th.memory_format, th.Size,
)  # fmt: skip
#: Larger tensors and arrays are not copied for a comparison.
MAX_NUMBERS = 1_000_000
#: More objects than this are nobody's settings.
MAX_OBJECTS = 50_000
#: Attributes of modules that are listed apart: tensors, which may be handed in, and submodules.
NOT_COMPARED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


class Unknown(Exception):
    """Something that code reads cannot be compared; says what."""


class _Same:
    """Equal only to itself."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


class _Numbers:
    """A copy of a tensor or an array, equal to one with the same numbers."""

    def __init__(self, value: Any):
        self.value = value.detach().clone() if isinstance(value, th.Tensor) else value.copy()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Numbers):
            return False
        mine: Any = self.value
        others: Any = other.value
        if type(mine) is not type(others) or mine.shape != others.shape or mine.dtype != others.dtype:
            return False
        if isinstance(mine, th.Tensor):
            return mine.device == others.device and th.equal(mine, others)
        return bool(np.array_equal(mine, others, equal_nan=bool(mine.dtype.kind in "fc")))

    __hash__ = None  # type: ignore[assignment]


Constants = dict[str, Any]


def constants_of(named: Iterable[Any] = (), given: Iterable[th.Tensor] = (), **roots: Any) -> Constants:
    """What code reads that starts from these objects, in a form that can be compared.

    :param named: objects of which only those attributes count that some custom function names
    :param given: tensors that the code is handed anew in each call, in this order
    :param roots: functions and other objects, by what they are called in messages
    :return: comparable values; equal where the code would do the same
    :raises Unknown: something cannot be compared
    """
    if are_hooks_on_all_modules():
        raise Unknown("there are hooks on all modules")
    walk = _Walk(named, given)
    constants = {name: walk.visit(value, name) for name, value in roots.items()}
    return constants | walk.named_attributes()


def first_difference(one: Any, other: Any, path: str = "") -> str:
    """Where two sets of constants differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if key not in one or key not in other or one[key] != other[key]:
                inner = f"{path}.{key}" if path else str(key)
                return first_difference(one.get(key), other.get(key), inner)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for a, b in zip(one, other, strict=True):
            if a != b:
                return first_difference(a, b, path)
    return path


class _Walk:
    def __init__(self, named: Iterable[Any], given: Iterable[th.Tensor]):
        self.named = {id(value): value for value in named}
        self.given = {id(tensor): place for place, tensor in enumerate(given)}
        #: Objects that have been seen, with their numbers; kept alive so that no other gets their address.
        self.seen: dict[int, tuple[int, Any]] = {}
        #: What custom functions name.
        self.names: set[str] = set()
        #: Custom modules that custom functions use: of these, too, only what is named counts.
        self.modules: dict[int, types.ModuleType] = {}

    def visit(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _ATOMS or isinstance(value, ATOMS):
            return kind, value
        if kind is float:
            return kind, "nan" if math.isnan(value) else value
        if id(value) in self.named:
            return "named", kind.__qualname__
        if id(value) in self.seen:
            return "again", self.seen[id(value)][0]
        if len(self.seen) >= MAX_OBJECTS:
            raise Unknown(f"{path} is among more than {MAX_OBJECTS} objects")
        self.seen[id(value)] = len(self.seen), value
        return self._visit_new(value, kind, path)

    def _visit_new(self, value: Any, kind: type, path: str) -> Any:
        if isinstance(value, (th.Tensor, np.ndarray)):
            return self._numbers(value, path)
        if isinstance(value, dict):
            keys = tuple(self.visit(key, path) for key in value)
            held = {repr(key): self.visit(each, f"{path}[{key!r}]") for key, each in value.items()}
            if len(held) < len(keys):
                raise Unknown(f"{path} has keys that read alike")
            return kind, keys, held
        if isinstance(value, (list, tuple, deque)):
            return kind, tuple(self.visit(each, f"{path}[{i}]") for i, each in enumerate(value))
        if isinstance(value, (set, frozenset)):
            return kind, tuple(self.visit(each, path) for each in sorted(value, key=repr))
        if isinstance(value, np.generic):
            return kind, repr(value.item())
        if isinstance(value, spaces.Space):
            return _Same(value)
        if isinstance(value, types.ModuleType):
            return self._module(value, path)
        if isinstance(value, type):
            _refuse_volatile(value.__module__, path)
            return _Same(value), self._class(value, path)
        if isinstance(value, weakref.ref):
            return kind, self.visit(value(), path)
        if isinstance(value, functools.partial):
            return kind, self.visit(value.func, path), self.visit((value.args, value.keywords), path)
        if isinstance(value, types.MethodType):
            return kind, self.visit(value.__func__, path), self.visit(value.__self__, f"{path}.__self__")
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)):
            return _Same(value)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                raise Unknown(f"{path} is a method of {type(owner).__name__}, which may change")
            _refuse_volatile(getattr(owner, "__name__", ""), path)
            return _Same(value)
        if isinstance(value, (property, classmethod, staticmethod, functools.cached_property)):
            inner = [getattr(value, name, None) for name in ("fget", "__func__", "func")]
            return kind, tuple(self.visit(each, path) for each in inner if each is not None)
        return self._object(value, kind, path)

    def _numbers(self, value: Any, path: str) -> Any:
        if id(value) in self.given:
            return "given", self.given[id(value)], tuple(value.shape), value.requires_grad
        if type(value) not in _NUMBERS:
            raise Unknown(f"{path} is a {type(value).__name__}, of which nothing can be seen")
        n_numbers = value.numel() if isinstance(value, th.Tensor) else value.size
        if n_numbers > MAX_NUMBERS or value.dtype == object:
            raise Unknown(f"{path} has {n_numbers} entries of {value.dtype}, too many to compare")
        return _Numbers(value)

    def _module(self, value: types.ModuleType, path: str) -> Any:
        _refuse_volatile(value.__name__, path)
        if not _is_library(value.__name__):
            self.modules[id(value)] = value
        return _Same(value)

    def _class(self, value: type, path: str) -> Any:
        """What the custom classes that it derives from hold."""
        custom = _custom_bases(value)
        if not custom:
            return ()
        skip = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__static_attributes__"}
        skip |= {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__", "__repr__", "__eq__"}
        return tuple(
            self.visit(each, f"{path}.{name}")
            for base in custom
            for name, each in vars(base).items()
            if name not in skip and not isinstance(each, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if not name.startswith("_abc_")
        )

    def _function(self, value: types.FunctionType, path: str) -> Any:
        # Of what functools.wraps made, __module__ is that of the function inside.
        if _is_library(value.__module__ or "") and _is_library(value.__globals__.get("__name__", "")):
            _refuse_volatile(value.__module__ or "", path)
            return _Same(value)
        names = set(_names(value.__code__))
        dynamic = names & DYNAMIC
        if dynamic:
            raise Unknown(f"{value.__qualname__} uses {', '.join(sorted(dynamic))}, and so may read anything")
        self.names |= names
        closure = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        read = {name: value.__globals__[name] for name in sorted(names) if name in value.__globals__}
        if "random" in names and np in read.values():
            raise Unknown(f"{value.__qualname__} draws from numpy.random")
        held = (value.__defaults__, value.__kwdefaults__, closure)
        return (
            value.__code__,
            tuple(self.visit(each, path) for each in held),
            {name: self.visit(each, name) for name, each in read.items()},
        )

    def _object(self, value: Any, kind: type, path: str) -> Any:
        if kind.__module__ in VOLATILE or kind.__module__.startswith("numpy.random") or isinstance(value, th.Generator):
            raise Unknown(f"{path} is a {kind.__name__}, which answers otherwise each time")
        slots = [name for name in _slots(kind) if hasattr(value, name)]
        if not hasattr(value, "__dict__") and not slots:
            raise Unknown(f"{path} is a {kind.__name__}, of which nothing can be seen")
        held = {name: getattr(value, name) for name in slots if name not in ("__dict__", "__weakref__")}
        held |= getattr(value, "__dict__", {})
        if not isinstance(value, nn.Module):
            return kind, self._class(kind, path), {key: self.visit(each, f"{path}.{key}") for key, each in held.items()}
        self._refuse_gradient_hooks(value, path)
        if not hasattr(value, "_modules"):
            raise Unknown(f"{path} is a module that was not initialized")
        # Which of the tensors that are handed in stands where; those of a module beside the policy are constants.
        tensors = {
            f"{table}[{name!r}]": None if tensor is None else self._numbers(tensor, f"{path}.{name}")
            for table in ("_parameters", "_buffers")
            for name, tensor in getattr(value, table).items()
        }
        parts = dict(value.named_children())
        skipped = NOT_COMPARED | _skipped(value)
        # Most of what a module holds is empty tables of hooks: no path is made for these, nor for plain values.
        data = {
            key: each if _is_plain(each) else self.visit(each, f"{path}.{key}")
            for key, each in held.items()
            if key not in skipped
        }
        return (
            kind,
            self._class(kind, path),
            tensors,
            self.visit(getattr(kind, "forward", None), f"{path}.forward"),
            tuple(parts),
            data | {key: self.visit(each, f"{path}.{key}") for key, each in parts.items()},
        )

    def _refuse_gradient_hooks(self, module: nn.Module, path: str) -> None:
        """Compiled code has no gradients on the way that hooks could see."""
        if any(getattr(module, name, None) for name in MODULE_HOOKS if "backward" in name):
            raise Unknown(f"{path} has a backward hook")
        for name, weight in module.named_parameters(recurse=False):
            if any(getattr(weight, table, None) for table in TENSOR_HOOKS):
                raise Unknown(f"{path}.{name} has a hook on its gradient")

    def named_attributes(self) -> Constants:
        """What custom functions name of the named objects and of custom modules, and what is behind that."""
        found: Constants = {}
        done: set[tuple[int, str]] = set()
        while True:
            owners = [*self.named.values(), *self.modules.values()]
            names = sorted(name for name in self.names if not name.startswith("__"))
            due = [(owner, name) for owner in owners for name in names if (id(owner), name) not in done]
            if not due:
                return found
            for owner, name in due:
                done.add((id(owner), name))
                holder = owner.__name__ if isinstance(owner, types.ModuleType) else "self"
                for key, value in _attribute(owner, name):
                    found[f"{holder}.{key}"] = self.visit(value, f"{holder}.{key}")
                if _is_computed(owner, name):
                    raise Unknown(f"{holder}.{name} is computed from what is not seen here")


def _refuse_volatile(module: str, path: str) -> None:
    if module in VOLATILE:
        raise Unknown(f"{path} is of the module {module}, which answers otherwise each time")


_ATOMS = frozenset(ATOMS)
_TABLES = frozenset({dict, OrderedDict})
_NUMBERS = frozenset({th.Tensor, nn.Parameter, np.ndarray})


def _is_plain(value: Any) -> bool:
    return type(value) in _ATOMS or (type(value) in _TABLES and not value)


@functools.cache
def _custom_bases(kind: type) -> tuple[type, ...]:
    return tuple(base for base in kind.__mro__ if not _is_library(base.__module__))


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name in vars(base).get("__slots__", ()))


def _skipped(module: nn.Module) -> frozenset[str]:
    """Attributes of which a class says that what it computes does not depend on them."""
    return getattr(type(module), "not_constant", frozenset())


def _is_computed(owner: Any, name: str) -> bool:
    """Whether an attribute is a property or method of a library's class that is not said to be ``pure``."""
    if isinstance(owner, types.ModuleType) or name in getattr(type(owner), "pure", frozenset()):
        return False
    found = next((base for base in type(owner).__mro__ if name in vars(base)), None)
    if found is None or not _is_library(found.__module__) or name in getattr(owner, "__dict__", {}):
        return False
    return isinstance(vars(found)[name], (property, types.FunctionType, functools.cached_property))


def _is_library(module: str) -> bool:
    name = module.partition(".")[0]
    return name in LIBRARIES and not _hides_a_library(name)


def _hides_a_library(name: str) -> bool:
    """Whether a module of the user's own has the name of one of the standard library, as a file ``code.py`` does."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.stdlib_module_names and file is not None and not file.startswith(STANDARD_LIBRARY)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes that a function names, with those of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attribute(owner: Any, name: str) -> Iterator[tuple[str, Any]]:
    """An attribute as it is stored, in the object and in its custom classes."""
    if name in getattr(owner, "__dict__", {}):
        yield name, owner.__dict__[name]
    if not isinstance(owner, types.ModuleType):
        for base in type(owner).__mro__:
            if name in vars(base) and not _is_library(base.__module__):
                yield f"{name} ({base.__qualname__})", vars(base)[name]
