"""The update of a policy, minibatch by minibatch: a gradient (:mod:`~ppo_plus.update.gradient`), then a step along it
(:mod:`~ppo_plus.update.step`)."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch as th

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.compiled import Compiled
from ppo_plus.compiling.torch_private import after_accumulation, optimizer_step, swapped
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.carry import Features
from ppo_plus.update.batch import Batch, pick
from ppo_plus.update.flat import Weights, concatenated, trainable
from ppo_plus.update.gradient import (
    Gradient,
    LossFunction,
    gradient_by_parts,
    head_gradient,
    loss_gradient,
    others_of,
    standing_in,
)
from ppo_plus.update.parallel import Reduction, n_transitions
from ppo_plus.update.step import (
    FLAGS,
    Columns,
    OptimizerStep,
    Records,
    apply,
    functional_step,
)

#: After so many minibatches in a row with a non-finite loss or gradient, training stops.
MAX_SKIPPED = 10


class Scheduled(NamedTuple):
    """What schedules give for an update.

    :param coefficients: weights and bounds of the loss
    :param learning_rate: before the KL control's scale, 0-d
    :param target_kl: the KL control's target, 0-d; NaN without one
    """

    coefficients: Coefficients
    learning_rate: th.Tensor
    target_kl: th.Tensor

    @classmethod
    def of(cls, numbers: Mapping[str, float | None], device: th.device) -> "Scheduled":
        """The same from numbers.

        :param numbers: by name of the argument
        :param device: where they are wanted
        """
        tensors = {
            name: None if number is None else th.tensor(number, device=device) for name, number in numbers.items()
        }
        rate, target = tensors.pop("learning_rate"), tensors.pop("target_kl")
        assert rate is not None
        nowhere = th.tensor(float("nan"), device=device)
        return cls(Coefficients(**tensors), rate, nowhere if target is None else target)  # type: ignore[arg-type]


#: What one minibatch leaves: the KL control's state, and a record.
Outcome = tuple[KLState, Columns, th.Tensor]
#: One minibatch: of the rollout, the KL control's state and the rows that make it (``None``: all).
Minibatch = Callable[[Any, KLState, th.Tensor | None], Outcome]


@dataclass(frozen=True)
class Update:
    """What an update is made of.

    :param policy: the policy, with its optimizer
    :param compute_loss: the loss as a function of a batch and the coefficients
    :param control: the KL control
    :param max_grad_norm: bound on the norm of the gradient
    :param reduction: makes a minibatch of the parts that several processes have; ``None``: there is one process
    """

    policy: Any
    compute_loss: LossFunction
    control: KLControl
    max_grad_norm: float
    reduction: Reduction | None = None

    def __call__(
        self,
        vector: th.Tensor,
        moments: dict[str, th.Tensor],
        others: list[th.Tensor],
        scheduled: Scheduled,
        data: Batch,
        state: KLState,
        indices: th.Tensor | None,
    ) -> Outcome:
        """One minibatch as a pure function of tensors, the first three of which it changes in place.

        :param vector: the weights
        :param moments: the optimizer's state for them
        :param others: the policy's buffers, which its layers may change in place, and frozen weights
        :param scheduled: what schedules give
        :param data: the rollout
        :param state: the KL control's state
        :param indices: which rows of the rollout; ``None`` for all
        """
        coefficients = self._penalizing(scheduled.coefficients, state)
        losses, grads = self.part(vector, others, coefficients, data, coefficients.kl_coef, indices)
        step = functional_step(self.policy.optimizer, vector, moments)
        return self._apply(step, losses, grads, state, scheduled)

    def part(
        self,
        vector: th.Tensor,
        others: list[th.Tensor],
        coefficients: Coefficients,
        data: Batch,
        kl_coef: th.Tensor | None,
        indices: th.Tensor | None,
    ) -> tuple[Losses, Gradient]:
        """Loss and gradient of this process's part of a minibatch; a pure function of tensors.

        :param kl_coef: the coefficient that changes from one minibatch to the next; the others are those of
            :meth:`__call__`
        """
        batch = data if indices is None else pick(data, indices)
        with standing_in(self.policy, vector, others) as params:
            coefficients = coefficients._replace(kl_coef=kl_coef)
            losses, grads = loss_gradient(self.compute_loss, params, coefficients, batch)
        return losses._replace(total=losses.total.detach()), (concatenated(grads, params),)

    def heads(self, *args: Any) -> tuple[Losses, Gradient]:
        """:func:`~ppo_plus.update.gradient.head_gradient` of this policy and loss."""
        return head_gradient(self.policy, self.compute_loss, *args)

    def prepared(
        self, weights: Weights, scheduled: Scheduled, compilation: Compilation, unable: str | None = None, **reads: Any
    ) -> Minibatch:
        """Minibatches of one update: compiled if training is and they can be, otherwise :meth:`plain`.

        :param weights: the weights
        :param scheduled: what schedules give
        :param compilation: whether and what to compile
        :param unable: why they cannot be compiled; ``None``: they can, as far as is known
        :param reads: what ``compute_loss`` reads (:func:`~ppo_plus.compiling.constants.constants_of`)
        :raises CompileError: ``compile=True``, and they cannot be compiled
        """
        optimizer = self.policy.optimizer
        # Between gradient and step, other processes have their say; and encoders with memory run as they are.
        function, n_mutable, make = (
            (self.heads, 2, self.by_parts)
            if self.policy.remembers
            else (self, 3, self.compiled)
            if self.reduction is None
            else (self.part, 2, self.by_ranks)
        )
        if weights.vector is None:
            unable = (
                f"{type(optimizer).__name__} cannot be packed (see ppo_plus.update.flat.packed; weights "
                "that were frozen for a while have taken fewer steps than the others)"
            )
        options = {key: value for key, value in optimizer.param_groups[0].items() if key not in ("params", "lr")}
        compiled = compilation.compiled(
            "the update",
            function,
            unable=unable,
            n_mutable=n_mutable,
            given=[*trainable(optimizer), *others_of(self.policy)()],
            compute_loss=self.compute_loss,
            policy=self.policy,
            control=self.control,
            max_grad_norm=self.max_grad_norm,
            optimizer=(type(optimizer), options),
            **reads,
        )
        if compiled is None:
            return self.plain(weights, scheduled)
        return make(compiled, weights, scheduled)

    def plain(self, weights: Weights, scheduled: Scheduled) -> Minibatch:
        """Minibatches that change the policy and its optimizer directly; same parameters as :meth:`__call__`."""
        return self._in_place(weights, scheduled, self._whole_gradient(weights))

    def by_parts(self, compiled: Compiled, weights: Weights, scheduled: Scheduled) -> Minibatch:
        """:meth:`plain`, with the gradient behind the policy's encoder compiled.

        :param compiled: the compiled form of :meth:`heads`
        """
        whole, list_others = self._whole_gradient(weights), others_of(self.policy)
        bound: tuple[Any, Any] = (None, None)

        def differentiate(
            coefficients: Coefficients, data: Batch, indices: th.Tensor | None
        ) -> tuple[Losses, Gradient]:
            nonlocal bound
            # Which transitions are valid decides on shapes, which a compiled form has fixed; and of what cannot be
            # compiled, hooks on weights must see the gradient of the weights themselves.
            if indices is None or data.valid is not None or compiled.failure is not None:
                return whole(coefficients, data, indices)
            if bound[0] is not data:
                settled = coefficients._replace(kl_coef=None), data
                bound = data, compiled.bind(weights.vector, list_others(), *settled)

            def head(features: Features) -> tuple[Losses, Gradient]:
                return bound[1](coefficients.kl_coef, features, indices)  # type: ignore[no-any-return]

            return gradient_by_parts(self.policy, head, weights.params, pick(data, indices))

        return self._in_place(weights, scheduled, differentiate)

    def by_ranks(self, compiled: Compiled, weights: Weights, scheduled: Scheduled) -> Minibatch:
        """:meth:`plain`, with the gradient of this process's part compiled.

        :param compiled: the compiled form of :meth:`part`
        """
        whole, list_others = self._whole_gradient(weights), others_of(self.policy)
        bound: tuple[Any, Any] = (None, None)

        def differentiate(
            coefficients: Coefficients, data: Batch, indices: th.Tensor | None
        ) -> tuple[Losses, Gradient]:
            nonlocal bound
            if bound[0] is not data:
                settled = coefficients._replace(kl_coef=None), data

                def plain(kl_coef: th.Tensor | None, indices: th.Tensor | None) -> tuple[Losses, Gradient]:
                    return whole(coefficients._replace(kl_coef=kl_coef), data, indices)

                bound = data, compiled.bind(weights.vector, list_others(), *settled, plain=plain)
            return bound[1](coefficients.kl_coef, indices)  # type: ignore[no-any-return]

        return self._in_place(weights, scheduled, differentiate)

    def compiled(self, compiled: Compiled, weights: Weights, scheduled: Scheduled) -> Minibatch:
        """Minibatches in the compiled form of this function.

        :param compiled: the compiled form of :meth:`__call__`
        """
        plain = self.plain(weights, scheduled)
        list_others = others_of(self.policy)
        bound: tuple[Any, Any] = (None, None)
        fresh = not weights.moments
        full_size = 0

        def minibatch(data: Any, state: KLState, indices: th.Tensor | None) -> Outcome:
            nonlocal bound, fresh, full_size
            if bound[0] is data:
                return bound[1](state, indices)  # type: ignore[no-any-return]
            # A fresh optimizer may get its state, which is to be traced, with its first step only; and the minibatch to
            # trace is a full one, as the first is.
            size = len(data.returns) if indices is None else len(indices)
            full_size = max(full_size, size)
            if fresh or size < full_size:
                outcome = plain(data, state, indices)
                # One that was skipped has not made the state yet.
                fresh = fresh and not bool(outcome[2][FLAGS.index("finite")])
                return outcome
            for target in weights.targets:
                # The compiled form leaves none.
                target.grad = None
            # Only now, since a module may have replaced a buffer, or have a new one.
            settled = weights.vector, weights.moments, list_others(), scheduled, data
            bound = data, compiled.bind(*settled, plain=partial(plain, data))
            return bound[1](state, indices)  # type: ignore[no-any-return]

        return minibatch

    def _whole_gradient(
        self, weights: Weights
    ) -> Callable[[Coefficients, Any, th.Tensor | None], tuple[Losses, Gradient]]:
        def differentiate(coefficients: Coefficients, data: Any, indices: th.Tensor | None) -> tuple[Losses, Gradient]:
            # No name for the minibatch: images should not stay while there are gradients.
            losses, grads = loss_gradient(
                self.compute_loss, weights.params, coefficients, data if indices is None else pick(data, indices)
            )
            return losses, tuple(after_accumulation(weights.params, grads))

        return differentiate

    def _in_place(
        self,
        weights: Weights,
        scheduled: Scheduled,
        differentiate: Callable[[Coefficients, Any, th.Tensor | None], tuple[Losses, Gradient]],
    ) -> Minibatch:
        list_others = others_of(self.policy)

        def step(grads: Gradient, learning_rate: th.Tensor, applied: th.Tensor) -> None:
            optimizer_step(weights.optimizer, weights.targets, grads, learning_rate, applied)

        def minibatch(data: Any, state: KLState, indices: th.Tensor | None) -> Outcome:
            others = list_others()
            found = None
            if self.reduction is None or (n := n_transitions(data, indices)):
                # What a module puts in place of a buffer is written into the buffer, as compiled.
                with swapped(self.policy, others, others) if others else nullcontext():
                    losses, grads = differentiate(self._penalizing(scheduled.coefficients, state), data, indices)
                if weights.vector is not None and len(grads) == len(weights.params):
                    grads = (concatenated(grads, weights.params),)
                found = losses, grads
            if self.reduction is not None:
                found = self.reduction(found, weights.targets, n)
            assert found is not None
            return self._apply(step, *found, state, scheduled)

        return minibatch

    def _penalizing(self, coefficients: Coefficients, state: KLState) -> Coefficients:
        return coefficients._replace(kl_coef=state.beta) if self.control.penalizes else coefficients

    def _apply(
        self, step: OptimizerStep, losses: Losses, grads: Gradient, state: KLState, scheduled: Scheduled
    ) -> Outcome:
        rates = scheduled.learning_rate, scheduled.target_kl
        return apply(step, losses, grads, self.max_grad_norm, self.control, state, *rates)


class Skipped:
    """Counts minibatches in a row that were skipped for a non-finite loss or gradient."""

    def __init__(self) -> None:
        self.n = 0

    def count(self, finite: Iterable[bool]) -> None:
        """:raises FloatingPointError: too many in a row"""
        for flag in finite:
            self.n = 0 if flag else self.n + 1
            if self.n >= MAX_SKIPPED:
                raise FloatingPointError(
                    f"loss or gradient was not finite in {MAX_SKIPPED} minibatches in a row; the weights are those "
                    "before them. Lower learning_rate or max_grad_norm, normalize rewards and observations "
                    "(VecNormalize), or fix compute_loss"
                )


@dataclass(frozen=True)
class Progress:
    """How far an update has come.

    :param state: the KL control's state
    :param records: of all minibatches
    :param n_epochs: epochs that were begun
    :param kl: the last epoch's mean of what the control measures, 0-d
    """

    state: KLState
    records: Records
    n_epochs: int
    kl: th.Tensor


def run_epochs(
    minibatch: Minibatch,
    epochs: Iterable[Iterable[tuple[Any, th.Tensor | None]]],
    control: KLControl,
    state: KLState,
    target_kl: th.Tensor,
    skipped: Skipped,
) -> Progress:
    """Pass over a rollout until the epochs, or the KL control, end it.

    :param minibatch: makes one minibatch
    :param epochs: for each epoch its minibatches, as pairs of the rollout and the rows of it
    :param control: the KL control
    :param state: its state, running
    :param target_kl: its target, 0-d
    :param skipped: counts minibatches that were skipped
    :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
    """
    # Steps after the stop change nothing; on a GPU, asking whether it has come takes longer than making them.
    stops_early = type(control).after_minibatch is not KLControl.after_minibatch and target_kl.device.type == "cpu"
    records: list[th.Tensor] = []
    n_epochs = 0
    for epoch in epochs:
        n_epochs += 1
        n_before = len(records)
        for data, indices in epoch:
            state, columns, record = minibatch(data, state, indices)
            records.append(record)
            if stops_early and not state.running:
                break
        made = Records(columns, records[n_before:])
        skipped.count(made.finite())
        kl = made.mean(control.measure) if control.measure in made.columns else target_kl
        state = control.after_epoch(state, kl, target_kl)
        if not state.running:
            break
    return Progress(control.after_update(state, kl, target_kl), Records(columns, records), n_epochs, kl)
