"""Values in pickles, read without running them.

A pickle is a program: it names functions and calls them. Here each name stands for a class that only notes what it is
called with. Then what is known by name is made: arrays, spaces, schedules, running moments. Anything else raises an
error that names it.
"""

import io
import pickle
import pickletools
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import torch as th
from stable_baselines3.common.utils import LinearSchedule

from ppo_plus.formulas.schedules import Constant, Cosine, Linear, Sampled, Schedule
from ppo_plus.saving.format.names import Refused, decoding, find, find_class_of_objects, public_name
from ppo_plus.saving.format.values import SPACES, make_object

#: Integers below it are their own hashes.
MODULUS = sys.hash_info.modulus


class PickledCall:
    """A call that a pickle asks for, and what it does with the result. Each name in a pickle is a subclass of this."""

    name: ClassVar[str]
    args: tuple[Any, ...]
    state: Any = None
    items: list[Any]
    pairs: list[tuple[Any, Any]]

    def __new__(cls, *args: Any) -> "PickledCall":
        made = object.__new__(cls)
        made.args, made.items, made.pairs = args, [], []
        if cls.name.endswith(":_function_setstate"):
            args[0].__setstate__(args[1])  # how cloudpickle fills a function
        return made

    def __call__(self, *args: Any) -> "PickledCall":
        """A pickle may also call what it has made: cloudpickle does."""
        return _call_named(f"{self.name}()")(*args)

    def __setstate__(self, state: object) -> None:
        if self.state is not None:
            raise Refused("it changes a state twice")
        self.state = state

    def append(self, item: object) -> None:
        self.items.append(item)

    def __setitem__(self, key: object, value: object) -> None:
        self.pairs.append((key, value))


def _call_named(name: str) -> type[PickledCall]:
    return type("PickledCall", (PickledCall,), {"name": name})


class _Dict(dict[Any, Any]):
    """A dict whose keys hash fast: hashing a nested tuple may take forever, and large integers may share one hash."""

    __slots__ = ()

    def __setitem__(self, key: Any, entry: Any) -> None:
        if not (key is None or isinstance(key, (str, bytes, float)) or (isinstance(key, int) and abs(key) < MODULUS)):
            raise Refused(f"it has a key that is a {type(key).__name__}, or too large")
        super().__setitem__(key, entry)


#: The standard library's reader in Python, which can be changed and interrupted.
_Unpickler: Any = vars(pickle)["_Unpickler"]


class _Parser(_Unpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)
    dispatch[pickle.EMPTY_DICT[0]] = lambda parser: parser.append(_Dict())

    def find_class(self, module: str, name: str) -> type[PickledCall]:
        """Called for every name in a pickle: nothing is looked up."""
        return _call_named(f"{module}:{name}")


#: Instructions that plain values and objects need. Others refer to what is outside of the pickle, or are out of use.
_INSTRUCTIONS = frozenset(
    "PROTO FRAME STOP MARK POP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST EMPTY_DICT EMPTY_TUPLE "
    "TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD".split()
)


def parse(data: bytes) -> Any:
    """What a pickle would make: plain values, :class:`PickledCall`, and subclasses of it for names."""
    with decoding():
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _INSTRUCTIONS:
                raise Refused(f"it has the instruction {opcode.name}, which is not read")
            if opcode.name == "LONG_BINPUT" and (argument or 0) > len(data):
                raise Refused("it numbers more values than it has")  # memory would be reserved for all numbers
        return _Parser(io.BytesIO(data)).load()


def value_of(parsed: Any, n_bytes: int) -> Any:
    """The value that :func:`parse` found in so many bytes; raises :class:`Refused` if it asks for what is not known."""
    with decoding():
        return _Maker(n_bytes).make(parsed)


class _Maker:
    """Makes one value; what a pickle uses several times is made once."""

    def __init__(self, n_bytes: int) -> None:
        self._bytes_left = 2 * n_bytes
        #: What was made, by the identity of its plan; the plan is kept so that no other takes its identity.
        self._made: dict[int, tuple[Any, Any]] = {}

    def make(self, plan: Any) -> Any:
        if plan is None or isinstance(plan, (bool, int, float, str, bytes, bytearray)):
            return plan
        if id(plan) not in self._made:
            self._made[id(plan)] = self._make(plan), plan
        return self._made[id(plan)][0]

    def _make(self, plan: Any) -> Any:
        if isinstance(plan, dict):
            return {self.make(key): self.make(entry) for key, entry in plan.items()}
        if isinstance(plan, type) and issubclass(plan, PickledCall):
            return find(public_name(plan.name))
        if isinstance(plan, PickledCall):
            return self._call(plan)
        return type(plan)(map(self.make, plan))

    def _call(self, call: PickledCall) -> Any:
        name = call.name
        for old, new in _RENAMED.items():
            name = re.sub(f"^{re.escape(old)}", new, name)
        name = public_name(name)
        if name in SPACES:
            # A generator is not even looked at.
            cls, fields = SPACES[name]
            return make_object(cls, {field: self.make(call.state[field]) for field in fields if field in call.state})
        if name in _CALLS:
            return _CALLS[name](self, call)
        try:
            cls = find_class_of_objects(name)
        except Refused:
            raise Refused(f"it would call {call.name}") from None
        args = self.make(call.args)
        if issubclass(cls, tuple):
            return cls(*args)
        if args:
            raise Refused(f"it would call {name} with arguments")
        return make_object(cls, self.make(call.state or {}))

    def array(self, data: bytes, dtype: np.dtype, shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray:
        if not isinstance(data, (bytes, bytearray)) or not isinstance(dtype, np.dtype):
            raise Refused("it has an array that is not made of numbers")
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise Refused("its arrays are larger than itself")
        return np.frombuffer(bytes(data), dtype).reshape(shape, order=order).copy(order="K")

    def reconstructed(self, call: PickledCall) -> np.ndarray:
        _, shape, dtype, in_columns, data = self.make(call.state)
        return self.array(data, dtype, shape, "F" if in_columns else "C")

    def scalar(self, call: PickledCall) -> np.generic:
        dtype, data = self.make(call.args)
        return self.array(data, dtype, (1,), "C")[0]

    def dtype(self, call: PickledCall) -> np.dtype:
        name, state = self.make(call.args)[0], self.make(call.state or (3, "|"))
        if type(name) is not str or not re.fullmatch(r"[biuf]\d{1,2}", name):
            raise Refused(f"it has an array of {name!r}")
        dtype = np.dtype(name)
        return dtype.newbyteorder(state[1]) if state[1] in "<>" else dtype

    def closure(self, call: PickledCall) -> Schedule | float:
        """A schedule that SB3 defined within a function: its name and its cells say which, its code is not run."""
        state = call.state[1]
        name = f"{state['__module__']}:{state['__qualname__']}"
        pairs = zip(call.args[0].args[-2], state["__closure__"] or (), strict=True)
        cells = {cell: content.args[0] for cell, content in pairs}
        if name not in CLOSURES:
            numbers = [number for number in cells.values() if isinstance(number, (int, float))]
            hint = f": for example ppo_plus.linear({numbers[0]!r})" if "linear" in name and len(numbers) == 1 else ""
            raise Refused(f"it is a function of the user's, {name}{hint}")
        return CLOSURES[name](**{cell: self.make(content) for cell, content in cells.items()})

    def ordered_dict(self, call: PickledCall) -> OrderedDict[Any, Any]:
        entries = _Dict()
        for key, entry in call.pairs:
            entries[key] = self.make(entry)
        return OrderedDict(entries)

    def deque(self, call: PickledCall) -> deque[Any]:
        return deque([*map(self.make, (call.args or ((),))[0]), *map(self.make, call.items)], *call.args[1:])


def _linear_fn(start: float, end: float, end_fraction: float) -> Linear | LinearSchedule:
    return Linear(start, end) if end_fraction == 1 else LinearSchedule(start, end, end_fraction)


#: Schedules that SB3 up to 2.6 defined within functions, and those that we write for SB3, from their cells.
CLOSURES: dict[str, Callable[..., Any]] = {
    "stable_baselines3.common.utils:constant_fn.<locals>.func": lambda val: Constant(val),
    "stable_baselines3.common.utils:get_schedule_fn.<locals>.<lambda>": lambda value_schedule: value_schedule,
    "stable_baselines3.common.utils:get_linear_fn.<locals>.func": _linear_fn,
    "rl_zoo3.utils:linear_schedule.<locals>.func": lambda **cells: Linear(float(*cells.values())),
    "ppo_plus.saving.sb3.to_sb3:_cosine.<locals>.<lambda>": Cosine,
    "ppo_plus.saving.sb3.to_sb3:_sampled.<locals>.<lambda>": lambda values: Sampled(th.tensor(values, dtype=th.double)),
}
#: How names began before, and how they do now: Gymnasium's spaces have the names and fields of the old gym's.
_RENAMED = {
    "gym.spaces.": "gymnasium.spaces.",
    "numpy._core.": "numpy.core.",
    "cloudpickle.cloudpickle_fast:": "cloudpickle.cloudpickle:",
}
#: What is made from calls, by the name of the function.
_CALLS: dict[str, Callable[[_Maker, PickledCall], Any]] = {
    "collections:OrderedDict": _Maker.ordered_dict,
    "collections:deque": _Maker.deque,
    "numpy:dtype": _Maker.dtype,
    "cloudpickle.cloudpickle:_make_function": _Maker.closure,
    "rl_zoo3.utils:SimpleLinearSchedule": lambda maker, call: Linear(float(maker.make(call.state)["initial_value"])),
    "torch:device": lambda maker, call: th.device(*maker.make(call.args)),
    "numpy.core.multiarray:_reconstruct": _Maker.reconstructed,
    "numpy.core.multiarray:scalar": _Maker.scalar,
    "numpy.core.numeric:_frombuffer": lambda maker, call: maker.array(*maker.make(call.args)),
}
