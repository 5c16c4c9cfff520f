"""Pickles of SB3 are read without running them, and anything that would have to be run raises an error."""

import base64
import io
import json
import os
import pickle
import random
import struct
import warnings
import zipfile
from collections import OrderedDict, deque

import cloudpickle
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, vec
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.saving.format.names import Damaged, Refused
from ppo_plus.saving.format.values import describe
from ppo_plus.saving.sb3.pickles import parse, value_of
from ppo_plus.saving.sb3.zip import read_sb3_zip
from ppo_plus.saving.statistics import read_statistics, write_statistics


def read(data):
    return value_of(parse(data), len(data))


def text_of(value):
    description, arrays = describe(value)
    return json.dumps(description), {name: each.tolist() for name, each in arrays.items()}


VALUES = {
    "plain": {"a": [1, -5, 2**80, 0.5, None, True], "b": (b"x" * 300, "ü" * 300), 3: ((1, 2), {4}, frozenset([5]), ())},
    "arrays": [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.ones((), bool),
        np.zeros((0, 3), ">i2"),
    ],
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


def test_a_generator_in_a_space_is_not_even_looked_at():
    space = spaces.Box(-1, 1, (2,))
    space.seed(3)
    assert read(cloudpickle.dumps(space)) == space


class Evil:
    """Makes a file when it is read."""

    def __init__(self, path, function=os.system):
        self.path, self.function = path, function

    def __reduce__(self):
        return self.function, (f"touch {self.path}" if self.function is os.system else str(self.path),)


FUNCTIONS = [os.system, eval, exec, os.mkdir, open, np.load, th.load, th.hub.load, pickle.loads]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("where", [lambda evil: evil, lambda evil: {"a": [evil]}, lambda evil: {evil: 1}])
def test_nothing_is_called(function, where, tmp_path):
    data = pickle.dumps(where(Evil(tmp_path / "ran", function)))
    with pytest.raises(Refused, match="it would call"):
        read(data)
    assert list(tmp_path.iterdir()) == []


BAD = {
    "persistent": b"\x80\x04\x8c\x01aQ.",
    "instance": b"(cos\nsystem\nX\x02\x00\x00\x00lso.",
    "old instance": b"(X\x02\x00\x00\x00lsios\nsystem\n.",
    "extension": b"\x80\x02\x82\x01.",
    "state of a class": b"\x80\x02cstable_baselines3.common.utils\nFloatSchedule\n}X\x01\x00\x00\x00aK\x01sb.",
    "state of plain values": b"\x80\x02}}b.",
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
    "no memo": b"\x80\x02h\x05.",
    "a mark": b"\x80\x02(.",
    "an array of objects": pickle.dumps(np.array([1, "a"], dtype=object)),
    "an array of structures": pickle.dumps(np.zeros(2, [("a", "f4")])),
    "a network": pickle.dumps(th.nn.Linear(1, 1)),
    "a tensor": pickle.dumps(th.ones(2)),
    "an environment": pickle.dumps(vec(ACTIONS["box"])),
    "a huge number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b".",
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


@pytest.mark.parametrize("seed", range(5))
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


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sb3_zip(tmp_path_factory):
    path = tmp_path_factory.mktemp("sb3") / "model.zip"
    PPO("MlpPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(32).save(path)
    return path


def with_member(source, target, name, change):
    """A zip with one member changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for each in old.namelist():
            new.writestr(each, change(old.read(each)) if each == name else old.read(each))
        if name not in old.namelist():
            new.writestr(name, change(b""))
    return target


def poisoned(attribute, evil):
    def change(text):
        data = json.loads(text)
        data[attribute] = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(evil)).decode()}
        return json.dumps(data)

    return change


LOADS = [PPO_Plus.load, PPO_Plus.from_sb3]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("attribute", ["learning_rate", "policy_class", "observation_space", "policy_kwargs"])
def test_a_poisoned_model_runs_nothing_and_is_named(sb3_zip, tmp_path, load, attribute):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned(attribute, Evil(tmp_path / "ran")))
    with pytest.raises(ValueError, match=rf"evil\.zip .*{attribute} \(it would call posix:system\).*trust_pickle=True"):
        load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("attribute", ["lr_schedule", "_last_obs", "mine"])
def test_poison_that_is_not_needed_is_left(sb3_zip, tmp_path, attribute, recwarn):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned(attribute, Evil(tmp_path / "ran")))
    assert PPO_Plus.load(path, device="cpu").num_timesteps == 32
    assert not (tmp_path / "ran").exists()
    assert bool([each for each in recwarn if "is read without mine" in str(each.message)]) == (attribute == "mine")


def test_passed_arguments_are_not_read(sb3_zip, tmp_path):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned("learning_rate", Evil(tmp_path / "ran")))
    for how in ({"learning_rate": 0.5}, {"custom_objects": {"learning_rate": 0.5}}):
        assert PPO_Plus.load(path, device="cpu", **how).lr_schedule(1.0) == 0.5
    assert not (tmp_path / "ran").exists()


def saved_by_torch(value, **kwargs):
    file = io.BytesIO()
    th.save(value, file, **kwargs)
    return file.getvalue()


WEIGHTS = {
    "a pickle": lambda path: pickle.dumps(Evil(path)),
    "torch's with a pickle": lambda path: saved_by_torch({"a": Evil(path)}),
    "torch's old form": lambda path: saved_by_torch({"a": th.ones(1)}, _use_new_zipfile_serialization=False),
    "a huge view": lambda path: saved_by_torch({"a": th.ones(1).expand(10**12)}),
    "nothing": lambda path: b"",
}


@pytest.mark.parametrize("load", [*LOADS, lambda path: PPO("MlpPolicy", "CartPole-v1") and read_sb3_zip(path)])
@pytest.mark.parametrize("name", ["policy.pth", "policy.optimizer.pth"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_poisoned_weights_run_nothing(sb3_zip, tmp_path, load, name, kind):
    path = with_member(sb3_zip, tmp_path / "evil.zip", name, lambda _: WEIGHTS[kind](tmp_path / "ran"))
    with pytest.raises(Refused, match="evil.zip"):
        load(path)
    assert not (tmp_path / "ran").exists()


def test_parameters_are_set_from_files_without_running_them(sb3_zip, tmp_path):
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, device="cpu")
    model.set_parameters(sb3_zip)
    path = with_member(sb3_zip, tmp_path / "evil.zip", "policy.pth", lambda _: pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(Refused):
        model.set_parameters(path)
    assert not (tmp_path / "ran").exists()


def test_a_bomb_raises_an_error(sb3_zip, tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(sb3_zip) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for each in old.namelist():
            new.writestr(each, old.read(each) + (bytes(2**27) if each == "data" else b""))
    with pytest.raises(Damaged, match="times larger than itself"):
        PPO_Plus.load(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_sb3_model_is_the_same_or_an_error(sb3_zip, seed):
    data, rng = sb3_zip.read_bytes(), random.Random(seed)
    whole = PPO_Plus.load(sb3_zip, device="cpu")
    for _ in range(40):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            loaded = PPO_Plus.load(io.BytesIO(damaged), device="cpu")
        except (Refused, TypeError):  # it is no PPO's
            continue
        assert loaded.settings.n_steps == whole.n_steps
        assert th.equal(loaded.policy.action_net.weight, whole.policy.action_net.weight)


# --- statistics -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["box", "dict"])
def normalize(request):
    keys = ["vector"] if request.param == "dict" else None
    env = VecNormalize(vec(ACTIONS["box"], OBSERVATIONS[request.param]), norm_obs_keys=keys, gamma=0.9, clip_obs=5.0)
    env.reset()
    for _ in range(10):
        env.step([env.action_space.sample() for _ in range(2)])
    return env


def moments(found):
    each = found["obs_rms"]
    parts = [*(each.values() if isinstance(each, dict) else [each]), found["ret_rms"]]
    return [(part.mean.tolist(), part.var.tolist(), part.count) for part in parts]


def test_statistics_come_back_and_pickled_ones_are_read(normalize, tmp_path):
    expected = moments(vars(normalize))
    normalize.save(str(tmp_path / "old.pkl"))
    write_statistics(normalize, tmp_path / "new.zip")
    for found in (
        read_statistics(tmp_path / "old.pkl"),
        read_statistics(tmp_path / "new.zip"),
        read_statistics(tmp_path / "old.pkl", trust_pickle=True),
    ):
        assert moments(found) == expected
        assert (found["gamma"], found["clip_obs"], found["norm_obs"]) == (0.9, 5.0, True)
        assert found["observation_space"] == normalize.observation_space


def test_poisoned_statistics_run_nothing(normalize, tmp_path):
    normalize.obs_rms = Evil(tmp_path / "ran")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(normalize))
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    for name in ("a.pkl", "b.pkl"):
        with pytest.raises(Refused, match=name):
            read_statistics(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_model_is_not_statistics(tmp_path):
    PPO_Plus("MlpPolicy", vec(ACTIONS["box"]), n_steps=16, batch_size=16, device="cpu").save(tmp_path / "model")
    with pytest.raises(Refused, match="is a ppo_plus model, not a ppo_plus statistics"):
        read_statistics(tmp_path / "model.zip")
