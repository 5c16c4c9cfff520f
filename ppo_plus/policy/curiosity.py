r"""Curiosity: a reward for observations unlike those seen before (random network distillation).

A predictor learns the outputs of a target network, whose weights are random and fixed. Its error is large where
observations are new: :math:`r_t = \mathrm{mean}_j (\hat f_j(s_{t+1}) - f_j(s_{t+1}))^2`. Observations are normalized by
running moments, which have those of a rollout before its rewards are computed, and clipped to ±5.

Source: Burda, Edwards, Storkey & Klimov 2018 (arXiv:1810.12894). There, rewards are divided by the deviation of their
discounted sums in all rollouts. Errors of the first rollouts, which may be a thousand times as large as later ones,
then hide what is new later, so here only those of the same rollout count.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from ppo_plus.formulas.moments import Moments
from ppo_plus.formulas.schedules import ScheduleLike
from ppo_plus.policy.normalization import ObservationNormalizer
from ppo_plus.policy.observations import canonical_space, make_preprocess
from ppo_plus.policy.streams import Pool, Stream, StreamPart
from ppo_plus.trees import tree_map


@dataclass(frozen=True)
class RandomNetworkDistillation(Stream):
    """A stream that rewards what is new. Both networks begin with features extractors like the actor's."""

    source: Any = field(default=None, init=False, repr=False)
    weight: ScheduleLike = 0.5
    gamma: float | None = 0.99
    episodic: bool = False
    normalize: bool = True
    name: str | None = "curiosity"
    is_computed = True

    def part(self, policy: ActorCriticPolicy) -> StreamPart:
        return Distillation(self, policy)


class Distillation(StreamPart):
    """The networks of :class:`RandomNetworkDistillation`, and the moments of observations."""

    def __init__(self, stream: Stream, policy: Any, n: int = 128):
        super().__init__(stream)
        self.epsilon = 1e-16  # errors may be small
        self._preprocess = make_preprocess(policy.actor_space, policy.normalize_images)
        space = canonical_space(policy.actor_space)  # whose choices count from 0
        zeros: Any = tree_map(th.as_tensor, create_empty_array(space))
        inputs = make_preprocess(space, policy.normalize_images)(zeros)
        boxes = tree_map(lambda part: spaces.Box(-np.inf, np.inf, part.shape[1:]), inputs)
        # Which sorts its entries: files have the moments in this order.
        boxes = spaces.Dict(boxes) if isinstance(boxes, dict) else boxes
        self.normalizer = ObservationNormalizer([boxes], True, 1e-8, 5.0, None)
        # Copies: networks in the arguments of an extractor are the policy's, too.
        target, predictor = (copy.deepcopy(policy.make_features_extractor()) for _ in range(2))
        self.target = nn.Sequential(target, nn.Linear(target.features_dim, n), nn.ReLU(), nn.Linear(n, n))
        hidden = nn.Linear(target.features_dim, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU()
        self.predictor = nn.Sequential(predictor, *hidden, nn.Linear(n, n))
        self.apply(lambda layer: policy.init_weights(layer, np.sqrt(2)))
        self.target.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, so that the target is the same in updates as in rewards."""
        return super().train(False)

    def observe(self, next_observations: PyTorchObs, pool: Pool) -> None:
        self.normalizer.add(pool(self.normalizer.moments_of(self._preprocess(next_observations))))

    def add(self, moments: Moments) -> None:
        """Forget earlier moments: what is new is relative to the same rollout."""
        self.count.zero_()
        super().add(moments)

    def rewards(self, observations: PyTorchObs, actions: th.Tensor, next_observations: PyTorchObs) -> th.Tensor:
        inputs = self.normalizer(self._preprocess(next_observations))
        return (self.predictor(inputs) - self.target(inputs)).square().mean(dim=1)

    def loss(self, observations: PyTorchObs, actions: th.Tensor, next_observations: PyTorchObs | None) -> th.Tensor:
        assert next_observations is not None
        return self.rewards(observations, actions, next_observations).mean()
