"""Functional environments of JAX, against themselves."""

import gymnasium as gym
import pytest
import torch as th
from gymnasium import spaces

from ppo_plus import JaxEnv, PPO_Plus

SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


def learned(env, n=8, **kwargs):
    model = PPO_Plus("MlpPolicy", env, **SMALL | kwargs)
    return model.learn(n * model.n_envs)


def test_gymnax():
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=20)
    made = JaxEnv(env, 4, params)
    first = made.reset(3)
    assert th.equal(first, made.reset(3)) and not th.equal(first, made.reset(4))
    truncated = terminated = 0
    for _ in range(60):
        step = made.step(th.randint(2, (4,)))
        ended = step.terminated | step.truncated
        assert not (step.terminated & step.truncated).any()
        assert th.equal(step.obs[~ended], step.final_obs[~ended])
        assert (step.obs[ended] != step.final_obs[ended]).any(dim=1).all()
        truncated, terminated = truncated + step.truncated.sum(), terminated + step.terminated.sum()
    assert truncated and terminated
    model = learned(JaxEnv(env, 4, params), n=64, n_steps=64)
    assert model.action_space == spaces.Discrete(2) and len(model.ep_info_buffer)
    assert max(each["l"] for each in model.ep_info_buffer) <= 20


def test_brax():
    envs = pytest.importorskip("brax.envs")
    bare = envs.get_environment("fast")
    made = JaxEnv(bare, 4, episode_length=5)
    made.reset(0)
    for i in range(10):
        step = made.step(th.zeros(4, made.action_space.shape[0]))
        assert (step.truncated == ((i + 1) % 5 == 0)).all() and not step.terminated.any()
    learned(JaxEnv(bare, 4, episode_length=5))
    with pytest.raises(ValueError, match="JaxEnv"):
        PPO_Plus("MlpPolicy", bare)
    with pytest.raises(ValueError, match="bare environment"):
        JaxEnv(envs.create("fast"), 4)


def test_what_is_no_functional_environment_is_refused():
    with pytest.raises(ValueError, match="functional environment"):
        JaxEnv(gym.make("CartPole-v1"), 4)
