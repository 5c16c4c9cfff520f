"""Environments that studies are tuned on: one whose answer is found soon, and one that hangs once."""

import ctypes
import math
import os
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np


class Hanging(gym.Env):
    """Its first step on a machine hangs, in C code that keeps all threads of Python from running.

    :param marker: file with the id of the process that hangs; once it exists, nothing hangs
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (1,))
    action_space = gym.spaces.Box(-2.0, 2.0, (1,))

    def __init__(self, marker):
        self.marker = Path(marker)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        if not self.marker.exists():
            new = self.marker.with_suffix(".new")
            new.write_text(str(os.getpid()))
            new.rename(self.marker)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            while True:
                ctypes.PyDLL(None).sleep(1000)
        return np.ones(1, np.float32), -float((action[0] - 1) ** 2), False, False, {}


gym.register("Hanging-v0", Hanging, max_episode_steps=8)


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


class FailingAt150(gym.Wrapper):
    """Fails at its 150th step, and so does each that takes its place."""

    n = 0

    def step(self, action):
        self.n += 1
        if self.n == 150:
            raise ValueError("boom")
        return self.env.step(action)


class NotFinite(gym.Wrapper):
    """Observations that are not finite."""

    def step(self, action):
        obs, *rest = self.env.step(action)
        return obs * math.nan, *rest
