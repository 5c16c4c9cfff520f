"""Environments in other units: ``benchmarks/badly_scaled.py``."""

import gymnasium as gym
import numpy as np
from badly_scaled import InOtherUnits


def test_rewards_and_observations_are_in_other_units():
    own, other = gym.make("Pendulum-v1"), InOtherUnits(gym.make("Pendulum-v1"), reward=100.0, factor=10.0, shift=100.0)
    (a, _), (b, _) = own.reset(seed=0), other.reset(seed=0)
    np.testing.assert_allclose(b, 10 * a + 100, rtol=1e-6)
    assert (
        other.observation_space.contains(b) and own.observation_space.low.max() < 0 < other.observation_space.low.min()
    )
    step, converted = own.step(np.ones(1, np.float32)), other.step(np.ones(1, np.float32))
    np.testing.assert_allclose(converted[0], 10 * step[0] + 100, rtol=1e-6)
    assert converted[1] == 100 * step[1] and converted[2:] == step[2:]
