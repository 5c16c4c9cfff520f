"""The generators of environments and spaces resume."""

import gymnasium as gym
import numpy as np
from resumable_envs import actions_of, bits, carried, gone, vectorized

from ppo_plus import Resumable
from ppo_plus.envs.resumable.state import get_state, set_state


def test_without_any_seed():
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.reset()
    gone(env, actions_of(env, 50))
    other = vectorized(lambda: gym.make("CartPole-v1"))
    assert set_state(other, carried(get_state(env))) is None
    actions = actions_of(env, 100, seed=1)
    assert gone(other, actions)[0] == gone(env, actions)[0]


def test_a_generator_of_another_kind_resumes():
    env, other = (Resumable(gym.make("CartPole-v1")) for _ in range(2))
    env.np_random = np.random.Generator(np.random.MT19937(3))
    env.reset()
    assert other.set_episode_state(carried(env.get_episode_state())) is None
    assert bits(other.reset()[0]) == bits(env.reset()[0])
    assert other.np_random_seed == env.np_random_seed == -1


def test_an_unknown_generator_is_not_called():
    env = vectorized(lambda: gym.make("CartPole-v1"), n=1)
    env.reset()
    state = get_state(env)
    state["envs"][0]["generator"]["state"]["bit_generator"] = "seed"
    assert "bit_generator='seed' must be one of MT19937, PCG64" in set_state(env, state)


def test_a_generator_does_not_read_beyond_its_state():
    env = vectorized(lambda: gym.make("CartPole-v1"), n=1)
    env.envs[0].np_random = np.random.Generator(np.random.MT19937(3))
    env.reset()
    state = get_state(env)
    state["envs"][0]["generator"]["state"]["state"]["pos"] = 10**6
    assert "not a valid state of a random generator" in set_state(env, state)


def test_the_generator_stays_the_same_object():
    env, other = (vectorized(lambda: gym.make("CartPole-v1"), n=1) for _ in range(2))
    env.reset()
    held = other.envs[0].np_random
    assert set_state(other, carried(get_state(env))) is None
    assert other.envs[0].np_random is held
    assert held.random() == env.envs[0].np_random.random()
