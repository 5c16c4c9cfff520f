"""The multiplier of a cost: its formula, and the limit that it keeps."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from training import At, logged

from ppo_plus import Cost, PPO_Plus
from ppo_plus.policy.cost import Multiplier


def test_the_multiplier_follows_the_formula():
    part = Multiplier(Cost("cost", limit=10.0, k_p=0.5, k_i=0.1, k_d=0.2))
    seen = []
    for mean in (30.0, 40.0, 14.0, 15.0, 8.0, 0.0):
        part.end_rollout(mean)
        seen.append(-part.weight(1.0))
    # Violations 2, 3, 0.4, 0.5, -0.2, -1; integrals 0.1, 0.2, 0.24, 0.29, 0.27, 0.17, since those above 1 count as 1;
    # increases 2, 1, 0, 0.1, 0, 0.
    sums = [1 + 0.1 + 0.4, 1.5 + 0.2 + 0.2, 0.2 + 0.24, 0.25 + 0.29 + 0.02, -0.1 + 0.27, 0.0]
    assert seen == pytest.approx(sums)
    assert part.terms[1].item() == pytest.approx(0.17)
    # The integral does not fall below 0, from where it would take long to rise.
    for mean in [5.0] * 9 + [15.0]:
        part.end_rollout(mean)
    assert -part.weight(1.0) == pytest.approx(0.25 + 0.05 + 0.2)


def test_a_limit_below_one_is_in_units_of_the_cost():
    part = Multiplier(Cost("cost", limit=0.0, k_p=1.0, k_i=0.0))
    part.end_rollout(0.3)
    assert -part.weight(1.0) == pytest.approx(0.3)


class Tempting(gym.Env):
    """A constant observation; the reward is the action, and actions above 0.5 cost 1."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), float(action[0]), False, self.t == 50, {"cost": float(action[0] > 0.5)}


@pytest.mark.exhaustive
def test_with_its_defaults_a_limit_is_reached_and_kept():
    """The reward rises from 0 as far as five of fifty steps may cost something."""
    means = []

    def note(model):
        means.append(logged(model)["rollout/ep_cost_mean"])

    env = make_vec_env(Tempting, 8, seed=0)
    model = PPO_Plus("MlpPolicy", env, n_steps=256, streams=[Cost("cost", limit=5.0)], seed=0, device="cpu")
    model.learn(60_000, At(note, hooks=["rollout_end"]))
    assert means[0] > 12
    assert 2.5 < np.mean(means[-5:]) < 6.5
    rewards = [episode["r"] for episode in model.ep_info_buffer]
    assert np.mean(rewards) > 0
