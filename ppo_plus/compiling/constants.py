"""The constants of a trace: everything that Python code reads besides the tensors that it is called with.

A compiled form is a recording: a number that the recorded code read from an attribute, a nested object, a closure or a
global of its module is a constant in it. :func:`constants_of` lists all of these by value, so that they can be compared
before the compiled form is used again. What cannot be listed, such as a generator of random numbers or a name that is
made at run time, raises :class:`NotComparable`: such code has to run uncompiled.

The code of libraries (:data:`LIBRARIES`) is assumed not to change; the data in their objects is compared. For custom
code, everything is compared that its functions name: their defaults, closures and globals, the classes and functions
that these are, and so on. For objects that change all the time, such as the algorithm, only the attributes are compared
that some custom function names.
"""

import copy
import dis
import enum
import functools
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from torch import nn

#: Packages whose code does not change while a program runs.
LIBRARIES = frozenset(
    {"gymnasium", "numpy", "optree", "ppo_plus", "sb3_contrib", "scipy", "stable_baselines3", "torch"}
    | set(sys.stdlib_module_names) - {"__main__"}
)
#: Modules whose functions return something else each time.
VOLATILE = frozenset({"ctypes", "datetime", "io", "os", "random", "secrets", "socket", "time", "uuid"})
#: Names by which code reads what it does not name, in the process or in files, or what an update changes.
DYNAMIC = frozenset(
    """__dict__ __getattribute__ __import__ attrgetter eval exec getattr globals import_module input locals methodcaller
    open param_groups read_bytes read_text vars""".split()
)
#: Types whose values are compared by ``==``.
ATOMS = frozenset(
    {int, str, bytes, bool, type(None), type(...), range, slice}
    | {th.dtype, th.device, th.layout, th.memory_format, th.Size}
)
#: Functions and descriptors of compiled libraries, which equal themselves.
BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)
#: What other types consist of that keep nothing in ``__dict__``.
PARTS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    (list, tuple, deque): list,
    (set, frozenset): functools.partial(sorted, key=repr),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    types.MethodType: lambda value: (value.__func__, value.__self__),
    (classmethod, staticmethod): lambda value: (value.__func__,),
    property: lambda value: (value.fget,),
    functools.cached_property: lambda value: (value.func,),
    weakref.ref: lambda value: (value(),),
    np.generic: lambda value: (value.item(),),
    int: lambda value: (int(value),),
    float: lambda value: (float(value),),
    complex: lambda value: (complex(value),),
    str: lambda value: (str.__str__(value),),
    bytes: lambda value: (bytes(value),),
}
#: Larger tensors and arrays are not copied for a comparison.
MAX_NUMBERS = 1_000_000


class NotComparable(Exception):
    """Something that code reads cannot be compared; the message says what."""


@dataclass(frozen=True)
class Reads:
    """What code reads besides what changes from call to call."""

    #: Tensors that it is called with each time, in this order.
    tensors: Sequence[th.Tensor] = ()
    #: Functions and other objects, by their names in messages.
    objects: Mapping[str, Any] = field(default_factory=dict)
    #: Objects that change all the time, of which only attributes count that some custom function names.
    changing: Sequence[Any] = ()


def constants_of(reads: Reads) -> dict[str, Any]:
    """What code reads, in a form that can be compared: equal where the code would do the same."""
    walk = _Walk(reads)
    constants = {name: walk.visit(value, name) for name, value in reads.objects.items()}
    return constants | walk.named_attributes()


def first_difference(one: Any, other: Any) -> str:
    """The name of what differs first between two sets of constants."""
    return next(str(name) for name in {**one, **other} if one.get(name) != other.get(name))


class _Walk:
    """Visits objects, and what they consist of, once each."""

    def __init__(self, reads: Reads):
        self.changing = {id(value): value for value in reads.changing}
        self.tensors = {id(tensor): index for index, tensor in enumerate(reads.tensors)}
        #: Objects that have been visited, with their numbers; kept alive so that no other gets their address.
        self.visited: dict[int, tuple[int, Any]] = {}
        #: What custom functions name.
        self.names: set[str] = set()
        #: Custom modules that custom functions use: only the attributes that are named count here as well.
        self.modules: dict[int, types.ModuleType] = {}

    def visit(self, value: Any, path: str) -> tuple[Any, ...]:
        """A value in a form that can be compared; ``path`` says where it is, for messages."""
        kind: type = type(value)
        if kind in ATOMS:
            return kind, value
        if kind in (float, complex):
            return kind, repr(value)  # NaN equals itself, and -0.0 is not 0.0
        if id(value) in self.changing:
            return "changing", kind.__qualname__
        if id(value) in self.visited:
            return "visited", self.visited[id(value)][0]
        self.visited[id(value)] = len(self.visited), value
        if isinstance(value, (th.Tensor, np.ndarray)):
            return self._numbers(value, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.ModuleType):
            _refuse_volatile(value.__name__, path)
            if not _is_library(value.__name__):
                self.modules[id(value)] = value
            return kind, value
        if isinstance(value, type):
            _refuse_volatile(value.__module__, path)
            return kind, value, self._class(value, path)
        if isinstance(value, BUILTINS):
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                raise NotComparable(f"{path} is a method of {type(owner).__name__}, which may change")
            _refuse_volatile(getattr(owner, "__name__", ""), path)
            return kind, value
        if isinstance(value, (enum.Enum, np.dtype, spaces.Space)):
            return kind, copy.deepcopy(value)  # a space may be changed in place
        content = self._content(value, path)
        if content is not None and not _custom_bases(kind):
            return kind, content
        return kind, content, self._class(kind, path), self._attributes(value, kind, path, content is None)

    def _numbers(self, value: Any, path: str) -> tuple[Any, ...]:
        if id(value) in self.tensors:
            return "tensor", self.tensors[id(value)], tuple(value.shape), value.requires_grad
        # Subclasses may mean something else than their numbers.
        is_plain = type(value) in (th.Tensor, nn.Parameter, np.ndarray)
        if not is_plain or getattr(value, "layout", th.strided) is not th.strided:
            raise NotComparable(f"{path} is a {type(value).__name__}, which cannot be inspected")
        n_numbers = value.numel() if isinstance(value, th.Tensor) else value.size
        if n_numbers > MAX_NUMBERS or getattr(value.dtype, "hasobject", False):
            raise NotComparable(f"{path} has {n_numbers} entries of {value.dtype}, too many to compare")
        kind = type(value), value.dtype, tuple(value.shape), str(getattr(value, "device", ""))
        if isinstance(value, th.Tensor):
            # As bytes, since NumPy does not have all of torch's dtypes.
            value = value.detach().cpu().resolve_conj().resolve_neg().flatten().contiguous().view(th.uint8).numpy()
        return kind, value.tobytes()

    def _function(self, value: types.FunctionType, path: str) -> tuple[Any, ...]:
        # functools.wraps copies __module__ from the function inside.
        if _is_library(value.__module__ or "") and _is_library(value.__globals__.get("__name__", "")):
            _refuse_volatile(value.__module__ or "", path)
            return types.FunctionType, value
        names = {name for code in _codes(value.__code__) for name in code.co_names}
        dynamic = names & DYNAMIC
        if dynamic:
            raise NotComparable(f"{value.__qualname__} uses {', '.join(sorted(dynamic))}, and so may read anything")
        for module in _imported(value.__code__):
            _refuse_volatile(module, value.__qualname__)
            if not _is_library(module):
                raise NotComparable(f"{value.__qualname__} imports {module}: import it at the top of the module")
        self.names |= names
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        # ``__class__``, which ``super()`` needs, is compared as the class of the object.
        closure = [cell.cell_contents for name, cell in cells if name != "__class__" and cell != types.CellType()]
        named = {name: value.__globals__[name] for name in sorted(names) if name in value.__globals__}
        if "random" in names and any(part is np for part in named.values()):
            raise NotComparable(f"{value.__qualname__} draws from numpy.random")
        # It may make objects of the classes that it names.
        makes = [part for part in (*named.values(), *closure) if isinstance(part, type)]
        made_by = [vars(base).get("__init__") for part in makes for base in _custom_bases(part)]
        parts = (value.__defaults__, value.__kwdefaults__, closure, vars(value), made_by)
        return (
            value.__code__,
            tuple(self.visit(part, path) for part in parts),
            {name: self.visit(read, name) for name, read in named.items()},
        )

    def _class(self, value: type, path: str) -> tuple[Any, ...]:
        """The attributes of a class's custom bases."""
        return tuple(
            self.visit(attribute, f"{path}.{name}")
            for base in _custom_bases(value)
            for name, attribute in vars(base).items()
            if name not in _OF_EVERY_CLASS and not name.startswith("_abc_")
            if not isinstance(attribute, (types.MemberDescriptorType, types.GetSetDescriptorType))
        )

    def _content(self, value: Any, path: str) -> tuple[Any, ...] | None:
        """What an object consists of besides its attributes; ``None``: nothing."""
        if isinstance(value, dict):
            keys = tuple(self.visit(key, path) for key in value)
            items = {repr(key): self.visit(item, f"{path}[{key!r}]") for key, item in value.items()}
            if len(items) < len(keys):
                raise NotComparable(f"{path} has keys that read alike")
            return keys, self.visit(getattr(value, "default_factory", None), path), items
        for types_, parts in PARTS.items():
            if isinstance(value, types_):
                return tuple(self.visit(part, f"{path}[{i}]") for i, part in enumerate(parts(value)))
        return None

    def _attributes(self, value: Any, kind: type, path: str, required: bool) -> dict[str, Any] | tuple[Any, ...]:
        """The attributes of an object; if ``required``, it must have some."""
        _refuse_volatile(kind.__module__, path)
        state: Any = object.__getstate__(value)  # the entries of `__dict__`, or these and those of slots
        if required and state is None and not hasattr(value, "__dict__"):
            raise NotComparable(f"{path} is a {kind.__name__}, which cannot be inspected")
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        attributes = {**(attributes or {}), **(slots or {})}
        if isinstance(value, nn.Module):
            return self._module(value, attributes, path)
        return {name: self.visit(attribute, f"{path}.{name}") for name, attribute in attributes.items()}

    def _module(self, module: nn.Module, attributes: dict[str, Any], path: str) -> tuple[Any, ...]:
        """A network or layer: its tensors, its attributes and its submodules in their order."""
        if not hasattr(module, "_modules"):
            raise NotComparable(f"{path} is a module that was not initialized")
        # Compiled code does not call them.
        hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
        owners = (module, *module.parameters(recurse=False))
        tables = (getattr(owner, table, None) or {} for owner in owners for table in hooks)
        hook = next((hook for table in tables for hook in table.values()), None)
        if hook is not None:
            raise NotComparable(
                f"{path} has the hook {getattr(hook, '__qualname__', repr(hook))} on its gradient or on that of a "
                "weight: remove it, or use compile=False"
            )
        tensors = {
            f"{table}[{name!r}]": None if tensor is None else self._numbers(tensor, f"{path}.{name}")
            for table in ("_parameters", "_buffers")
            for name, tensor in getattr(module, table).items()
        }
        skipped = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
        skipped |= getattr(type(module), "not_constant", frozenset())
        # Most attributes of a module are empty tables of hooks: no path is made for these, nor for plain values.
        data = {
            name: attribute if _is_plain(attribute) else self.visit(attribute, f"{path}.{name}")
            for name, attribute in attributes.items()
            if name not in skipped
        }
        parts = {name: self.visit(child, f"{path}.{name}") for name, child in module.named_children()}
        forward = self.visit(getattr(type(module), "forward", None), f"{path}.forward")
        return tensors, forward, tuple(parts), data | parts

    def named_attributes(self) -> dict[str, Any]:
        """The attributes of the named objects and of custom modules that custom functions name, and what they read."""
        attributes: dict[str, Any] = {}
        done: set[tuple[int, str]] = set()
        while True:
            owners = [*self.changing.values(), *self.modules.values()]
            names = sorted(name for name in self.names if not name.startswith("__"))
            due = [(owner, name) for owner in owners for name in names if (id(owner), name) not in done]
            if not due:
                return attributes
            for owner, name in due:
                done.add((id(owner), name))
                holder = owner.__name__ if isinstance(owner, types.ModuleType) else "self"
                for key, value in _attribute(owner, name, holder):
                    attributes[key] = self.visit(value, key)


#: Entries of a class that are made by Python and dataclasses, or change nothing but how an object is made and shown.
_OF_EVERY_CLASS = frozenset(
    """__dict__ __weakref__ __doc__ __module__ __annotations__ __static_attributes__ __slotnames__ __dataclass_fields__
    __dataclass_params__ __match_args__ __init__ __repr__ __eq__""".split()
)


def _refuse_volatile(module: str, path: str) -> None:
    if module in VOLATILE or module.startswith("numpy.random"):
        raise NotComparable(f"{path} is of the module {module}, which returns something else each time")


def _is_plain(value: Any) -> bool:
    return type(value) in ATOMS or (type(value) in (dict, OrderedDict) and not value)


@functools.cache
def _custom_bases(kind: type) -> tuple[type, ...]:
    return tuple(base for base in kind.__mro__ if not _is_library(base.__module__))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


@functools.cache
def _imported(code: types.CodeType) -> tuple[str, ...]:
    """The modules that a function imports; ``""`` for relative ones."""
    instructions = (each for part in _codes(code) for each in dis.get_instructions(part))
    return tuple(each.argval for each in instructions if each.opname == "IMPORT_NAME")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _attribute(owner: Any, name: str, holder: str) -> Iterator[tuple[str, Any]]:
    """An attribute as stored in the object and in its custom classes; of a library's class, only what is ``pure``."""
    own = getattr(owner, "__dict__", {})
    if name in own:
        yield f"{holder}.{name}", own[name]
    if isinstance(owner, types.ModuleType):
        return
    classes = [base for base in type(owner).__mro__ if name in vars(base)]
    for base in classes:
        if not _is_library(base.__module__):
            yield f"{holder}.{name} ({base.__qualname__})", vars(base)[name]
    if not classes or name in own or name in getattr(type(owner), "pure", ()) or not _is_library(classes[0].__module__):
        return
    if isinstance(vars(classes[0])[name], (property, types.FunctionType, functools.cached_property)):
        raise NotComparable(f"{holder}.{name} is a property or method of a library, whose data is not known")
