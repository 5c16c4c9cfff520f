"""Values are described and restored bit for bit, and a description from a stranger runs nothing."""

import functools
import json
import sys
import typing
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from ppo_plus import AdaptivePenalty, Carry, ColoredNoise, KLState, MlpLstmPolicy, cosine, linear
from ppo_plus.formulas.schedules import make_schedule
from ppo_plus.saving.format import names
from ppo_plus.saving.format.names import Damaged, Refused, register
from ppo_plus.saving.format.values import MAX_DEPTH, Undescribable, describe, restore


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(names, "_registered", {})


def again(value):
    """A value after a way through text."""
    description, arrays = describe(value)
    return restore(json.loads(json.dumps(description, allow_nan=False)), arrays)


def facts_of(value):
    return (value.dtype, value.shape, value.tobytes()) if hasattr(value, "tobytes") else value


def same(one, other):
    """Whether two values are the same in every bit, type and order."""
    if isinstance(one, (np.ndarray, np.generic, np.dtype)):
        # A platform has two types of integers with 64 bits.
        return facts_of(one) == facts_of(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple, deque)):
        limits = [getattr(each, "maxlen", None) for each in (one, other)]
        return limits[0] == limits[1] and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, float):
        return np.float64(one).tobytes() == np.float64(other).tobytes() or one != one
    if isinstance(one, th.Tensor):
        as_bytes = [each.detach().reshape(-1, 1).view(th.uint8).tolist() for each in (one, other)]
        return (one.dtype, one.shape) == (other.dtype, other.shape) and as_bytes[0] == as_bytes[1]
    return bool(one == other)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=5)),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(st.sampled_from(["!tuple", "!name", "!", "!int", "a"]), inner, max_size=3),
        st.dictionaries(st.integers() | st.text() | st.tuples(st.integers(), st.text()), inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict),
        st.sets(st.integers() | st.text()),
        st.frozensets(st.tuples(st.integers())),
    ),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(PLAIN)
def test_plain_values_come_back(value):
    assert same(again(value), value)


NUMBERS = [*map(np.dtype, "?bBhHiIlLqQefd")]


@settings(deadline=None)
@given(st.data())
def test_arrays_and_scalars_come_back(data):
    dtype, shape = data.draw(st.sampled_from(NUMBERS)), data.draw(st.lists(st.integers(0, 3), max_size=3))
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "b":
        array = np.ones(shape, dtype)
    else:
        array = np.frombuffer(data.draw(st.binary(min_size=n_bytes, max_size=n_bytes)), dtype).reshape(shape)
    found = again({"a": array, "b": [array.T, array.dtype]})
    assert same(found["a"], array) and same(found["b"], [array.T, array.dtype]) and found["a"].flags.writeable
    if dtype.kind in "biuf" and array.size and array.flat[0] == array.flat[0]:
        assert same(again(array.flat[0]), array.flat[0])


TENSORS = [
    *map(th.tensor, (1, True, -0.0, float("nan"))),
    *(th.ones(2, 3).to(dtype) for dtype in (th.bfloat16, th.float16, th.float64, th.int8, th.uint64)),
    *(th.zeros(0, 2), th.arange(6).reshape(2, 3).T, th.arange(3)[1:]),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda each: f"{each.dtype} {tuple(each.shape)}")
def test_tensors_come_back(tensor):
    assert same(again(tensor), tensor)


def test_what_is_described_does_not_change_with_the_value():
    array, tensor = np.ones(3), th.ones(3)
    description, arrays = describe([array, tensor])
    array[:], tensor[:] = 0, 0
    assert [each.sum() for each in restore(description, arrays)] == [3, 3]


SPACES = {
    **ACTIONS,
    **OBSERVATIONS,
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "small": spaces.Discrete(3, start=-1, dtype=np.int8) if sys.version_info >= (3, 11) else spaces.Discrete(3),
    "nested": spaces.Dict([("b", spaces.Dict(c=spaces.Discrete(2))), ("a", spaces.Tuple([spaces.Discrete(4)]))]),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_come_back(name):
    found = again(SPACES[name])
    assert found == SPACES[name] and repr(found) == repr(SPACES[name])


def everything_of(value):
    return type(value), {name: everything_of(each) for name, each in getattr(value, "__dict__", {}).items()} or value


OBJECTS = [
    linear(0.1, 0.01),
    cosine(3e-4),
    make_schedule("learning_rate", "lin_3e-4"),
    ColoredNoise(0.5, 16),
    AdaptivePenalty(band=1.4),
    FloatSchedule(LinearSchedule(1.0, 0.0, 0.5)),
    FloatSchedule(ConstantSchedule(0.2)),
    KLState(*map(th.tensor, (True, 1.0, 0.5))),
    Carry({"actor": (th.tensor(1.0),)}, {}),
    th.float16,
    th.device("cuda:1"),
    np.dtype("float32"),
]


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_objects_come_back(value):
    assert everything_of(again(value)) == everything_of(value)


def test_classes_come_back_by_name():
    kinds = [MlpLstmPolicy, ActorCriticPolicy, th.nn.ReLU, th.optim.RMSprop, spaces.Box]
    assert again(kinds) == kinds
    found = again(functools.partial(th.nn.LeakyReLU, 0.3, inplace=False))
    assert (found.func, found.args, found.keywords) == (th.nn.LeakyReLU, (0.3,), {"inplace": False})


def test_networks_come_back():
    network = th.nn.Sequential(th.nn.Linear(3, 4), th.nn.BatchNorm1d(4), th.nn.Dropout(0.3).eval(), th.nn.GELU("tanh"))
    network(th.ones(2, 3))
    network[0].bias.requires_grad_(False)
    found = again(network)
    assert repr(found) == repr(network) and not found[2].training and not found[0].bias.requires_grad
    assert type(found[0].bias) is type(found[0].weight) is th.nn.Parameter and found[0].weight.requires_grad
    assert same(list(found.state_dict().items()), list(network.state_dict().items()))
    found, network = found.eval(), network.eval()
    assert found(th.ones(1, 3)).equal(network(th.ones(1, 3)))


def linear_with(**changes):
    description, arrays = describe(th.nn.Linear(2, 1))
    description["!torch.nn:Linear"].update(changes)
    return description, arrays


# --- what is the user's -----------------------------------------------------------------------------------------------


class Pair(typing.NamedTuple):
    a: int
    b: list


@dataclass(frozen=True)
class Decay:
    rate: float

    def __post_init__(self):
        if self.rate < 0:
            raise ValueError("rate")
        object.__setattr__(self, "twice", 2 * self.rate)

    @functools.cached_property
    def half(self):
        return self.rate / 2

    def __call__(self, progress):
        return self.rate * progress


decay = Decay(2.0)
assert decay.half == 1.0


class Counts:
    def __init__(self):
        raise AssertionError("made anew")

    def __call__(self, progress):
        return self.n


def my_schedule(progress):
    return progress


counts = object.__new__(Counts)
counts.n = 3


@pytest.mark.parametrize(
    ("value", "named"),
    [(Counts, Counts), (my_schedule, my_schedule), (Pair(1, [2]), Pair), (decay, Decay)],
    ids=["class", "function", "named tuple", "dataclass"],
)
def test_unregistered_names_raise_an_error_with_the_remedy(value, named):
    description = describe([value])
    with pytest.raises(Refused, match=rf"{named.__name__}.*ppo_plus.register\({named.__name__}\)"):
        restore(*description)
    assert register(named) is named
    assert restore(*description) == [value] and type(restore(*description)[0]) is type(value)


def test_registered_objects_are_made_without_their_init():
    register(Counts)
    assert again(counts).n == 3


def test_dataclasses_check_what_a_file_says():
    register(Decay)
    with pytest.raises(Damaged, match="rate"):
        restore({f"!{__name__}:Decay": {"rate": -1.0}}, {})
    with pytest.raises(Refused, match="'__call__', which is not a plain attribute of Decay"):
        restore({f"!{__name__}:Decay": {"rate": 1.0, "__call__": 1}}, {})


# --- what cannot be described ----------------------------------------------------------------------------------------

hooked = th.nn.Linear(1, 1)
hooked.register_forward_hook(print)
looped: list = [1]
looped.append({"again": looped})
deep: list = []
for _ in range(MAX_DEPTH):
    deep = [deep]


def closure():
    return lambda progress: progress


class Pickled:
    def __getstate__(self):
        return {}


class Text(str):
    pass


UNDESCRIBABLE = {
    "lambda": (lambda progress: 1.0, "is a lambda.*ppo_plus.register"),
    "closure": (closure(), "is a lambda"),
    "loop": (looped, "contains itself"),
    "deep": (deep, "nested"),
    "objects": (np.array([object()]), "not of a plain type"),
    "bytes in another order": (np.zeros(2, ">f4"), "not of a plain type"),
    "complex numbers": (np.ones(1, complex), "not of a plain type"),
    "matrix": (np.ma.array([1.0]), "cannot be described"),
    "complex number": (1j, "cannot be described"),
    "sparse": (th.eye(2).to_sparse(), "not a plain tensor"),
    "network": (th.nn.LSTM(1, 1), "cannot be described"),
    "hooks": (hooked, "cannot be described"),
    "optimizer": (th.optim.SGD([th.ones(1)]), "cannot be described"),
    "file": (sys.stderr, "cannot be described"),
    "text": (Text("a"), "cannot be described"),
    "pickled": (Pickled(), "cannot be described"),
    "gradients": (th.zeros(1, requires_grad=True), "requires gradients"),
    "a layer twice": (th.nn.Sequential(*[th.nn.Linear(1, 1)] * 2), "in another place, too.*pass a function"),
}


@pytest.mark.parametrize("kind", UNDESCRIBABLE)
def test_what_has_no_description_is_named_with_its_place(kind):
    value, message = UNDESCRIBABLE[kind]
    with pytest.raises(Undescribable, match=message) as raised:
        describe({"a": [0, {"f": value}]}, "policy_kwargs", set())
    assert str(raised.value).startswith("policy_kwargs['a'][1]['f']")


# --- what a stranger may write ----------------------------------------------------------------------------------------


def array_of(n, dtype=th.uint8):
    return {"a": th.zeros(n, dtype=dtype)}


BAD = {
    "two tags": ({"!tuple": [], "!int": "1"}, {}),
    "unknown": ({"!pickle": "x"}, {}),
    "no list": ({"!tuple": "abc"}, {}),
    "a word": ({"!float": "huge"}, {}),
    "bytes": ({"!bytes": "%%%"}, {}),
    "unhashable": ({"!set": [[1]]}, {}),
    "maxlen": ({"!deque": {"maxlen": -1, "items": []}}, {}),
    "no array": ({"!array": "b"}, array_of(3)),
    "an array twice": ([{"!array": "a"}, {"!array": "a"}], array_of(3)),
    "an array of objects": ({"!array": ["a", "|O8"]}, array_of(8)),
    "bfloat16 as an array": ({"!array": "a"}, array_of(8, th.bfloat16)),
    "a tensor of objects": ({"!tensor": ["a", "object"]}, array_of(8)),
    "objects": ({"!dtype": "O"}, {}),
    "a huge scalar": ({"!scalar": ["<U999999", "a"]}, {}),
    "a parameter of text": ({"!parameter": ["abc", True]}, {}),
    "device": ({"!device": "moon"}, {}),
    "fields": ({"!ppo_plus:Linear": {"start": 1.0, "finish": 2.0}}, {}),
    "missing fields": ({"!ppo_plus:Carry": {"a": 1}}, {}),
    "range": ({"!ppo_plus:ColoredNoise": {"beta": -1, "horizon": 3}}, {}),
    "no space": ({"!gymnasium.spaces:Tuple": {"spaces": [1]}}, {}),
    "bounds": ({"!gymnasium.spaces:Box": {"low": 1.0, "high": 0.0, "dtype": "<f8"}}, {}),
    "class of a generator": ({"!Generator": {"bit_generator": "eval", "state": {}}}, {}),
    "hooks": linear_with(_forward_hooks={"!OrderedDict": [[1, 2]]}),
    "weights": linear_with(_parameters={"weight": 3}),
    "parts": linear_with(_modules={"0": {"!name": "torch.nn:Linear"}}),
    "a recurrent network": ({"!torch.nn:LSTM": {}}, {}),
    "no network": ({"!torch.nn:Linear": {}}, {}),
    "no text": ({1: 2, "!x": 3}, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_description_is_damaged(kind):
    with pytest.raises(Damaged):
        restore(*BAD[kind])


def test_a_deep_description_raises_an_error():
    description: list = []
    for _ in range(5000):
        description = [description]
    with pytest.raises(Damaged):
        restore(description, {})
