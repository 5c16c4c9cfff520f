"""Zips of SB3 are read without running the pickles in them, and a damaged one raises an error."""

import base64
import io
import json
import pickle
import random
import zipfile

import pytest
import torch as th
from envs import ACTIONS, vec
from poison import Evil
from stable_baselines3 import PPO

from ppo_plus import PPO_Plus
from ppo_plus.saving.format.names import Damaged, Refused
from ppo_plus.saving.sb3.zip import read_sb3_zip


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
@pytest.mark.parametrize("attribute", ["policy_class", "observation_space", "policy_kwargs"])
def test_a_poisoned_model_runs_nothing_and_is_named(sb3_zip, tmp_path, load, attribute):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned(attribute, Evil(tmp_path / "ran")))
    with pytest.raises(ValueError, match=rf"evil\.zip .*{attribute} \(it would call posix:system\).*trust_pickle=True"):
        load(path)
    assert not (tmp_path / "ran").exists()


def test_only_learn_asks_for_a_poisoned_schedule(sb3_zip, tmp_path):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned("learning_rate", Evil(tmp_path / "ran")))
    model = PPO_Plus.from_sb3(path, env=vec(ACTIONS["box"]), device="cpu")
    with pytest.raises(ValueError, match="learning_rate: the file.*it would call posix:system"):
        model.learn(32)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("attribute", ["lr_schedule", "_last_obs", "mine"])
def test_poison_that_is_not_needed_is_left(sb3_zip, tmp_path, attribute):
    path = with_member(sb3_zip, tmp_path / "evil.zip", "data", poisoned(attribute, Evil(tmp_path / "ran")))
    assert PPO_Plus.load(path, device="cpu").num_timesteps == 32
    assert not (tmp_path / "ran").exists()


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
