"""Games of PettingZoo, written out: agents that come and go at random, and Connect Four."""

import numpy as np
from gymnasium import spaces


class Crowd:
    """A parallel game whose agents end at random, terminated or truncated or both, and come back at random.

    ``log[agent]`` has a list for each time that the agent was there, of (observation, action, reward), and after the
    last step of it the final observation and whether it was terminated.
    """

    metadata = {"name": "crowd"}
    replayable = True

    def __init__(self, end=0.2, back=0.3, limit=9, names=("red_0", "red_1", "blue_0"), first=1.0, masks=False):
        self.possible_agents = [*names]
        self.agents = []
        self.end, self.back, self.limit, self.first, self.masks = end, back, limit, first, masks
        self.log = {agent: [] for agent in names}
        self.state_space = spaces.Box(-np.inf, np.inf, (2,))

    unwrapped = property(lambda self: self)

    def __str__(self):
        return "crowd"

    def observation_space(self, agent):
        seen = spaces.Box(-np.inf, np.inf, (3,))
        return spaces.Dict({"observation": seen, "action_mask": spaces.MultiBinary(4)}) if self.masks else seen

    def action_space(self, agent):
        return spaces.Discrete(4)

    def state(self):
        return np.full(2, self.n_steps, dtype=np.float32)

    def reset(self, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        self.n_steps = 0
        self.agents = [agent for agent in self.possible_agents if self.random.random() < self.first]
        self.agents = self.agents or self.possible_agents[:1]
        self.seen = {agent: self.observe() for agent in self.agents}
        for agent in self.agents:
            self.log[agent].append([])
        return self.seen, {agent: {} for agent in self.agents}

    def observe(self):
        vector = self.random.normal(size=3).astype(np.float32)
        if not self.masks:
            return vector
        mask = (self.random.random(4) < 0.5).astype(np.int8)
        mask[self.random.integers(4)] = 1
        return {"observation": vector, "action_mask": mask}

    def step(self, actions):
        assert actions.keys() == {*self.agents}, "every agent that is there acts, and no other"
        before, self.n_steps = [*self.agents], self.n_steps + 1
        rewards = {agent: float(self.random.normal() + actions[agent]) for agent in before}
        terminated, truncated = ({agent: bool(self.random.random() < self.end) for agent in before} for _ in range(2))
        if self.n_steps == self.limit:
            truncated = dict.fromkeys(before, True)
        after = {agent: self.observe() for agent in before}
        for agent in before:
            over = terminated[agent] or truncated[agent]
            self.log[agent][-1].append((self.seen[agent], actions[agent], rewards[agent]))
            if over:
                self.log[agent][-1].append((after[agent], terminated[agent]))
        self.agents = [agent for agent in before if not (terminated[agent] or truncated[agent])]
        if self.agents:
            born = [a for a in self.possible_agents if a not in before and self.random.random() < self.back]
            for agent in born:
                after[agent] = self.observe()
                self.log[agent].append([])
            self.agents += born
        self.seen = after
        return after, rewards, terminated, truncated, {agent: {"step": self.n_steps} for agent in before}

    def render(self):
        return np.full((4, 6, 3), self.n_steps, np.uint8)

    def close(self):
        pass
