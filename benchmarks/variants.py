"""What single contenders of the long runs have beside settings: networks, a loss, and rewards of another scale."""

from typing import Any

import gymnasium as gym
import torch as th
from torch import nn

from ppo_plus import PPO_Plus, PPOLoss


class TenthOfReward(gym.RewardWrapper):
    """A fixed scale of rewards in place of a running one (rl_games' Hopper, PFRL). Returns are measured inside it."""

    def reward(self, reward: Any) -> float:
        return 0.1 * float(reward)


class Residual(nn.Module):
    """An actor of two residual blocks with layer normalization: 256 units, and four times as many inside of a block
    (arXiv:2601.23075)."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(n_inputs, 256), nn.Linear(256, n_outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(256)
        nn.init.orthogonal_(self.last.weight, 0.01)

    def forward(self, features: th.Tensor) -> th.Tensor:
        x = self.first(features)
        for block in self.blocks:
            x = x + block(x)
        return self.last(self.norm(x))  # type: ignore[no-any-return]


class Rpo(PPO_Plus):
    """Robust policy optimization (arXiv:2212.07536): in the update, uniform noise is added to the mean actions."""

    objective, alpha = PPOLoss(), 0.5

    def compute_loss(self, batch: Any, coefficients: Any) -> Any:
        values, params = self.policy.evaluate_batch(batch)
        mean, std = params.chunk(2, dim=1)
        noise = self.alpha * (2 * th.rand_like(mean) - 1)
        return self.objective(self.policy.distribution, values, th.cat([mean + noise, std], 1), batch, coefficients)
