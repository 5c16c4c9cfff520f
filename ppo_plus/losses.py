"""The PPO objective as pure tensor functions.

Nothing here knows of networks, environments or optimizers: every function maps tensors to tensors, and the formula is
in its docstring. ``B`` is the number of transitions in the minibatch.

Sources: Schulman et al. 2017, *Proximal Policy Optimization Algorithms* (arXiv:1707.06347); for the clipped value
loss, OpenAI Baselines' PPO2; for the KL estimator, J. Schulman's note *Approximating KL Divergence* (2020).
"""

from typing import NamedTuple

import torch as th
from torch.nn import functional as F


def policy_loss(log_ratio: th.Tensor, advantages: th.Tensor, clip_range: th.Tensor | None) -> th.Tensor:
    r"""The clipped surrogate :math:`-\mathrm{mean}[\min(r A, \mathrm{clip}(r, 1-\epsilon, 1+\epsilon) A)]`.

    Computed as :math:`-\mathrm{mean}[\min(r A, A + \epsilon |A|)]`, the same with half of the operations: only the
    bound on the side that :math:`A` favors is ever the smaller one. A ratio exactly at its bound still learns.

    :param log_ratio: :math:`\log r = \log \pi(a|s) - \log \pi_{old}(a|s)`, shape ``(B,)``
    :param advantages: :math:`A`, shape ``(B,)``
    :param clip_range: :math:`\epsilon > 0`, 0-d; ``None`` for the unclipped surrogate :math:`-\mathrm{mean}[r A]`
    :return: the loss, 0-d (arXiv:1707.06347, eq. 7; unclipped: eq. 6)
    """
    ratio = log_ratio.exp()
    surrogate = advantages * ratio
    if clip_range is None:
        return -surrogate.mean()
    bound = advantages + clip_range * advantages.abs()
    # Not by clamp or min: what their gradient is at the bound depends on the version of torch. Where the clip range
    # has fallen to 0, all ratios of the first minibatch are there.
    return -th.where(surrogate > bound, bound, surrogate).mean()


def value_loss(
    values: th.Tensor,
    old_values: th.Tensor,
    returns: th.Tensor,
    clip_range_vf: th.Tensor | None = None,
    value_clip: str = "max",
) -> th.Tensor:
    r"""The squared error of the critic, optionally clipped around its old predictions.

    With :math:`V_c = V_{old} + \mathrm{clip}(V - V_{old}, -\epsilon, \epsilon)`:

    - no clipping: :math:`\mathrm{mean}[(R - V)^2]`;
    - ``"plain"`` (SB3): :math:`\mathrm{mean}[(R - V_c)^2]`, whose gradient is zero wherever the clip is active, even
      when the value moves away from its target;
    - ``"max"`` (PPO2): :math:`\mathrm{mean}[\max((R - V)^2, (R - V_c)^2)]`, the pessimistic bound, whose gradient
      vanishes only where the value has moved beyond the clip range *towards* its target.

    A value exactly at its bound still learns.

    :param values: :math:`V`, shape ``(B,)``
    :param old_values: :math:`V_{old}`, the predictions made during the rollout, shape ``(B,)``
    :param returns: :math:`R`, the TD(λ) targets, shape ``(B,)``
    :param clip_range_vf: :math:`\epsilon > 0` in units of the return, 0-d, or ``None``
    :param value_clip: ``"max"`` or ``"plain"``
    :return: the loss, 0-d
    :raises ValueError: another ``value_clip``
    """
    if value_clip not in ("max", "plain"):
        raise ValueError(f'value_clip={value_clip!r} must be "max" or "plain"')
    if clip_range_vf is None:
        return F.mse_loss(values, returns)
    change = values - old_values
    # As in policy_loss, the gradient at the bound is not left to clamp.
    bound = change.detach().clamp(-clip_range_vf, clip_range_vf)
    clipped = old_values + th.where(change.abs() > clip_range_vf, bound, change)
    clipped_error = (returns - clipped).square()
    if value_clip == "plain":
        return clipped_error.mean()
    return th.max((returns - values).square(), clipped_error).mean()


def approx_kl(log_ratio: th.Tensor) -> th.Tensor:
    r"""The estimator ``k3`` of :math:`KL(\pi_{old} \| \pi)` from actions drawn from :math:`\pi_{old}`.

    :math:`\mathrm{mean}[(r - 1) - \log r]`: unbiased, and never negative (up to rounding).

    :param log_ratio: :math:`\log r`, shape ``(B,)``
    :return: 0-d (http://joschu.net/blog/kl-approx.html)
    """
    # SB3's exp(x) - 1 rather than expm1: target-KL stopping then happens at the very same minibatch.
    return ((log_ratio.exp() - 1) - log_ratio).mean()


def clip_fraction(log_ratio: th.Tensor, clip_range: th.Tensor) -> th.Tensor:
    r"""The share of transitions whose ratio has left :math:`[1-\epsilon, 1+\epsilon]`.

    :param log_ratio: :math:`\log r`, shape ``(B,)``
    :param clip_range: :math:`\epsilon`
    :return: 0-d, in ``[0, 1]``
    """
    return ((log_ratio.exp() - 1).abs() > clip_range).float().mean()


class Coefficients(NamedTuple):
    """What weighs and bounds the terms of the loss at this point of training, as 0-d tensors.

    :param clip_range: ε of the surrogate; ``None``: not clipped
    :param clip_range_vf: ε of the value loss; ``None``: not clipped
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss
    :param kl_coef: weight β of the KL penalty; ``None``: no penalty
    """

    clip_range: th.Tensor | None
    clip_range_vf: th.Tensor | None
    ent_coef: th.Tensor
    vf_coef: th.Tensor
    kl_coef: th.Tensor | None = None


class Losses(NamedTuple):
    """What ``compute_loss`` returns.

    :param total: the loss to descend, 0-d, with its graph
    :param diagnostics: 0-d tensors by name, averaged over the update and logged as ``train/<name>``; ``approx_kl`` and
        ``kl`` are what KL controls read
    """

    total: th.Tensor
    diagnostics: dict[str, th.Tensor]

    def plus(self, name: str, term: th.Tensor) -> "Losses":
        """The same with one more term in the total, which is also logged as ``train/<name>``."""
        return Losses(self.total + term, self.diagnostics | {name: term.detach()})
