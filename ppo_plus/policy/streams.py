r"""Streams of reward: further rewards, each with a critic head, discount, λ and weight in the advantage.

With streams :math:`k`, the policy learns from the advantages :math:`A + \sum_k w_k A_k`, where :math:`A` is that of the
environment's reward; costs are weighed differently (``Streams.combined``). The value loss is the sum over all
heads. ``K - 1`` is the number of streams, and so ``K`` that of values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from ppo_plus.formulas.losses import Losses
from ppo_plus.formulas.moments import Moments
from ppo_plus.formulas.schedules import ScheduleLike, make_schedule, value_at
from ppo_plus.policy.normalization import RunningMoments
from ppo_plus.require import require_kind, require_number

#: Returns the moments of the numbers of all processes, given those of one.
Pool = Callable[[Moments], Moments]


@dataclass(frozen=True)
class Stream:
    """One more reward.

    :param source: where it comes from: a key of ``info``; a tuple of keys for an entry of nested dicts,
        ``("reward_terms", "energy")``; or a function ``(observations, actions, next_observations) -> (B,)`` of tensors
        with ``B`` rows, raw observations and internal actions as in a :class:`~ppo_plus.Batch`. What follows the last
        step of an episode is its final observation
    :param weight: :math:`w_k`; may change over time, see :class:`~ppo_plus.PPO_Plus`
    :param gamma: its discount, in ``[0, 1]``; ``None``: that of the reward
    :param gae_lambda: its λ, in ``[0, 1]``; ``None``: that of the reward
    :param episodic: whether its returns end with episodes; otherwise they continue in the next one
    :param normalize: divide it by the standard deviation of its discounted sums, and clip it to ±10 (``VecNormalize``)
    :param name: its name in logs; ``None``: the last key, or the function's name
    :raises ValueError: an argument is out of range
    :raises TypeError: an argument is of the wrong kind
    """

    source: str | Sequence[str] | Callable[[PyTorchObs, th.Tensor, PyTorchObs], th.Tensor]
    weight: ScheduleLike = 1.0
    gamma: float | None = None
    gae_lambda: float | None = None
    episodic: bool = True
    normalize: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        path, title = self.path, type(self).__name__
        if not self.is_computed and not (path and all(isinstance(key, str) for key in path)):
            raise TypeError(
                f"{title}: source={self.source!r} must be a key of info, a tuple of keys, or a function of "
                "observations, actions and next observations"
            )
        make_schedule(f"{title}: weight", self.weight, -float("inf"))
        for argument in ("gamma", "gae_lambda"):
            require_number(f"{title}: {argument}", getattr(self, argument), 0, 1, or_none=True)
        if self.name is None:
            object.__setattr__(self, "name", path[-1] if path else getattr(self.source, "__name__", title))
        require_kind(f"{title}: name", self.name, str, "text")
        if not self.name or "/" in str(self.name):
            raise ValueError(f"{title}: name={self.name!r} is a part of names in logs: pass name=, without a slash")

    @property
    def is_computed(self) -> bool:
        """Whether it is computed from transitions, not read from ``info``."""
        return callable(self.source)

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to it in ``info``; empty if it is computed."""
        if isinstance(self.source, str):
            return (self.source,)
        return tuple(self.source) if isinstance(self.source, (tuple, list)) else ()

    def find(self, infos: Mapping[str, Any], where: str = "") -> Any:
        """Its entry in ``info``; ``where`` says whose that is. Raises :class:`KeyError` if there is none."""
        found: Any = infos
        try:
            for key in self.path:
                found = found[key]
        except (KeyError, TypeError, IndexError):
            raise KeyError(
                f"the stream {self.name!r} needs info{''.join(f'[{key!r}]' for key in self.path)}, but info{where} has "
                f"{[*infos]}: have the environment set it in every step, or name another key"
            ) from None
        return found

    def part(self, policy: ActorCriticPolicy) -> "StreamPart":
        """What a policy that is being built has of it; override it in a stream that learns."""
        return StreamPart(self)


class StreamPart(RunningMoments):
    """What a policy has of a stream, and so is saved with its weights: here the moments of discounted sums. Between
    rollouts it may change its buffers, and in updates only its weights change."""

    not_constant = frozenset({"stream"})
    #: Whether it is weighed against the rest of the reward in units of standard deviations.
    is_cost = False

    def __init__(self, stream: Stream):
        super().__init__((), epsilon=1e-8)
        self.stream = stream

    def observe(self, next_observations: PyTorchObs, pool: Pool) -> None:
        """Count what observations are normalized by, ``B`` rows of a rollout, before its rewards are computed."""

    def rewards(self, observations: PyTorchObs, actions: th.Tensor, next_observations: PyTorchObs) -> th.Tensor:
        """The rewards of ``B`` transitions, ``(B,)``, if they are computed."""
        assert callable(self.stream.source)
        rewards, n = self.stream.source(observations, actions, next_observations), len(actions)
        if not isinstance(rewards, th.Tensor) or rewards.numel() != n:
            problem = f"the stream {self.stream.name!r} is {rewards!r:.200} for {n} transitions"
            raise ValueError(f"{problem}: return a tensor of shape ({n},) from its function")
        return rewards.flatten()

    def end_rollout(self, mean: float) -> None:
        """Adapt to the mean sum of rewards of the episodes that have ended in a rollout, if any have."""

    def weight(self, progress_remaining: float) -> float:
        """The weight of its advantage."""
        name, low = f"{self.stream.name}: weight", -float("inf")
        return value_at(progress_remaining, name, make_schedule(name, self.stream.weight, low), low)

    def loss(
        self, observations: PyTorchObs, actions: th.Tensor, next_observations: PyTorchObs | None
    ) -> th.Tensor | None:
        """What it learns from the transitions of a minibatch: a loss, 0-d; ``None``: nothing. If no stream is computed,
        ``next_observations`` is ``None``."""
        return None


class Streams(nn.Module):
    """The parts of all streams of a policy, and their critic heads: one layer beside ``value_net``."""

    def __init__(self, streams: Sequence[Stream], policy: ActorCriticPolicy):
        super().__init__()
        if not isinstance(policy.value_net, nn.Linear):
            raise ValueError(
                f"streams: each needs a head beside the critic's last layer, but {policy.value_net} is not a "
                "torch.nn.Linear: end policy_kwargs=dict(critic=...) with one"
            )
        self.head = nn.Linear(policy.value_net.in_features, len(streams))
        if policy.ortho_init:
            policy.init_weights(self.head, 1.0)
        parts = [stream.part(policy) for stream in streams]
        self.parts: Any = nn.ModuleList(parts)
        learns = any(type(part).loss is not StreamPart.loss for part in parts)
        #: Whether some of them are computed from transitions, which then have their next observations.
        self.are_computed = any(stream.is_computed for stream in streams)
        #: Whether minibatches need next observations: some streams are computed, and some learn.
        self.need_next_observations = self.are_computed and learns

    def weights(self, progress_remaining: float) -> list[float]:
        """The weights of the streams' advantages."""
        return [part.weight(progress_remaining) for part in self.parts]

    def combined(
        self,
        progress_remaining: float,
        standardized: Callable[[th.Tensor], th.Tensor],
        reward: th.Tensor,
        advantages: Sequence[th.Tensor],
    ) -> th.Tensor:
        r"""The advantages from which the policy learns: :math:`A = A_r + \sum_k w_k A_k`. With costs, of which :math:`k
        \in C` and the others :math:`k \notin C`,

        .. math:: A = \frac{N(A_r + \sum_{k \notin C} w_k A_k) - \sum_{k \in C} \lambda_k N(A_k)}{1 + \sum_C \lambda_k}.

        :param standardized: :math:`N`, zero mean and unit standard deviation over the rollouts of all processes
        :param reward: :math:`A_r`
        :param advantages: :math:`A_k`, of the same shape
        """
        weighted = list(zip(self.parts, self.weights(progress_remaining), advantages, strict=True))
        sum_ = reward + sum(weight * own for part, weight, own in weighted if not part.is_cost)
        if not (costs := [(-weight, own) for part, weight, own in weighted if part.is_cost]):
            return sum_
        limited = standardized(sum_) - sum(multiplier * standardized(own) for multiplier, own in costs)
        return limited / (1 + sum(multiplier for multiplier, _ in costs))

    def learn(self, losses: Losses, batch: Any) -> Losses:
        """The losses of a minibatch with those of the streams."""
        batch = batch if batch.valid is None else batch.only_valid()
        for part in self.parts:
            if (term := part.loss(batch.observations, batch.actions, batch.next_observations)) is not None:
                losses = losses.plus(f"{part.stream.name}_loss", term)
        return losses
