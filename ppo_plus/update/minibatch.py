"""One minibatch of an update, a gradient and a step along it: as a pure function, in place, and compiled.

:class:`UpdateRule` has the first two. :class:`CompiledMinibatch` runs the pure function compiled, and
:class:`CompiledGradient` the gradient alone where something stands between gradient and step: recurrent layers, or
other processes.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch as th
from torch.optim import Optimizer

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.compiled import Compiled
from ppo_plus.compiling.torch_private import optimizer_step, swapped
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.policies import Features
from ppo_plus.update.batch import Batch, n_transitions, pick
from ppo_plus.update.flat import concatenated, moments, trainable
from ppo_plus.update.gradient import (
    Gradient,
    LossFunction,
    gradient_by_parts,
    head_gradient,
    loss_gradient,
    others_of,
    standing_in,
)
from ppo_plus.update.step import FINITE, apply, functional_step

#: What a minibatch returns: the KL control's state, the names of the diagnostics, and a record (:func:`apply`).
Outcome = tuple[KLState, tuple[str, ...], th.Tensor]
#: One minibatch, of the rollout, the KL control's state and the rows of the rollout.
Minibatch = Callable[[Batch, KLState, th.Tensor], Outcome]
#: The loss of a minibatch and its gradient, of the coefficients, the rollout and its rows.
GradientFunction = Callable[[Coefficients, Batch, th.Tensor], tuple[Losses, Gradient]]

#: Averages the loss and gradient over processes: takes those of this process (``None``: it has no transitions), the
#: tensors that the gradient belongs to, and the number of transitions.
Reduction = Callable[[tuple[Losses, Gradient] | None, list[Any], int], tuple[Losses, Gradient]]


@dataclass(frozen=True)
class UpdateRule:
    """How a minibatch changes a policy: as a pure function of tensors, and in place."""

    policy: Any  # the policy, with its optimizer
    compute_loss: LossFunction  # the loss as a function of a batch and the coefficients
    control: KLControl
    max_grad_norm: float  # bound on the norm of the gradient
    #: Averages the parts that several processes have of a minibatch; `None`: there is one process.
    reduction: Reduction | None = None

    @cached_property
    def list_others(self) -> Callable[[], list[th.Tensor]]:
        """Lists the policy's buffers and frozen weights (:func:`~ppo_plus.update.gradient.others_of`)."""
        return others_of(self.policy)

    def __call__(
        self,
        vector: th.Tensor,
        moments: dict[str, th.Tensor],
        others: list[th.Tensor],
        coefficients: Coefficients,
        data: Batch,
        state: KLState,
        indices: th.Tensor,
    ) -> Outcome:
        """One minibatch; changes the first three arguments in place. ``others``: buffers and frozen weights."""
        coefficients = self.penalizing(coefficients, state)
        losses, grads = self.gradient(vector, others, coefficients, data, coefficients.kl_coef, indices)
        step = functional_step(self.policy.optimizer, vector, moments)
        return apply(step, losses, grads, self.max_grad_norm, self.control, state, coefficients)

    def gradient(
        self,
        vector: th.Tensor,
        others: list[th.Tensor],
        coefficients: Coefficients,
        data: Batch,
        kl_coef: th.Tensor | None,
        indices: th.Tensor,
    ) -> tuple[Losses, Gradient]:
        """Loss and gradient of this process's part of a minibatch; ``kl_coef`` changes between minibatches."""
        with standing_in(self.policy, vector, others) as params:
            coefficients = coefficients._replace(kl_coef=kl_coef)
            losses, grads = loss_gradient(self.compute_loss, params, coefficients, pick(data, indices))
        return losses._replace(total=losses.total.detach()), (concatenated(grads, params),)

    def in_place(
        self,
        optimizer: Optimizer,
        coefficients: Coefficients,
        gradient: GradientFunction,
        data: Batch,
        state: KLState,
        indices: th.Tensor,
    ) -> Outcome:
        """One minibatch; changes the policy, and its optimizer as lent by :func:`~ppo_plus.update.flat.packed`."""
        params, targets = trainable(self.policy.optimizer), trainable(optimizer)
        others, found = self.list_others(), None
        if self.reduction is None or (n := n_transitions(data, indices)):
            # What a module puts in place of a buffer is written into the buffer, as compiled.
            with swapped(self.policy, others, others) if others else nullcontext():
                losses, grads = gradient(self.penalizing(coefficients, state), data, indices)
            if optimizer is not self.policy.optimizer and len(grads) == len(params):
                grads = (concatenated(grads, params),)
            found = losses, grads
        if self.reduction is not None:
            found = self.reduction(found, targets, n)
        assert found is not None
        step = partial(optimizer_step, optimizer, targets)
        return apply(step, *found, self.max_grad_norm, self.control, state, coefficients)

    def eager_gradient(self, coefficients: Coefficients, data: Batch, indices: th.Tensor) -> tuple[Losses, Gradient]:
        """Loss and gradient of a minibatch with the policy's own weights."""
        # No name for the minibatch: images should not stay while there are gradients.
        return loss_gradient(self.compute_loss, trainable(self.policy.optimizer), coefficients, pick(data, indices))

    def penalizing(self, coefficients: Coefficients, state: KLState) -> Coefficients:
        """The coefficients with the present weight of the KL penalty, if the control has one."""
        return coefficients._replace(kl_coef=state.beta) if self.control.penalizes else coefficients


def prepared(
    rule: UpdateRule,
    lent: Optimizer,
    coefficients: Coefficients,
    compilation: Compilation,
    **reads: Any,
) -> Minibatch:
    """The function that makes the minibatches of one update: compiled if training is and it can be, otherwise eager.

    :param reads: what ``compute_loss`` reads (:func:`~ppo_plus.compiling.constants.constants_of`)
    :raises CompileError: ``compile=True``, and they cannot be compiled
    """
    policy = rule.policy
    optimizer = policy.optimizer
    function: Callable[..., Any] = rule
    gradient: type[CompiledGradient] | None = None
    unable = None
    if policy.remembers:
        # Compilers gain nothing on the recurrent layers' loops over time, which run eagerly.
        function, gradient = partial(head_gradient, policy, rule.compute_loss), CompiledHeads
    elif rule.reduction is not None:
        function, gradient = rule.gradient, CompiledGradient
    if lent is optimizer:
        unable = (
            f"{type(optimizer).__name__} cannot be packed (see ppo_plus.update.flat.packed; weights "
            "that were frozen for a while have taken fewer steps than the others)"
        )
    options = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "lr")}
    compiled = compilation.compiled(
        "the update",
        function,
        unable=unable,
        # Weights and buffers change in place, and in the whole rule the optimizer's state, too.
        n_mutable=3 if gradient is None else 2,
        given=[*trainable(optimizer), *rule.list_others()],
        compute_loss=rule.compute_loss,
        policy=policy,
        control=rule.control,
        max_grad_norm=rule.max_grad_norm,
        optimizer=(type(optimizer), options),
        **reads,
    )
    in_place = partial(rule.in_place, lent, coefficients)
    if compiled is None:
        return partial(in_place, rule.eager_gradient)
    if gradient is None:
        return CompiledMinibatch(rule, compiled, lent, coefficients)
    return partial(in_place, gradient(rule, compiled, lent))


class CompiledGradient:
    """Loss and gradient of a process's part of a minibatch, compiled."""

    def __init__(self, rule: UpdateRule, compiled: Compiled, lent: Optimizer):
        self._rule, self._compiled, self._vector = rule, compiled, trainable(lent)[0].data
        #: The rollout that the compiled form is bound to, and the bound form.
        self._data: Any = None
        self._bound: Any = None

    def __call__(self, coefficients: Coefficients, data: Batch, indices: th.Tensor) -> tuple[Losses, Gradient]:
        if self._data is not data:

            def eager(kl_coef: th.Tensor | None, indices: th.Tensor) -> tuple[Losses, Gradient]:
                return self._rule.eager_gradient(coefficients._replace(kl_coef=kl_coef), data, indices)

            self._bind(coefficients, data, plain=eager)
        return self._bound(coefficients.kl_coef, indices)  # type: ignore[no-any-return]

    def _bind(self, coefficients: Coefficients, data: Batch, **given: Any) -> None:
        fixed = coefficients._replace(kl_coef=None), data
        self._data, self._bound = data, self._compiled.bind(self._vector, self._rule.list_others(), *fixed, **given)


class CompiledHeads(CompiledGradient):
    """Loss and gradient of a minibatch of sequences: the encoder eager, the heads and the loss compiled.

    The parameters are those of :class:`CompiledGradient`, with the compiled form of
    :func:`~ppo_plus.update.gradient.head_gradient`.
    """

    def __call__(self, coefficients: Coefficients, data: Batch, indices: th.Tensor) -> tuple[Losses, Gradient]:
        # The number of valid transitions decides shapes, which a compiled form has fixed; and if compiling has failed,
        # hooks on weights must see the gradient of the weights themselves.
        if data.valid is not None or self._compiled.failure is not None:
            return self._rule.eager_gradient(coefficients, data, indices)
        if self._data is not data:
            self._bind(coefficients, data)

        def head(features: Features) -> tuple[Losses, Gradient]:
            return self._bound(coefficients.kl_coef, features, indices)  # type: ignore[no-any-return]

        policy = self._rule.policy
        return gradient_by_parts(policy, head, trainable(policy.optimizer), pick(data, indices))


class CompiledMinibatch:
    """Minibatches in the compiled form of an :class:`UpdateRule`."""

    def __init__(self, rule: UpdateRule, compiled: Compiled, lent: Optimizer, coefficients: Coefficients):
        self._rule, self._compiled, self._lent, self._coefficients = rule, compiled, lent, coefficients
        self._eager = partial(rule.in_place, lent, coefficients, rule.eager_gradient)
        self._fresh = not moments(lent)
        self._full_size = 0
        self._data: Any = None
        self._bound: Any = None

    def __call__(self, data: Batch, state: KLState, indices: th.Tensor) -> Outcome:
        if self._data is not data:
            # The trace needs a full minibatch, and the optimizer's state, which its first step may create.
            self._full_size = max(self._full_size, len(indices))
            if self._fresh or len(indices) < self._full_size:
                outcome = self._eager(data, state, indices)
                # A step that was skipped has not made the state yet.
                self._fresh = self._fresh and not bool(outcome[2][FINITE])
                return outcome
            self._bind(data)
        return self._bound(state, indices)  # type: ignore[no-any-return]

    def _bind(self, data: Batch) -> None:
        (vector,) = trainable(self._lent)
        vector.grad = None  # the compiled form leaves none
        # Only now, since a module may have replaced a buffer, or have a new one.
        fixed = vector.data, moments(self._lent), self._rule.list_others(), self._coefficients, data
        self._data, self._bound = data, self._compiled.bind(*fixed, plain=partial(self._eager, data))
