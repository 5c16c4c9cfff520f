"""Environments for ``soak.py`` that fail by chance, each in its own way; the chance is drawn from their generator."""

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import register

#: What each environment may do wrong, and how likely that is in a step.
FAULTS: dict[str, dict[str, float]] = {
    "SoakWhole-v0": {},
    "SoakFails-v0": dict.fromkeys(("raise", "NaN", "shape"), 5e-4),
    "SoakDies-v0": {"raise": 1e-4, "NaN": 1e-4, "death": 3e-4, "hang": 1e-4},
}


class Soaked(gym.Env[np.ndarray, np.int64]):
    """Walk to the origin on a line that blows.

    :param faults: what may go wrong, and its probability in each step
    """

    #: With the same generator and actions, an episode is always the same.
    replayable = True

    def __init__(self, faults: dict[str, float]):
        self.faults = faults
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.wind = self.np_random.normal(size=2)
        self.t = 0
        return self._observed(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.wind = 0.9 * self.wind + 0.1 * self.np_random.normal()
        self.place += 0.2 * (action - 1) + 0.1 * self.wind
        obs, chance = self._observed(), self.np_random.random()
        for fault, probability in self.faults.items():
            if 0 <= chance < probability:
                obs = self._fail(fault, obs)
            chance -= probability
        return obs, -abs(float(self.place)), abs(self.place) > 5, self.t >= 100, {}

    def _observed(self) -> np.ndarray:
        return np.array([self.place, self.wind, self.t / 100], np.float32)

    def _fail(self, fault: str, obs: np.ndarray) -> np.ndarray:
        if fault == "raise":
            raise RuntimeError("the wind has torn the line")
        if fault == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(1e6)
        return obs[:2] if fault == "shape" else obs * np.nan


for env_id, faults in FAULTS.items():
    register(env_id, "soak_envs:Soaked", kwargs={"faults": faults})
