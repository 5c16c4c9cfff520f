"""Small tasks that need memory over a known number of steps, after papers."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class RepeatPrevious(gym.Env[np.ndarray, Any]):
    """Say which of four suits was seen ``k`` steps ago, after the task of that name in POPGym (Morad et al. 2023,
    arXiv:2303.01859).

    Each step shows the suit of a card, drawn with replacement; an episode has :data:`N_CARDS` of them. From the first
    card on that has a card ``k`` steps before it, a right answer is worth 1 and a wrong one -1, divided by the number
    of these answers: the return is at most 1, and -0.5 on average if one guesses.

    :param k: how many steps ago, at least 1
    """

    N_SUITS, N_CARDS = 4, 104

    observation_space = spaces.Box(0.0, 1.0, (N_SUITS,), np.float32)
    action_space = spaces.Discrete(N_SUITS)

    def __init__(self, k: int = 16):
        self.k = k

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.suits, self.t = self.np_random.integers(self.N_SUITS, size=self.N_CARDS), 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        if self.t >= self.k:
            is_right = action == self.suits[self.t - self.k]
            reward = (1.0 if is_right else -1.0) / (self.N_CARDS - self.k)
        self.t += 1
        done = self.t == self.N_CARDS
        return self._observe() if not done else np.zeros(self.N_SUITS, np.float32), reward, done, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(self.N_SUITS, dtype=np.float32)[self.suits[self.t]]


class TMaze(gym.Env[np.ndarray, Any]):
    """Walk along a corridor and turn to the side that a sign at its entrance has shown, the T-maze of Bakker (2001,
    "Reinforcement Learning with Long Short-Term Memory").

    Observations are Bakker's: 011 or 110 at the entrance, 101 in the corridor, 010 at the junction. The right turn is
    worth 4 and the wrong one -0.1, and either ends the episode. Each step in the corridor that does not go ahead costs
    0.1; Bakker's stands still for it, here a step back costs the same, so that agents find the way early. The return is
    at most 4, and at most 1.95 on average without memory.

    :param length: cells from the entrance to the junction, at least 1
    """

    ENTRANCE, CORRIDOR, JUNCTION = ((0, 1, 1), (1, 1, 0)), (1, 0, 1), (0, 1, 0)
    #: Actions; the first two turn at the junction.
    NORTH, SOUTH, AHEAD, BACK = range(4)

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, length: int = 50):
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.side, self.position, self.t = int(self.np_random.integers(2)), 0, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        at_junction = self.position == self.length
        turns = at_junction and action in (self.NORTH, self.SOUTH)
        reward = 4.0 if turns and action == self.side else 0.0 if action == self.AHEAD and not at_junction else -0.1
        if action in (self.AHEAD, self.BACK):
            self.position = min(max(self.position + (1 if action == self.AHEAD else -1), 0), self.length)
        self.t += 1
        return self._observe(), reward, turns, self.t == 3 * self.length, {}

    def _observe(self) -> np.ndarray:
        seen = self.CORRIDOR
        if self.position in (0, self.length):
            seen = self.JUNCTION if self.position else self.ENTRANCE[self.side]
        return np.array(seen, np.float32)
