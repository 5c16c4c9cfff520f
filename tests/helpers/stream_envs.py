"""An environment with further rewards in its infos, and streams of them."""

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from ppo_plus import Cost, RandomNetworkDistillation, Resumable, Stream

LIMIT = 7


class Counting(gym.Env):
    """Its first number counts the steps of an episode, which ends at random or at a time limit."""

    replayable = True
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        info = {"cost": int(self.np_random.random() < 0.5), "reward_terms": {"energy": -(float(action[0]) ** 2)}}
        terminated = bool(self.np_random.random() < 0.1)
        return self._seen(), float(action[0]) + 0.1 * self.t, terminated, self.t == LIMIT, info

    def _seen(self):
        return np.array([self.t, self.np_random.normal()], np.float32)


def counting(n=3):
    return DummyVecEnv([lambda: Resumable(Monitor(Counting()))] * n)


def progress(observations, actions, next_observations):
    """1 in every step."""
    return next_observations[:, 0] - observations[:, 0]


COST = Cost("cost", limit=2.0)
ENERGY = Stream(("reward_terms", "energy"), weight=0.3, gamma=0.9, gae_lambda=0.8, episodic=False)
PROGRESS = Stream(progress, weight="lin_0.5", gamma=1.0)
CURIOSITY = RandomNetworkDistillation()
STREAMS = [COST, ENERGY, PROGRESS, CURIOSITY]
