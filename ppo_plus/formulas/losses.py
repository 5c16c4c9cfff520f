"""The PPO objective as pure tensor functions: advantages and losses.

Networks, environments and optimizers are not needed here: every function maps tensors to tensors, and its formula is
in its docstring. :class:`PPOLoss` combines the losses. ``B`` is the number of transitions in the minibatch; advantages
are estimated time-major, ``(T, N)`` for ``T`` steps of ``N`` environments.

Sources: Schulman et al. 2016, *High-Dimensional Continuous Control Using Generalized Advantage Estimation*
(arXiv:1506.02438); Schulman et al. 2017, *Proximal Policy Optimization Algorithms* (arXiv:1707.06347); for the clipped
value loss, OpenAI Baselines' PPO2; for the KL estimator, J. Schulman's note *Approximating KL Divergence* (2020).
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch as th
from torch.nn import functional as F


def gae(
    rewards: th.Tensor,
    values: th.Tensor,
    last_values: th.Tensor,
    episode_starts: th.Tensor,
    last_dones: th.Tensor,
    gamma: float,
    gae_lambda: float,
) -> th.Tensor:
    r"""GAE(λ): :math:`A_t = \delta_t + \gamma\lambda (1 - d_{t+1}) A_{t+1}`,
    with :math:`\delta_t = r_t + \gamma (1 - d_{t+1}) V_{t+1} - V_t`.

    :param rewards: :math:`r_t`, shape ``(T, N)``; where an episode ended by a time limit, with the discounted value
        of its final observation already added
    :param values: :math:`V_t`, shape ``(T, N)``
    :param last_values: :math:`V_T`, shape ``(N,)``
    :param episode_starts: :math:`d_t`, whether the observation at ``t`` begins an episode, shape ``(T, N)``
    :param last_dones: :math:`d_T`, whether the last step ended an episode, shape ``(N,)``
    :param gamma: discount :math:`\gamma \in [0, 1]`
    :param gae_lambda: :math:`\lambda \in [0, 1]`: 1 gives Monte-Carlo returns minus the value, 0 one-step TD errors
    :return: :math:`A_t`, shape ``(T, N)``; the TD(λ) returns are ``advantages + values``
    """
    next_values = th.cat([values[1:], last_values[None]])
    continues = 1.0 - th.cat([episode_starts[1:], last_dones[None]]).to(values.dtype)
    errors = rewards + gamma * next_values * continues - values
    decay, errors = (part.flip(0).T.contiguous() for part in (gamma * gae_lambda * continues, errors))
    return linear_recurrence(decay, errors, th.zeros_like(last_values)).T.flip(0)


def linear_recurrence(a: th.Tensor, b: th.Tensor, h: th.Tensor) -> th.Tensor:
    r"""All :math:`h_t = a_t h_{t-1} + b_t` of sequences, shape ``(N, T, ...)``.

    By doubling (Hillis and Steele 1986): after each of :math:`\lceil \log_2 T \rceil` rounds, :math:`b_t` is the result
    for twice as many steps, and :math:`a_t` the product over them. It is exact for any :math:`a`, also 0.

    :param a: shape ``(N, T, ...)``, or what can be broadcast to it after the first two dimensions
    :param b: shape ``(N, T, ...)``
    :param h: :math:`h_0`, shape ``(N, ...)``
    """
    b = th.cat([b[:, :1] + a[:, :1] * h[:, None], b[:, 1:]], dim=1)
    span = 1
    while span < b.shape[1]:
        b = th.cat([b[:, :span], b[:, span:] + a[:, span:] * b[:, :-span]], dim=1)
        a = th.cat([a[:, :span], a[:, span:] * a[:, :-span]], dim=1)
        span *= 2
    return b


def normalize(advantages: th.Tensor) -> th.Tensor:
    r"""Zero mean and unit standard deviation: :math:`(A - \bar A) / (\sigma_A + 10^{-8})`.

    A single advantage has no standard deviation and is returned unchanged.

    :param advantages: any shape
    :return: same shape
    """
    if advantages.numel() < 2:
        return advantages
    std, mean = th.std_mean(advantages)
    return (advantages - mean) / (std + 1e-8)


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
    # Not by clamp or min: their gradient at the bound depends on the version of torch. If the clip range has fallen to
    # 0, all ratios of the first minibatch are at the bound.
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

    :param values: :math:`V`, shape ``(B,)``; with streams, all three have the shape ``(B, K)``
    :param old_values: :math:`V_{old}`, the predictions made during the rollout, shape ``(B,)``
    :param returns: :math:`R`, the TD(λ) targets, shape ``(B,)``
    :param clip_range_vf: :math:`\epsilon > 0` in units of the return, 0-d or ``(K,)``, or ``None``
    :param value_clip: ``"max"`` or ``"plain"``
    :return: the loss, 0-d, or ``K`` losses, ``(K,)``
    :raises ValueError: another ``value_clip``
    """
    if value_clip not in ("max", "plain"):
        raise ValueError(f'value_clip={value_clip!r} must be "max" or "plain"')
    if clip_range_vf is None:
        return F.mse_loss(values, returns) if values.ndim == 1 else (returns - values).square().mean(dim=0)
    change = values - old_values
    # As in policy_loss, the gradient at the bound must not depend on clamp.
    bound = change.detach().clamp(-clip_range_vf, clip_range_vf)
    clipped = old_values + th.where(change.abs() > clip_range_vf, bound, change)
    clipped_error = (returns - clipped).square()
    if value_clip == "plain":
        return clipped_error.mean(dim=0)
    return th.max((returns - values).square(), clipped_error).mean(dim=0)


def approx_kl(log_ratio: th.Tensor) -> th.Tensor:
    r"""The estimator ``k3`` of :math:`KL(\pi_{old} \| \pi)` from actions drawn from :math:`\pi_{old}`.

    :math:`\mathrm{mean}[(r - 1) - \log r]`: unbiased, and never negative (up to rounding).

    :param log_ratio: :math:`\log r`, shape ``(B,)``
    :return: 0-d (http://joschu.net/blog/kl-approx.html)
    """
    # SB3's exp(x) - 1 rather than expm1: target-KL stopping then happens at the same minibatch.
    return ((log_ratio.exp() - 1) - log_ratio).mean()


def clip_fraction(log_ratio: th.Tensor, clip_range: th.Tensor) -> th.Tensor:
    r"""The share of transitions whose ratio has left :math:`[1-\epsilon, 1+\epsilon]`.

    :param log_ratio: :math:`\log r`, shape ``(B,)``
    :param clip_range: :math:`\epsilon`
    :return: 0-d, in ``[0, 1]``
    """
    return ((log_ratio.exp() - 1).abs() > clip_range).float().mean()


class Coefficients(NamedTuple):
    """The arguments that may change over time, at this point of training, as 0-d tensors: weights and bounds of the
    terms of the loss, and the two numbers that the step along its gradient needs.

    :param clip_range: ε of the surrogate; ``None``: not clipped
    :param clip_range_vf: ε of the value loss, with streams also ``(K,)``; ``None``: not clipped
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss, with streams also ``(K,)``
    :param kl_coef: weight β of the KL penalty; ``None``: no penalty
    :param learning_rate: the schedule's value, which the KL control may scale
    :param target_kl: the KL control's target; NaN: none
    """

    clip_range: th.Tensor | None
    clip_range_vf: th.Tensor | None
    ent_coef: th.Tensor
    vf_coef: th.Tensor
    kl_coef: th.Tensor | None = None
    learning_rate: th.Tensor = th.tensor(th.nan)
    target_kl: th.Tensor = th.tensor(th.nan)


class Losses(NamedTuple):
    """A loss and its diagnostics: the result of ``compute_loss``.

    :param total: the loss to descend, 0-d, with its graph
    :param diagnostics: 0-d tensors by name, averaged over the update and logged as ``train/<name>``; KL controls
        read ``approx_kl`` and ``kl``
    """

    total: th.Tensor
    diagnostics: dict[str, th.Tensor]

    def measured(self, name: str) -> th.Tensor:
        """The diagnostic that a KL control reads.

        :raises ValueError: there is none of this name
        """
        if name not in self.diagnostics:
            remedy = "return it from compute_loss; a custom collect_rollouts must pass params to rollout_buffer.add"
            raise ValueError(f"the loss has no diagnostic {name!r}, which the KL control reads: {remedy}")
        return self.diagnostics[name]

    def plus(self, name: str, term: th.Tensor) -> "Losses":
        """Add a term to the total, and log it as ``train/<name>``.

        :param name: the name of the term
        :param term: 0-d, with its graph
        :raises ValueError: the loss has something of this name
        """
        if name in {*self.diagnostics, "loss", "grad_norm"}:
            raise ValueError(f"the loss has {name!r} already: give the term another name")
        return Losses(self.total + term, self.diagnostics | {name: term.detach()})


@dataclass(frozen=True)
class PPOLoss:
    r"""The objective of PPO (arXiv:1707.06347, eq. 9, with the KL penalty of eq. 8):

    .. math:: L = L^{CLIP} - c_H H + c_V L^{V} + \beta\,KL(\pi_{old} \| \pi)

    Two objects with the same options are equal, and compute the same.

    :param value_clip: see :func:`~ppo_plus.formulas.losses.value_loss`
    :param normalize_advantage: whether advantages are normalized within each minibatch
    :param entropy_bonus: whether the entropy is part of the loss; without, it is only reported
    :param streams: the names of streams (:class:`ppo_plus.Stream`), by which their value losses are logged
    """

    value_clip: Literal["max", "plain"] = "max"
    normalize_advantage: bool = True
    entropy_bonus: bool = True
    streams: tuple[str, ...] = ()

    def __call__(
        self, distribution: Any, values: th.Tensor, params: th.Tensor, batch: Any, coefficients: Coefficients
    ) -> Losses:
        """The loss of one minibatch.

        :param distribution: the family of action distributions (:class:`~ppo_plus.policy.distributions`)
        :param values: predictions of the critic, shape ``(B,)``, with streams ``(B, K)``
        :param params: parameters of the action distribution, shape ``(B, param_dim)``
        :param batch: the minibatch, a :class:`ppo_plus.Batch`
        :param coefficients: weights and bounds
        :return: total loss and diagnostics
        """
        if batch.valid is not None:
            values, params, batch = values[batch.valid], params[batch.valid], batch.only_valid()
        log_ratio = distribution.log_prob(params, batch.actions) - batch.old_log_prob
        advantages = batch.advantages
        if self.normalize_advantage:
            advantages = normalize(advantages) if batch.normalized is None else batch.normalized
        surrogate = policy_loss(log_ratio, advantages, coefficients.clip_range)
        error = value_loss(values, batch.old_values, batch.returns, coefficients.clip_range_vf, self.value_clip)
        with th.set_grad_enabled(self.entropy_bonus and th.is_grad_enabled()):
            entropy_loss = -distribution.entropy(params).mean()
        total = surrogate + (coefficients.vf_coef * error).sum()
        if self.entropy_bonus:
            total = total + coefficients.ent_coef * entropy_loss

        with th.no_grad():
            error = error.detach()
            diagnostics = {
                "policy_gradient_loss": surrogate.detach(),
                "value_loss": error.view(-1)[0],
                "entropy_loss": entropy_loss.detach(),
                "approx_kl": approx_kl(log_ratio),
            }
            diagnostics |= {f"{name}_value_loss": error[k] for k, name in enumerate(self.streams, 1)}
            if coefficients.clip_range is not None:
                diagnostics["clip_fraction"] = clip_fraction(log_ratio, coefficients.clip_range)
            std = distribution.std(params)
            if std is not None:
                diagnostics["action_std"] = std.mean()
        if batch.old_params is not None:
            with th.set_grad_enabled(coefficients.kl_coef is not None and th.is_grad_enabled()):
                kl = distribution.kl(batch.old_params, params).mean()
            diagnostics["kl"] = kl.detach()
            if coefficients.kl_coef is not None:
                total = total + coefficients.kl_coef * kl
        return Losses(total, diagnostics)
