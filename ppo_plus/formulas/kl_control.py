r"""KL controls: they keep the new policy close to the one that collected the rollout.

A control has no state. A :class:`KLState` of 0-d tensors is an argument and a result of its hooks, so one
control can serve many models, and an update can be fused into one graph. Write your own by subclassing
:class:`KLControl` and overriding any of its three hooks.

Sources: early stopping as in OpenAI Spinning Up and SB3; the adaptive penalty from Schulman et al. 2017
(arXiv:1707.06347, section 4); the adaptive learning rate follows the idea of rsl_rl (Rudin et al. 2022,
arXiv:2109.11978), moved from every minibatch to every update.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch as th

from ppo_plus.require import require_kind, require_number, require_one_of


class KLState(NamedTuple):
    """State of a control, as 0-d tensors.

    :param running: whether this update continues. It is reset at each ``train()``, and once false, it stays so and no
        weight changes until the update ends
    :param beta: coefficient of the KL penalty in the loss
    :param lr_scale: factor on the learning-rate schedule
    """

    running: th.Tensor
    beta: th.Tensor
    lr_scale: th.Tensor


@dataclass(frozen=True)
class KLControl:
    """No control; the base class of the others.

    In the hooks, ``kl`` is 0-d and is the diagnostic named by :attr:`measure`: ``"approx_kl"`` is the sampled
    estimator, ``"kl"`` the exact divergence from the stored distribution parameters, both of KL(old‖new).
    ``target`` is the current value of ``target_kl``, 0-d.
    """

    #: The diagnostic that is passed to the hooks.
    measure: ClassVar[str] = "approx_kl"
    #: Whether ``state.beta * kl`` is part of the loss.
    penalizes: ClassVar[bool] = False
    #: Whether it needs ``target_kl``.
    needs_target: ClassVar[bool] = False

    @property
    def controls(self) -> bool:
        """Whether it does anything, as all but the base class do."""
        return type(self) is not KLControl

    def init(self) -> KLState:
        """The state before the first update."""
        return KLState(running=th.tensor(True), beta=th.tensor(0.0), lr_scale=th.tensor(1.0))

    def after_minibatch(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        """Called with a minibatch's KL before its gradient step, which is taken if ``running`` is still true.

        :param state: the current state
        :param kl: KL(old‖new) on this minibatch
        :param target: the target
        :return: the next state
        """
        return state

    def after_epoch(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        """Called after each epoch with its mean KL over minibatches; same parameters as :meth:`after_minibatch`."""
        return state

    def after_update(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        """Called once, at the end of ``train()``, with the last epoch's mean KL: the closest to that of the
        final policy. Same parameters as :meth:`after_minibatch`."""
        return state


@dataclass(frozen=True)
class EarlyStop(KLControl):
    """Stop the update when the KL exceeds ``tolerance * target``.

    :param per: ``"minibatch"`` (SB3's rule: stop before the step of the first minibatch beyond the limit) or
        ``"epoch"`` (finish the epoch, then stop if its mean is beyond the limit)
    :param tolerance: factor on the target, above 0
    """

    needs_target: ClassVar[bool] = True
    per: str = "minibatch"
    tolerance: float = 1.5

    def __post_init__(self) -> None:
        require_one_of("EarlyStop: per", self.per, ("minibatch", "epoch"))
        require_number("EarlyStop: tolerance", self.tolerance, 0, above=True)

    def _stop(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        return state._replace(running=state.running & (kl <= self.tolerance * target))

    def after_minibatch(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        return self._stop(state, kl, target) if self.per == "minibatch" else state

    def after_epoch(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        return self._stop(state, kl, target) if self.per == "epoch" else state


@dataclass(frozen=True)
class AdaptivePenalty(KLControl):
    r"""Add :math:`\beta\,KL(\pi_{old} \| \pi)` to the loss and adapt :math:`\beta` once per update.

    :math:`\beta` is doubled when the KL ends above ``band * target`` and halved when it ends below ``target / band``
    (arXiv:1707.06347, section 4).

    :param band: width of the band around the target, above 1
    :param max_beta: bound: β stays within ``[1 / max_beta, max_beta]``, above 1
    """

    measure: ClassVar[str] = "kl"
    penalizes: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True
    band: float = 1.5
    max_beta: float = 1e4

    def __post_init__(self) -> None:
        for name in ("band", "max_beta"):
            require_number(f"AdaptivePenalty: {name}", getattr(self, name), 1, above=True)

    def init(self) -> KLState:
        return super().init()._replace(beta=th.tensor(1.0))

    def after_update(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        factor = _outside_band(kl, target, self.band, above=2.0, below=0.5)
        return state._replace(beta=(state.beta * factor).clamp(1 / self.max_beta, self.max_beta))


@dataclass(frozen=True)
class AdaptiveLearningRate(KLControl):
    """Scale the learning-rate schedule so that the KL of an update stays near the target.

    The scale is divided by ``factor`` when the KL ends above ``band * target`` and multiplied by it when it ends below
    ``target / band``. It multiplies the schedule instead of replacing it, so a decaying schedule still decays.

    :param band: width of the band around the target, above 1
    :param factor: factor by which the scale changes at a time, above 1
    :param max_scale: bound: the scale stays within ``[1 / max_scale, max_scale]``, above 1
    """

    measure: ClassVar[str] = "kl"
    needs_target: ClassVar[bool] = True
    band: float = 2.0
    factor: float = 1.5
    max_scale: float = 100.0

    def __post_init__(self) -> None:
        for name in ("band", "factor", "max_scale"):
            require_number(f"AdaptiveLearningRate: {name}", getattr(self, name), 1, above=True)

    def after_update(self, state: KLState, kl: th.Tensor, target: th.Tensor) -> KLState:
        factor = _outside_band(kl, target, self.band, above=1 / self.factor, below=self.factor)
        return state._replace(lr_scale=(state.lr_scale * factor).clamp(1 / self.max_scale, self.max_scale))


#: The controls that ``kl_control`` accepts by name.
KL_CONTROLS: dict[str, type[KLControl]] = {
    "stop": EarlyStop,
    "penalty": AdaptivePenalty,
    "adaptive_lr": AdaptiveLearningRate,
}


def make_kl_control(kl_control: "str | KLControl", has_target: bool) -> KLControl:
    """The control that ``kl_control`` and ``target_kl`` ask for; without a target, ``"stop"`` means no control."""
    if isinstance(kl_control, KLControl):
        return kl_control
    require_kind("kl_control", kl_control, str, f"one of {sorted(KL_CONTROLS)} or a KLControl object")
    require_one_of("kl_control", kl_control, KL_CONTROLS)
    return KL_CONTROLS[kl_control]() if has_target or kl_control != "stop" else KLControl()


def _outside_band(kl: th.Tensor, target: th.Tensor, band: float, above: float, below: float) -> th.Tensor:
    """``above`` where KL > band·target, ``below`` where KL < target/band, 1 inside (and where the KL is NaN)."""
    return th.ones_like(kl).masked_fill(kl > band * target, above).masked_fill(kl < target / band, below)
