"""An environment whose answer is soon found, but not by the one update of the default."""

import gymnasium as gym
import numpy as np


class Aiming(gym.Env):
    """Each step costs the squared distance of the action to 1, which policies start at a distance of 1 from."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), -float((action[0] - 1) ** 2), False, False, {}


gym.register("Aiming-v0", Aiming, max_episode_steps=8)
