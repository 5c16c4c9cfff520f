"""Pickles of SB3 are read without running them, and anything that would have to be run raises an error."""

import json
import multiprocessing
import os
import pickle
import random
import struct
import sys
import warnings
from collections import OrderedDict, deque
from contextlib import suppress

import cloudpickle
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, vec
from gymnasium import spaces
from parametrization import sample
from poison import Evil
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from ppo_plus import linear
from ppo_plus.saving.format.names import Refused
from ppo_plus.saving.format.values import describe
from ppo_plus.saving.sb3.pickles import parse, value_of


def read(data):
    return value_of(parse(data), len(data))


def text_of(value):
    description, arrays = describe(value)
    return json.dumps(description), {name: each.tolist() for name, each in arrays.items()}


ROWS = np.arange(6.0).reshape(2, 3)
VALUES = {
    "plain": {"a": [1, -5, 2**80, 0.5, None, True], "b": (b"x" * 300, "ü" * 300), 3: ((1, 2), ())},
    "arrays": [ROWS, ROWS.T, np.ones((), bool), np.zeros((0, 3), np.int16)],
    "scalars": [np.float64(0.5), np.int8(-3), np.bool_(True)],
    "containers": [deque([{"r": 1.5}], maxlen=3), deque([1]), OrderedDict(b=1, a=2)],
    "schedules": [FloatSchedule(0.1), FloatSchedule(LinearSchedule(1.0, 0.0, 0.5))],
    "classes": [ActorCriticPolicy, th.nn.ReLU, th.optim.Adam],
    "spaces": [*ACTIONS.values(), *OBSERVATIONS.values()],
    "device": th.device("cpu"),
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("kind", VALUES)
def test_what_sb3_pickles_is_read(kind, dumps, protocol):
    if protocol == 2 and kind in ("plain", "arrays", "scalars", "spaces"):
        # Bytes are then text that a function turns into bytes.
        with pytest.raises(Refused, match="_codecs:encode"):
            read(dumps(VALUES[kind], protocol=protocol))
        return
    assert text_of(read(dumps(VALUES[kind], protocol=protocol))) == text_of(VALUES[kind])


class SimpleLinearSchedule:
    def __init__(self, initial_value):
        self.initial_value = initial_value


def test_a_schedule_of_rl_zoo3_is_read():
    data = pickle.dumps(SimpleLinearSchedule(1e-3), protocol=2)
    assert read(data.replace(__name__.encode(), b"rl_zoo3.utils")) == linear(1e-3)


def test_a_generator_in_a_space_is_not_even_looked_at():
    space = spaces.Box(-1, 1, (2,))
    space.seed(3)
    assert read(cloudpickle.dumps(space)) == space


FUNCTIONS = [os.system, eval, exec, os.mkdir, open, np.load, th.load, th.hub.load, pickle.loads]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("where", [lambda evil: evil, lambda evil: {"a": [evil]}, lambda evil: {evil: 1}])
def test_nothing_is_called(function, where, tmp_path):
    data = pickle.dumps(where(Evil(tmp_path / "ran", function)))
    with pytest.raises(Refused, match="it would call|a key that is a PickledCall"):
        read(data)
    assert list(tmp_path.iterdir()) == []


BAD = {
    "persistent": b"\x80\x04\x8c\x01aQ.",
    "instance": b"(cos\nsystem\nX\x02\x00\x00\x00lso.",
    "extension": b"\x80\x02\x82\x01.",
    "state of a class": b"\x80\x02cstable_baselines3.common.utils\nFloatSchedule\n}X\x01\x00\x00\x00aK\x01sb.",
    "state of plain values": b"\x80\x02}}X\x01\x00\x00\x00aK\x01sb.",
    "slots of a class": b"\x80\x02cstable_baselines3.common.utils\nFloatSchedule\nN}X\x01\x00\x00\x00aK\x01s\x86b.",
    "state twice": pickle.dumps(FloatSchedule(0.1))[:-1] + b"}b.",
    "items of a class": b"\x80\x02ctorch.nn.modules.linear\nLinear\nK\x01a.",
    "a loop": b"\x80\x02]q\x00h\x00a.",
    "deep": b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".",
    "no end": b"\x80\x02]",
    "nothing": b"",
    "a huge memo": b"\x80\x02]r" + struct.pack("<I", 2**31) + b".",
    "a call of a number": b"\x80\x02K\x01K\x01\x85R.",
    "a name that is built": b"\x80\x02ctorch.nn.modules.linear\nLinear\n}b.",
    "an empty stack": b"\x80\x02.",
    "no mark": b"\x80\x02e.",
    "an array of objects": pickle.dumps(np.array([1, "a"], dtype=object)),
    "an array of structures": pickle.dumps(np.zeros(2, [("a", "f4")])),
    "a network": pickle.dumps(th.nn.Linear(1, 1)),
    "an environment": pickle.dumps(vec(ACTIONS["box"])),
    "a huge number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("kind", BAD)
def test_other_pickles_raise_an_error(kind):
    with pytest.raises(Refused):
        read(BAD[kind])


def test_arrays_are_not_larger_than_the_pickle():
    """The same bytes as a thousand arrays, each a copy."""
    head = b"\x80\x04\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93\x94B" + struct.pack("<I", 10**6) + bytes(10**6)
    dtype = b"\x94\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02u1\x85R\x94"
    array = b"h\x00(h\x01h\x02J" + struct.pack("<i", 10**6) + b"\x85\x8c\x01CtR"
    with pytest.raises(Refused, match="larger than itself"):
        read(head + dtype + b"](" + array * 1000 + b"e.")
    # Shared plans are followed once: two to the power of fifty ends of a few lists.
    data = b"\x80\x04]\x94" + b"".join(b"]\x94(h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(50)) + b"."
    value = read(data)
    assert len(value) == 2 and value[0] is value[1]


def test_the_order_of_a_shape_counts():
    with pytest.raises(Refused):
        read(pickle.dumps(np.ones(3)).replace(b"K\x03\x85", b"K\x04\x85"))


@pytest.mark.parametrize("seed", sample(range(5), 3))
def test_a_mutated_pickle_is_a_value_or_an_error(seed, monkeypatch):
    rng, originals = random.Random(seed), [cloudpickle.dumps(each) for each in VALUES.values()]
    monkeypatch.setattr(os, "system", None)
    n_refused = 0
    for _ in range(300):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 2, 5))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Gymnasium warns of strange bounds
                read(bytes(data))
        except Refused:
            n_refused += 1
    assert n_refused > 50


def chain(n):
    """A tuple that contains the one before twice, ``n`` times: to hash it takes 2^n steps."""
    halves = b"".join(b"0h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(n))
    return b")\x94" + halves


#: Each number without the pickle's head and end: to make the dict itself takes seconds.
ALIKE = b"".join(pickle.dumps(i * sys.hash_info.modulus, 2)[2:-1] + b"N" for i in range(20_000))

SLOW = {
    "a key that takes forever": b"\x80\x04}" + chain(40) + b"Ns.",
    "keys of a dict": b"\x80\x04}(" + chain(40) + b"Nu.",
    "a key of an OrderedDict": b"\x80\x04ccollections\nOrderedDict\n)\x94R(" + chain(40) + b"Nu.",
    "integers that hash alike": b"\x80\x04}(" + ALIKE + b"u.",
    "marks": b"\x80\x04" + b"(" * 160_000 + b"t" * 160_000 + b".",
    "marks that are dropped": b"\x80\x04" + b"(0" * 80_000 + b".",
    "lists in lists": b"\x80\x04" + b"]" * 160_000 + b"a" * 159_999 + b".",
}


def read_all(pickles):
    for data in pickles:
        with suppress(Refused):
            read(data)


@pytest.mark.slow
def test_reading_takes_no_longer_than_the_file_is_large():
    """In a process that is ended, since a hash in C cannot be interrupted; a fork, which need not import."""
    process = multiprocessing.get_context("fork").Process(target=read_all, args=(SLOW.values(),), daemon=True)
    process.start()
    process.join(100)
    process.kill()
    process.join()
    assert process.exitcode == 0
