"""Values in pickles, read without running them.

A pickle is a program: it names functions and calls them. This reader runs none. It follows the few instructions that
make plain values, notes which function would have been called with what, and makes what it knows by name: arrays,
spaces, schedules, running moments. Anything else raises an error that names it.
"""

import pickletools
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th

from ppo_plus.saving.format.encode import MAX_DEPTH
from ppo_plus.saving.format.names import Damaged, Refused, find, find_class_of_objects, public_name, reading_a_value
from ppo_plus.saving.format.objects import ARRAY_KINDS, SPACES, make_object, space_state


class Name:
    """What a pickle refers to by name; nothing is looked up."""

    def __init__(self, module: Any, qualname: Any):
        if type(module) is not str or type(qualname) is not str:
            raise Damaged("a name in it is not text")
        self.text = f"{module}:{qualname}"


class Call:
    """A call that a pickle asks for, and what it does with the result; nothing is called.

    :param function: what is called, mostly a :class:`Name`
    :param args: with these
    """

    def __init__(self, function: Any, args: Any):
        self.function, self.args = function, args
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []

    @property
    def name(self) -> str:
        return self.function.text if isinstance(self.function, Name) else "what it has made"


def parse(data: bytes) -> Any:
    """What a pickle would make: plain values, :class:`Name` and :class:`Call`.

    :param data: the pickle
    :raises Refused: it has instructions that plain values and objects do not need
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except Refused:
        raise
    except Exception as error:
        raise Damaged(f"it is not a pickle ({type(error).__name__}: {str(error)[:100]})") from error
    raise Damaged("it is not a pickle (it does not end)")


_MARK = object()
#: Instructions whose argument is the value.
_CONSTANTS = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES "
    "BINBYTES8 BYTEARRAY8".split()
)
_SINGLE = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
    "EMPTY_TUPLE": tuple,
}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = ("PROTO", "FRAME")


class _Machine:
    """The stack that a pickle works on."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(argument)
        elif name in _SINGLE:
            self.stack.append(_SINGLE[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _SHORT_TUPLES:
            n = _SHORT_TUPLES[name]
            self.stack[-n:] = [tuple(self.stack[-n:])]
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in _NOTHING:
            raise Refused(f"it has the instruction {name}, which is not read")

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def put(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def name(self, argument: str) -> None:
        self.stack.append(Name(*argument.split(" ", 1)))

    def stack_name(self, _: Any) -> None:
        self.stack[-2:] = [Name(*self.stack[-2:])]

    def call(self, _: Any) -> None:
        self.stack[-2:] = [Call(*self.stack[-2:])]

    def build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Call) or self.stack[-1].state is not None:
            raise Refused("it changes what it has not made")
        self.stack[-1].state = state

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, set):
            target.update(items)
        else:
            (target.items if isinstance(target, Call) else target).extend(items)

    def set_pairs(self, flat: list[Any]) -> None:
        target, pairs = self.stack[-1], list(zip(flat[::2], flat[1::2], strict=True))
        if isinstance(target, Call):
            target.pairs.extend(pairs)
        else:
            target.update(pairs)


_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "LONG_BINGET": lambda machine, number: machine.stack.append(machine.memo[number]),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stack_name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.build,
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "FROZENSET": lambda machine, _: machine.stack.append(frozenset(machine.since_mark())),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_pairs([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_pairs(machine.since_mark()),
    "POP": lambda machine, _: machine.stack.pop(),
}


def value_of(parsed: Any, n_bytes: int) -> Any:
    """The value that :func:`parse` found, if all that it asks for is known.

    :param parsed: from there
    :param n_bytes: how long the pickle was: arrays are not much larger
    :raises Refused: it asks for something else
    """
    with reading_a_value():
        return _Maker(n_bytes).make(parsed)


class _Maker:
    """Makes one value; what a pickle uses several times is made once."""

    def __init__(self, n_bytes: int) -> None:
        self._bytes_left = 2 * n_bytes
        #: What was made, by the identity of its plan; the plan is kept so that no other takes its identity.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._open: list[int] = []

    def make(self, plan: Any) -> Any:
        if plan is None or isinstance(plan, (bool, int, float, str, bytes, bytearray)):
            return plan
        if id(plan) in self._open or len(self._open) > MAX_DEPTH:
            raise Refused("it contains itself, or is nested too deep")
        if id(plan) not in self._made:
            self._open.append(id(plan))
            self._made[id(plan)] = self._make(plan), plan
            self._open.pop()
        return self._made[id(plan)][0]

    def _make(self, plan: Any) -> Any:
        if isinstance(plan, dict):
            return {self.make(key): self.make(each) for key, each in plan.items()}
        if isinstance(plan, Name):
            return find(public_name(plan.text))
        if isinstance(plan, Call):
            return self._call(plan)
        return type(plan)(map(self.make, plan))

    def _call(self, call: Call) -> Any:
        name = public_name(call.name)
        if name in SPACES:
            cls = SPACES[name]
            if type(call.state) is not dict:
                raise Refused(f"the state of {call.name} is not a dict")
            state = space_state(cls, call.state)
            return make_object(cls, {key: self.make(each) for key, each in state.items()})
        if name in _CALLS:
            return _CALLS[name](self, call)
        try:
            cls = find_class_of_objects(name)
        except Refused:
            raise Refused(f"it would call {call.name}") from None
        args = self.make(call.args)
        if issubclass(cls, tuple):
            return make_object(cls, dict(zip(cls._fields, args, strict=True)))  # type: ignore[attr-defined]
        if args:
            raise Refused(f"it would call {name} with arguments")
        return make_object(cls, self.make(call.state or {}))

    def array(self, call: Call) -> np.ndarray:
        _, shape, dtype, in_columns, data = self.make(call.state)
        return self._array(data, dtype, shape, "F" if in_columns else "C")

    def _array(self, data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        if not isinstance(data, (bytes, bytearray)) or not isinstance(dtype, np.dtype):
            raise Refused("it has an array that is not made of numbers")
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise Refused("its arrays are larger than itself")
        return np.frombuffer(bytes(data), dtype).reshape(shape, order=order).copy(order="K")

    def array_of_buffer(self, call: Call) -> np.ndarray:
        return self._array(*self.make(call.args))

    def scalar(self, call: Call) -> Any:
        dtype, data = self.make(call.args)
        return self._array(data, dtype, (1,), "C")[0]

    def dtype(self, call: Call) -> np.dtype:
        name, state = self.make(call.args)[0], self.make(call.state or (3, "|"))
        if type(name) is not str or not re.fullmatch(rf"[{ARRAY_KINDS}]\d{{1,6}}", name):
            raise Refused(f"it has an array of {name!r}")
        dtype = np.dtype(name)
        return dtype.newbyteorder(state[1]) if state[1] in "<>" else dtype

    def deque(self, call: Call) -> deque[Any]:
        return deque([*map(self.make, (call.args or ((),))[0]), *map(self.make, call.items)], *call.args[1:])

    def ordered_dict(self, call: Call) -> OrderedDict[Any, Any]:
        return OrderedDict((self.make(key), self.make(each)) for key, each in call.pairs)


#: What is made from calls, by the name of the function; NumPy's modules have had two names.
_CALLS: dict[str, Callable[[_Maker, Call], Any]] = {
    "collections:OrderedDict": _Maker.ordered_dict,
    "collections:deque": _Maker.deque,
    "numpy:dtype": _Maker.dtype,
    "torch:device": lambda maker, call: th.device(*maker.make(call.args)),
    **{f"numpy.{core}.multiarray:_reconstruct": _Maker.array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray:scalar": _Maker.scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric:_frombuffer": _Maker.array_of_buffer for core in ("core", "_core")},
}
