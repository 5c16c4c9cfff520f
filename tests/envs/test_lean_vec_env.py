"""`LeanVecEnv` returns what `DummyVecEnv` returns, and later steps change nothing of it."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, OBSERVATIONS, RandomEnv
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage

from ppo_plus import PPO_Plus, Resumable, make_vec
from ppo_plus.envs.lean_vec_env import LeanVecEnv

PAIR = spaces.Tuple([spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4)])


class Reusing(RandomEnv):
    """Returns the same arrays and dicts in each step."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.obs = obs
        self.info = {"options": options, "nested": {"t": [0]}, "array": np.zeros(2), "count": 0, "text": "a"}
        return self.obs, self.info

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        if isinstance(self.obs, np.ndarray):
            self.obs[...] = obs
        else:
            self.obs = obs
        self.info["nested"]["t"][0] += 1
        self.info["array"] += 1
        self.info["count"] += 1
        return self.obs, reward, terminated, truncated, self.info


def made(cls, action_space, observation_space):
    env = cls([lambda: Reusing(action_space, observation_space, max_steps=4) for _ in range(3)])
    env.seed(5)
    env.set_options([{"level": i} for i in range(3)])
    return env


@pytest.mark.parametrize("observations", [*OBSERVATIONS.values(), PAIR], ids=[*OBSERVATIONS, "tuple"])
@pytest.mark.parametrize("actions", ["box", "discrete_start", "mixed"])
def test_everything_is_what_a_dummy_vec_env_returns(observations, actions):
    lean, dummy = (made(cls, ACTIONS[actions], observations) for cls in (LeanVecEnv, DummyVecEnv))
    found, before = [(lean.reset(), lean.reset_infos)], []
    expected = [(dummy.reset(), dummy.reset_infos)]
    for _ in range(12):
        before.append(copy.deepcopy(found[-1]))
        action = [lean.action_space.sample() for _ in range(3)]
        action = action if actions == "mixed" else np.array(action)
        found.append(lean.step(action))
        expected.append(dummy.step(action))
        for one, other in zip(found[-1], expected[-1], strict=True):
            np.testing.assert_equal(one, other)
            assert type(one) is type(other)
        np.testing.assert_equal(lean.reset_infos, dummy.reset_infos)
        for name in ("buf_dones", "buf_rews", "buf_infos", "buf_obs"):
            np.testing.assert_equal(getattr(lean, name), getattr(dummy, name))
    # The infos of a reset are the environment's, also in SB3.
    np.testing.assert_equal(found[1:-1], before[1:])
    np.testing.assert_equal(found[0][0], before[0][0])


def test_no_two_steps_share_memory():
    env = made(LeanVecEnv, ACTIONS["discrete"], OBSERVATIONS["box"])
    first, second = [env.reset()], [env.reset()]
    first, second = ([*env.step(np.zeros(3, int))] for _ in range(2))
    for one, other in zip(first[:3], second[:3], strict=True):
        assert not np.shares_memory(one, other)
    for one, other in zip(first[3], second[3], strict=True):
        assert one is not other and one["nested"]["t"] is not other["nested"]["t"]
        assert not np.shares_memory(one["array"], other["array"])


def test_ppo_plus_and_make_vec_take_it():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16)
    assert type(model.env) is type(make_vec("CartPole-v1")) is LeanVecEnv
    assert isinstance(model.env, DummyVecEnv)
    pictures = PPO_Plus("CnnPolicy", RandomEnv(ACTIONS["discrete"], spaces.Box(0, 255, (36, 36, 3), np.uint8)))
    assert isinstance(pictures.env, VecTransposeImage) and type(pictures.env.venv) is LeanVecEnv


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_training_ends_with_the_same_weights(env_id):
    def trained(cls):
        env = make_vec_env(env_id, 2, seed=3, wrapper_class=Resumable, vec_env_cls=cls)
        model = PPO_Plus("MlpPolicy", VecNormalize(env), n_steps=64, batch_size=32, n_epochs=2, seed=1, compile=False)
        return model.learn(256).policy.state_dict()

    lean, dummy = trained(LeanVecEnv), trained(DummyVecEnv)
    assert all((lean[name] == dummy[name]).all() for name in dummy)


def test_the_environments_are_those_that_were_made():
    single = gym.make("CartPole-v1")
    env = LeanVecEnv([lambda: single])
    env.set_attr("level", 3)
    assert env.envs == [single] and env.get_attr("level") == [3] and single.level == 3
