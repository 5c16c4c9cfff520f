"""What single contenders of the long runs have beside settings: networks, and a loss."""

from typing import Any

import torch as th
from torch import nn

from ppo_plus import PPO_Plus, PPOLoss


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


class Chain(PPO_Plus):
    """Churn reduction (CHAIN, arXiv:2409.04792): a penalty on how much the last gradient step has changed the mean
    actions in the states of another minibatch, the KL divergence of Gaussians. Its weight keeps it at a tenth of the
    policy's loss."""

    beta = 0.1
    #: The last minibatch; one before it, and the mean actions for that one before the last step.
    last: Any = None
    other: Any = None
    before: Any = None

    def compute_loss(self, batch: Any, coefficients: Any) -> Any:
        losses, term = super().compute_loss(batch, coefficients), th.zeros(())
        if self.other is not None:
            mean, std = self.policy.evaluate_batch(self.other)[1].chunk(2, dim=1)
            churn = (((mean - self.before) / std.detach()) ** 2).sum(1).mean() / 2
            term = self.beta * losses.diagnostics["policy_gradient_loss"].abs() * churn / churn.detach().clamp(min=1e-8)
        if self.last is not None:
            with th.no_grad():
                self.other, self.before = self.last, self.policy.evaluate_batch(self.last)[1].chunk(2, dim=1)[0]
        self.last = batch
        return losses.plus("churn_loss", term)
