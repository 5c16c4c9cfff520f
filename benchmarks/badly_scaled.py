"""An environment in other units, for which the recommended settings should need no other values."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class InOtherUnits(gym.Wrapper[Any, Any, Any, Any]):
    """Rewards times ``reward``, and observations times ``factor`` plus ``shift``.

    :param env: its observations are a ``Box``
    :param reward: above 0
    :param factor: above 0
    :param shift: in the new unit
    """

    def __init__(self, env: gym.Env[Any, Any], reward: float = 1.0, factor: float = 1.0, shift: float = 0.0):
        super().__init__(env)
        self.reward, self.factor, self.shift = reward, factor, shift
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(self._convert(space.low), self._convert(space.high))

    def _convert(self, observation: np.ndarray) -> np.ndarray:
        return (observation * self.factor + self.shift).astype(np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._convert(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._convert(observation), self.reward * float(reward), terminated, truncated, info
