"""Copies of a model have copies of its environments, unless these are in wrappers of SB3 or in other processes."""

import copy
import pickle

import gymnasium as gym
import pytest
from envs import ACTIONS, VECTOR, RandomEnv, vec
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.envs.layers import layers

SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu", "seed": 0, "compile": False}


@pytest.mark.parametrize("kind", ["dummy", "sync"])
def test_a_copy_learns_in_an_environment_of_its_own(kind):
    env = vec(ACTIONS["discrete"]) if kind == "dummy" else gym.vector.SyncVectorEnv([lambda: RandomEnv(ACTIONS["box"])])
    model = PPO_Plus("MlpPolicy", env, **SMALL).learn(8)
    other = copy.deepcopy(model)
    assert [*map(type, layers(other.env))] == [*map(type, layers(model.env))]
    assert {*map(id, layers(other.env))}.isdisjoint(map(id, layers(model.env)))
    assert other.learn(16).num_timesteps == 16
    # A shallow copy has the same environment.
    assert copy.copy(model).env is model.env


PROCESSES = {"vec_env_kwargs": {"start_method": "fork"}}
LEFT_OUT = {
    "normalized": lambda: VecNormalize(vec(ACTIONS["discrete"], VECTOR)),
    "supervised": lambda: make_vec_env("CartPole-v1", 1, vec_env_cls=SupervisedVecEnv, **PROCESSES),
    "subproc": lambda: make_vec_env("CartPole-v1", 1, vec_env_cls=SubprocVecEnv, **PROCESSES),
    "async": lambda: gym.make_vec("CartPole-v1", 1, vectorization_mode="async"),
}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_copies_leave_out_wrappers_and_other_processes(kind, copied):
    model = PPO_Plus("MlpPolicy", LEFT_OUT[kind](), **SMALL).learn(8)
    other = copied(model)
    assert other.env is None and other.get_vec_normalize_env() is None and model.env is not None
    with pytest.raises(ValueError, match="no environment to learn from: call set_env"):
        other.learn(16)
    other.set_env(model.env)
    assert other.learn(16).num_timesteps == 16
    model.env.close()
