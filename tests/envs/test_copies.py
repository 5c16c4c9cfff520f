"""Copies of a model have environments in the same wrappers."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, VECTOR, RandomEnv
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.envs.layers import layers

IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu", "seed": 0, "compile": False}


def dummy(space=VECTOR):
    return DummyVecEnv([lambda: Monitor(RandomEnv(ACTIONS["discrete"], space, max_steps=5))])


KINDS = {
    "images": lambda: dummy(IMAGE),
    "tuples": lambda: RandomEnv(ACTIONS["discrete"], spaces.Tuple([VECTOR, spaces.Discrete(2)])),
    "stacked": lambda: VecFrameStack(dummy(), 2),
    "monitored": lambda: VecMonitor(dummy()),
    "checked": lambda: VecCheckNan(dummy()),
    "normalized": lambda: VecNormalize(dummy()),
    "stacked normalized": lambda: VecFrameStack(VecNormalize(VecMonitor(dummy())), 2),
    "sync": lambda: gym.vector.SyncVectorEnv([lambda: RandomEnv(ACTIONS["discrete"], VECTOR)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_learns_in_an_environment_of_its_own(kind):
    policy = {"images": "CnnPolicy", "tuples": "MultiInputPolicy"}.get(kind, "MlpPolicy")
    model = PPO_Plus(policy, KINDS[kind](), **SMALL).learn(8)
    other = copy.deepcopy(model)
    assert [*map(type, layers(other.env))] == [*map(type, layers(model.env))]
    assert {*map(id, layers(other.env))}.isdisjoint(map(id, layers(model.env)))
    assert (other.get_vec_normalize_env() is None) == ("normalized" not in kind)
    before = model.env.get_attr("n_steps") if kind != "sync" else None
    other.learn(16)
    assert other.num_timesteps == 16 and (before is None or model.env.get_attr("n_steps") == before)
    # A shallow copy has the same environment.
    assert copy.copy(model).env is model.env


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("cls", [SupervisedVecEnv, SubprocVecEnv])
def test_copies_leave_out_other_processes_but_keep_statistics(cls, copied):
    env = make_vec_env("CartPole-v1", 1, vec_env_cls=cls, vec_env_kwargs={"start_method": "fork"})
    model = PPO_Plus("MlpPolicy", VecNormalize(env), **SMALL).learn(8)
    other = copied(model)
    assert other.env is None and model.env.venv is env
    assert other.get_vec_normalize_env().obs_rms.count == model.env.obs_rms.count
    np.testing.assert_equal(other.get_vec_normalize_env().returns, model.env.returns)
    env.close()


def test_so_do_those_of_gymnasiums_processes():
    model = PPO_Plus("MlpPolicy", gym.make_vec("CartPole-v1", 1, vectorization_mode="async"), **SMALL)
    assert copy.deepcopy(model).env is None
    model.env.close()
