r"""Limits for the mean cost of an episode, kept by a Lagrange multiplier (PPO-Lagrangian).

The policy maximizes :math:`J_r - \lambda J_c`, each in units of the standard deviation of its advantages, where
:math:`J_c` is to be at most :math:`d`. After each rollout, with :math:`\Delta = (J_c - d) / \max(d, 1)`, the multiplier
is :math:`\lambda = (K_P \Delta + I + K_D (\Delta - \Delta_{before})_+)_+`, where
:math:`I \leftarrow (I + K_I \min(\Delta, 1))_+`. The minimum makes the integral rise no faster than it can fall, since
:math:`\Delta \ge -1` for costs: otherwise the first rollouts, far above the limit, would count most.

Sources: Ray, Achiam & Amodei 2019, *Benchmarking Safe Exploration in Deep Reinforcement Learning* (the integral term
alone); Stooke, Achiam & Abbeel 2020 (arXiv:2007.03964), whose other two terms damp the oscillation.
"""

from dataclasses import dataclass, field

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from ppo_plus.formulas.schedules import ScheduleLike
from ppo_plus.policy.streams import Stream, StreamPart
from ppo_plus.require import LARGEST, require_number


@dataclass(frozen=True)
class Cost(Stream):
    """A stream whose sum over an episode, without discount, is to have a mean of at most ``limit``. Its weight is −λ,
    which stays unchanged in a rollout in which no episode ends.

    :param limit: :math:`d`, at least 0
    :param k_p: :math:`K_P`, at least 0
    :param k_i: :math:`K_I`, at least 0
    :param k_d: :math:`K_D`, at least 0
    """

    weight: ScheduleLike = field(default=0.0, init=False, repr=False)
    normalize: bool = field(default=False, init=False, repr=False)
    limit: float = field(kw_only=True)
    k_p: float = field(default=3.0, kw_only=True)
    k_i: float = field(default=1.0, kw_only=True)
    k_d: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("limit", "k_p", "k_i", "k_d"):
            require_number(f"Cost: {name}", getattr(self, name), 0, LARGEST)
        super().__post_init__()

    def part(self, policy: ActorCriticPolicy) -> StreamPart:
        return Multiplier(self)


class Multiplier(StreamPart):
    """λ, its integral term and the last violation."""

    is_cost = True
    terms: th.Tensor

    def __init__(self, stream: Cost):
        super().__init__(stream)
        self.register_buffer("terms", th.zeros(3, dtype=th.double))

    def end_rollout(self, mean: float) -> None:
        cost = self.stream
        assert isinstance(cost, Cost)
        violation, (_, integral, before) = (mean - cost.limit) / max(cost.limit, 1.0), self.terms.tolist()
        integral = max(integral + cost.k_i * min(violation, 1.0), 0.0)
        multiplier = max(cost.k_p * violation + integral + cost.k_d * max(violation - before, 0.0), 0.0)
        self.terms.copy_(th.tensor([multiplier, integral, violation], dtype=th.double))

    def weight(self, progress_remaining: float) -> float:
        return -self.terms[0].item()
