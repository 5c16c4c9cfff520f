"""No stale constant: whatever custom code reads is seen, however it is stored, or it is said that it cannot be."""

import functools
import math
import random
import time
import types
import weakref
from collections import defaultdict
from datetime import datetime
from os import getenv
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch as th
from torch import nn

from ppo_plus import ColoredNoise, PPOLoss
from ppo_plus.compiling.constants import NotComparable, Reads, constants_of, first_difference

SCALE = 1.0
TABLE = {"weights": [1.0, 2.0]}
SETTINGS = types.ModuleType("custom_settings")
SETTINGS.scale = 1.0
SETTINGS.unused = 1.0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class Config:
    def __init__(self):
        self.scale, self.inner = 1.0, {"list": [1, (2, {3})], Slotted(): 1}


CONFIG = Config()


class Base:
    default = 1.0


class Algorithm(Base):
    """Stands for the algorithm: only what some custom function names is compared."""

    def __init__(self):
        self.scale, self.config, self.slotted, self.n_steps = 1.0, Config(), Slotted(), 0
        self.tensor, self.array, self.nan = th.zeros(3), np.zeros(3), float("nan")

    @property
    def doubled(self):
        return 2 * self.hidden

    hidden = 1.0

    def reads_attribute(self):
        return self.scale

    def reads_nested(self):
        return self.config.scale

    def reads_slot(self):
        return self.slotted.scale

    def reads_tensor(self):
        return self.tensor

    def reads_array(self):
        return self.array

    def reads_class(self):
        return self.default

    def reads_property(self):
        return self.doubled

    def reads_global(self):
        return SCALE

    def reads_table(self):
        return TABLE["weights"][0]

    def reads_module(self):
        return SETTINGS.scale

    def reads_object(self):
        return CONFIG.inner

    def reads_through_function(self):
        return helper()

    def reads_in_inner_function(self):
        return [self.scale for _ in range(2)], (lambda: self.scale)()

    def reads_nan(self):
        return self.nan

    def reads_when_made(self):
        return Made().scale

    def reads_of_a_function(self):
        return weighted.weight


class Made:
    def __init__(self):
        self.scale = SCALE


def helper():
    return SCALE


def weighted():
    return weighted.weight


weighted.weight = 1.0


def imports_a_clock():
    import time as clock

    return clock.time()


def imports_its_own():
    from parametrization import sample

    return sample


MINE = {
    "attribute": ("reads_attribute", lambda model: setattr(model, "scale", 2.0)),
    "dtype": ("reads_attribute", lambda model: setattr(model, "scale", 1)),
    "nested": ("reads_nested", lambda model: setattr(model.config, "scale", 2.0)),
    "deep": ("reads_nested", lambda model: model.config.inner["list"][1][1].add(4)),
    "order": ("reads_nested", lambda model: model.config.inner.update(list=model.config.inner.pop("list"))),
    "behind a key": ("reads_nested", lambda model: setattr([*model.config.inner][1], "scale", 2.0)),
    "another object": ("reads_nested", lambda model: setattr(model, "config", None)),
    "slot": ("reads_slot", lambda model: setattr(model.slotted, "scale", 2.0)),
    "tensor": ("reads_tensor", lambda model: model.tensor[1:].fill_(1.0)),
    "another tensor": ("reads_tensor", lambda model: setattr(model, "tensor", th.zeros(3, dtype=th.float64))),
    "array": ("reads_array", lambda model: model.array[1:].fill(1.0)),
    "inner function": ("reads_in_inner_function", lambda model: setattr(model, "scale", 2.0)),
    "hides the class": ("reads_class", lambda model: setattr(model, "default", 2.0)),
}


def of(**objects):
    return constants_of(Reads(objects=objects))


def seen(model, name):
    return constants_of(Reads(objects={"function": getattr(model, name)}, changing=[model]))


@pytest.mark.parametrize("case", MINE)
def test_what_is_read_from_self_is_compared(case):
    name, alter = MINE[case]
    model = Algorithm()
    before = seen(model, name)
    assert seen(model, name) == before
    model.n_steps += 1  # not read
    assert seen(model, name) == before
    alter(model)
    assert seen(model, name) != before


def test_a_global_a_function_and_a_class_attribute_are_compared(monkeypatch):
    model = Algorithm()
    this = Algorithm.reads_global.__globals__
    for name, key, value in (
        ("reads_global", "SCALE", 2.0),
        ("reads_through_function", "SCALE", 3.0),
        ("reads_through_function", "helper", lambda: 3.0),
        ("reads_object", "CONFIG", Slotted()),
        ("reads_when_made", "SCALE", 4.0),
    ):
        before = seen(model, name)
        monkeypatch.setitem(this, key, value)
        assert seen(model, name) != before, name
    for name, target, key, value in (
        ("reads_class", Base, "default", 2.0),
        ("reads_property", Algorithm, "hidden", 2.0),
        ("reads_module", SETTINGS, "scale", 2.0),
        ("reads_of_a_function", weighted, "weight", 2.0),
        ("reads_table", TABLE, "weights", [1.0, 3.0]),
    ):
        before = seen(model, name)
        monkeypatch.setitem(target, key, value) if isinstance(target, dict) else monkeypatch.setattr(target, key, value)
        assert seen(model, name) != before, name
    before = seen(model, "reads_module")
    monkeypatch.setattr(SETTINGS, "unused", 2.0)
    assert seen(model, "reads_module") == before


def closure(cell):
    return lambda: cell[0]


def test_closures_defaults_and_partials_are_compared():
    cell = [1.0]
    for function in (closure(cell), lambda x=cell: x, lambda *, x=cell: x, functools.partial(lambda x: x, cell)):
        before = of(function=function)
        assert of(function=function) == before
        cell[0] += 1.0
        assert of(function=function) != before


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout, self.temperature = nn.Linear(2, 2), nn.Dropout(0.5), 1.0
        self.scale = th.ones(2)

    def forward(self, x):
        return self.scale * self.dropout(self.linear(x)) / self.temperature


NETWORKS = {
    "attribute": lambda layer: setattr(layer, "temperature", 2.0),
    "tensor": lambda layer: setattr(layer, "scale", 2 * th.ones(2)),
    "setting of a layer": lambda layer: setattr(layer.dropout, "p", 0.1),
    "mode": lambda layer: layer.eval(),
    "order of layers": lambda layer: layer._modules.update(linear=layer._modules.pop("linear")),
    "another layer": lambda layer: setattr(layer, "linear", nn.Identity()),
    "forward of an object": lambda layer: setattr(layer.linear, "forward", lambda x: x),
    "forward hook": lambda layer: layer.register_forward_hook(lambda *_: None),
    "frozen": lambda layer: layer.linear.bias.requires_grad_(False),
}


def of_network(layer):
    given = [*layer.parameters()]
    frozen = [weight.requires_grad for weight in given]
    return constants_of(Reads(given, {"policy": layer, "frozen": frozen}))


@pytest.mark.parametrize("case", NETWORKS)
def test_what_a_network_reads_is_compared(case):
    layer = Layer()
    before = of_network(layer)
    with th.no_grad():
        layer.linear.weight.add_(1.0)  # given in each call
    assert of_network(layer) == before
    NETWORKS[case](layer)
    assert of_network(layer) != before


def test_which_given_tensor_stands_where_is_compared():
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    given = [*layers.parameters()]
    before = constants_of(Reads(given, {"layers": layers}))
    first, second = layers
    layers[0], layers[1] = second, first
    assert constants_of(Reads(given, {"layers": layers})) != before
    # Handed in the other order, each finds what it found.
    assert constants_of(Reads([*layers.parameters()], {"layers": layers})) == before


def test_networks_beside_the_policy_are_compared_by_value():
    """Such as the teacher in a loss, or an average of earlier weights."""
    policy, teacher = nn.Linear(2, 2), nn.BatchNorm1d(2).requires_grad_(False)
    given = [*policy.parameters()]
    for tensor in (*teacher.parameters(), teacher.running_mean):
        before = constants_of(Reads(given, {"policy": policy, "teacher": teacher}))
        assert constants_of(Reads(given, {"policy": policy, "teacher": teacher})) == before
        tensor.add_(1.0)
        assert constants_of(Reads(given, {"policy": policy, "teacher": teacher})) != before
    with pytest.raises(NotComparable, match="too many to compare"):
        of(teacher=nn.Linear(1_001, 1_000))


@pytest.mark.parametrize("case", ["full", "pre", "weight"])
def test_hooks_on_gradients_are_not_compiled(case):
    layer = Layer()
    if case == "full":
        layer.linear.register_full_backward_hook(lambda *_: None)
    elif case == "pre":
        layer.linear.register_full_backward_pre_hook(lambda *_: None)
    else:
        layer.linear.weight.register_hook(lambda grad: 0 * grad)
    with pytest.raises(NotComparable, match="hook"):
        of_network(layer)


def test_values_are_compared_by_value():
    assert of(loss=PPOLoss()) == of(loss=PPOLoss())
    assert of(loss=PPOLoss()) != of(loss=PPOLoss(value_clip="plain"))
    assert of(noise=ColoredNoise(0.5)) != of(noise=ColoredNoise(0.6))
    object_ = Config()
    assert of(ref=weakref.ref(object_)) == of(ref=weakref.ref(object_))


class Number(float):
    """A number of a custom class."""


class Table(dict):
    """A table with attributes."""

    def __init__(self, scale):
        self.scale = scale


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Number(1.0), Number(2.0)),
        (Table(1.0), Table(2.0)),
        (defaultdict(lambda: 1.0), defaultdict(lambda: 2.0)),
        (0.0, -0.0),
    ],
    ids=["subclass of float", "attributes of a dict", "default of a dict", "sign of zero"],
)
def test_values_that_seem_equal_are_distinguished(one, other):
    assert of(value=one) == of(value=one)
    assert of(value=one) != of(value=other)


GENERATOR = np.random.default_rng(0)
UNKNOWN = [
    lambda: random.random(),
    lambda: np.random.rand(),
    lambda: GENERATOR.random(),
    lambda: time.time(),
    lambda self: getattr(self, f"sc{'ale'}"),
    lambda self: vars(self),
    lambda self: self.policy.optimizer.param_groups[0]["lr"],
    lambda: perf_counter(),
    lambda: datetime.now(),
    lambda: getenv("SCALE"),
    lambda: float(open("scale").read()),
    lambda: float(Path("scale").read_text()),
    imports_a_clock,
    imports_its_own,
]


@pytest.mark.parametrize("function", UNKNOWN)
def test_incomparable_code_raises_an_error(function):
    with pytest.raises(NotComparable):
        of(function=function)


def test_how_an_existing_object_was_made_is_not_compared():
    class Made:
        def __init__(self, name):
            self.number = getattr(math, name)

    assert of(made=Made("pi"), by=Made) == of(made=Made("pi"), by=Made) != of(made=Made("e"), by=Made)
    with pytest.raises(NotComparable, match="getattr"):
        of(function=lambda: Made("pi"))


def test_large_and_opaque_objects_raise_an_error():
    for value in (th.zeros(1_000_001), iter([1]), np.array([object()])):
        with pytest.raises(NotComparable, match="thing"):
            of(thing=value)


def test_the_difference_is_named():
    model = Algorithm()
    before = seen(model, "reads_nested")
    model.config.scale = 2.0
    assert "self.config" in first_difference(before, seen(model, "reads_nested"))
