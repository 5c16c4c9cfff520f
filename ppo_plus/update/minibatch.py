"""One minibatch of an update: its transitions, the gradient of its loss, and a step along it.

A policy with memory may be differentiated in two parts, joined by the chain rule: its encoder eagerly, whose loops over
time no compiler outdoes, and the loss as a function of the encoder's features (:func:`head_gradient`), which can be
compiled. :class:`UpdateRule` puts gradient and step together, as a pure function and in place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch as th
from torch import nn
from torch.optim import Optimizer

from ppo_plus.compiling.torch_private import as_if_compiling, buffer_tables, gradient, optimizer_step, swapped
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.distributions import widest
from ppo_plus.policy.policies import Carry, Features
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map
from ppo_plus.update.flat import concatenated, new_optimizer, trainable, views

Observations = th.Tensor | dict[str, th.Tensor]


class Batch(NamedTuple):
    """A minibatch of ``B`` transitions, with the names of SB3's ``RolloutBufferSamples``.

    :param observations: tensor ``(B, ...)``, or a dict of them
    :param actions: internal actions (see :mod:`ppo_plus.policy.distributions`), float32, shape ``(B, action_dim)``
    :param old_values: the critic's predictions during the rollout, shape ``(B,)``
    :param old_log_prob: log-probability of the actions when they were taken, shape ``(B,)``
    :param advantages: shape ``(B,)``
    :param returns: targets of the critic, shape ``(B,)``
    :param old_params: parameters of the action distribution during the rollout, shape ``(B, param_dim)``; ``None`` from
        a buffer class that does not keep them
    :param masks: action masks (:mod:`ppo_plus.policy.masking`), booleans ``(B, M)``; ``None`` where there are none,
        or they are in the observations
    :param carry: with memory: what was remembered before the first step of each sequence. The transitions are then
        sequences of equal length, one after another; ``None`` without memory
    :param episode_starts: with memory: which observations begin an episode, shape ``(B,)``
    :param valid: which transitions to learn from, booleans ``(B,)``; ``None``: all. The others only hand on the memory
    :param normalized: advantages normalized within the minibatch that several processes have parts of, shape ``(B,)``;
        ``None``: there is one process
    :param features: what the policy's encoder makes of the observations, where it has run already; else ``None``
    """

    observations: Observations
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    old_params: th.Tensor | None = None
    masks: th.Tensor | None = None
    carry: Carry | None = None
    episode_starts: th.Tensor | None = None
    valid: th.Tensor | None = None
    normalized: th.Tensor | None = None
    features: Features | None = None

    def only_valid(self) -> "Batch":
        """The valid transitions alone, no longer in sequences."""
        assert self.valid is not None
        return pick(self._replace(carry=None, valid=None), self.valid.nonzero().squeeze(1))


def pick(data: Batch, indices: th.Tensor) -> Batch:
    """The transitions of a batch with these indices; with memory these are those of whole sequences."""
    transitions: Batch = rows(data._replace(carry=None), indices)
    if data.carry is None:
        return transitions
    length = steps_per_sequence(data)
    return transitions._replace(carry=rows(data.carry, indices[::length] // length))


def steps_per_sequence(data: Batch) -> int:
    """How many transitions of a batch belong together: with memory those of a sequence, else each is one by itself."""
    return 1 if data.carry is None else len(data.returns) // len(tree_leaves(data.carry)[0])


def n_transitions(data: Batch, indices: th.Tensor) -> int:
    """How many transitions of a minibatch are learned from."""
    return len(indices) if data.valid is None else int(data.valid[indices].sum())


def read(data: Any) -> Any:
    """Any nesting of tensors on the CPU, from a device in one copy. Integers up to 2**53 stay exact."""
    leaves, structure = tree_flatten(data)
    if all(leaf.device.type == "cpu" for leaf in leaves):
        return data
    numbers = th.cat([leaf.reshape(-1).to(widest(leaf.device)) for leaf in leaves]).cpu()
    parts = th.split(numbers, [leaf.numel() for leaf in leaves])
    return structure.unflatten(part.view(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True))


def rows(data: Any, indices: th.Tensor) -> Any:
    """The rows with these indices of any nesting of tensors."""
    return tree_map(lambda tensor: tensor.index_select(0, indices), data)


#: The parts of a gradient; ``None`` for those that the loss does not reach.
Gradient = tuple[th.Tensor | None, ...]
LossFunction = Callable[[Batch, Coefficients], Losses]


def loss_gradient(
    compute_loss: LossFunction, params: list[Any], coefficients: Coefficients, batch: Batch
) -> tuple[Losses, Gradient]:
    """The loss of one minibatch and its gradient.

    :param compute_loss: the loss as a function of a batch and the coefficients
    :raises TypeError: what ``compute_loss`` returned is something else than ``Losses``
    """
    losses = compute_loss(batch, coefficients)
    if not isinstance(losses, Losses):
        raise TypeError(f"compute_loss returned {type(losses).__name__}: return Losses(total, diagnostics)")
    return losses, gradient(losses.total, params)


def head_gradient(
    policy: nn.Module,
    compute_loss: LossFunction,
    vector: th.Tensor,
    others: list[th.Tensor],
    coefficients: Coefficients,
    data: Batch,
    kl_coef: th.Tensor | None,
    features: Features,
    indices: th.Tensor,
) -> tuple[Losses, Gradient]:
    """The loss of one minibatch, computed by the policy's heads with weights from ``vector`` and ``others``
    (:func:`others_of`), and its gradient down to the features; a pure function of tensors.

    :return: the loss, and its gradient with respect to each weight (``None`` where the loss reaches it only through
        the features), then with respect to the features
    """
    features = Features(*(part.detach().requires_grad_() for part in features))
    batch = pick(data, indices)._replace(features=features)
    with standing_in(policy, vector, others) as params:
        targets = [*params, *features]
        losses, grads = loss_gradient(compute_loss, targets, coefficients._replace(kl_coef=kl_coef), batch)
    return losses._replace(total=losses.total.detach()), grads


def gradient_by_parts(
    policy: Any,
    head: Callable[[Features], tuple[Losses, Gradient]],
    params: list[nn.Parameter],
    batch: Batch,
) -> tuple[Losses, Gradient]:
    r""":func:`loss_gradient` by the chain rule, :math:`\partial L = \partial L|_f + \partial_f L \cdot \partial f`.

    :param head: the loss and its gradient as a function of the features, as :func:`head_gradient`
    """
    features = policy.encode_batch(batch)
    losses, grads = head(Features(*(part.detach() for part in features)))
    # The critic sends no gradient into layers that it shares; layers may be frozen; a loss may be of the critic alone.
    pairs = zip(features, grads[len(params) :], strict=True)
    reached = [pair for pair in pairs if pair[0].requires_grad and pair[1] is not None]
    if not reached:
        return losses, grads[: len(params)]
    outputs, inflow = zip(*reached, strict=True)
    through = th.autograd.grad(outputs, params, inflow, allow_unused=True)
    return losses, tuple(map(_sum, grads, through))


def others_of(policy: nn.Module) -> Callable[[], list[th.Tensor]]:
    """A function that lists what a policy computes with besides the weights that are learned: its buffers, which its
    layers may change in place or replace, and frozen weights."""
    # Asking the modules' own tables takes a tenth of a walk through the policy.
    tables = buffer_tables(policy)
    frozen = [weight for weight in policy.parameters() if not weight.requires_grad]
    return lambda: [*(buffer for table in tables for buffer in table.values() if buffer is not None), *frozen]


@contextmanager
def standing_in(policy: Any, vector: th.Tensor, others: list[th.Tensor]) -> Iterator[list[th.Tensor]]:
    """Let a policy compute with the weights in ``vector``, and with ``others``; yields the weights as parameters."""
    own = trainable(policy.optimizer)
    params = [part.detach().requires_grad_() for part in views(vector, own)]
    with swapped(policy, [*own, *others_of(policy)()], [*params, *others]):
        yield params


def _sum(a: th.Tensor | None, b: th.Tensor | None) -> th.Tensor | None:
    """The sum of gradients, ``None`` being 0."""
    return b if a is None else a if b is None else a + b


#: What the record of a minibatch begins with: whether its numbers were finite, and whether it counts in the averages
#: (it does until the one, included, at which the KL control stops the update).
FINITE, COUNTED = 0, 1

#: Steps an optimizer: takes the gradient, the learning rate (0-d) and whether the step is applied (0-d).
OptimizerStep = Callable[[Gradient, th.Tensor, th.Tensor], None]


def clip_factor(grads: Gradient, max_norm: float) -> tuple[th.Tensor, th.Tensor]:
    r"""What to multiply a gradient by so that its norm is at most :math:`c`: :math:`\min(1, c / (\|g\| + 10^{-6}))`.

    :return: the norm :math:`\|g\|` and the factor, both 0-d
    """
    norms = [th.linalg.vector_norm(grad) for grad in grads if grad is not None]
    norm = norms[0] if len(norms) == 1 else th.linalg.vector_norm(th.stack(norms))
    return norm, (max_norm / (norm + 1e-6)).clamp(max=1.0)


def apply(
    optimizer_step: OptimizerStep,
    losses: Losses,
    grads: Gradient,
    max_grad_norm: float,
    control: KLControl,
    state: KLState,
    coefficients: Coefficients,
) -> tuple[KLState, tuple[str, ...], th.Tensor]:
    """One step along a gradient, unless it is not finite or the KL control has stopped the update.

    :param grads: in one vector where it stands alone (it is changed then)
    :return: the control's next state, the names of the diagnostics, and a record of the minibatch: two flags
        (:data:`FINITE`, :data:`COUNTED`), then the diagnostics
    :raises ValueError: a diagnostic is missing or not 0-d
    """
    norm, factor = clip_factor(grads, max_grad_norm)
    if len(grads) == 1 and grads[0] is not None and grads[0].is_contiguous():
        grads = (grads[0].mul_(factor),)
    else:
        # New tensors: torch may have spread one number over many weights.
        grads = tuple(None if grad is None else grad * factor for grad in grads)
    total = losses.total.detach()
    finite = counted = applied = th.isfinite(total + norm)
    next_state = state
    if type(control) is not KLControl:
        counted = finite & state.running
        next_state = control.after_minibatch(state, _measured(control, losses), coefficients.target_kl)
        if next_state is not state:
            next_state = KLState(*(th.where(counted, new, old) for new, old in zip(next_state, state, strict=True)))
        applied = counted & next_state.running
    optimizer_step(grads, next_state.scaled(coefficients.learning_rate), applied)
    diagnostics = {"loss": total, **losses.diagnostics, "grad_norm": norm}
    try:
        record = th.stack([finite.to(total.dtype), counted.to(total.dtype), *diagnostics.values()])
    except (TypeError, RuntimeError):
        wrong = [name for name, value in losses.diagnostics.items() if getattr(value, "shape", None) != ()]
        raise ValueError(f"compute_loss returned diagnostics {wrong} that are not 0-d tensors: return means") from None
    return next_state, tuple(diagnostics), record


def _measured(control: KLControl, losses: Losses) -> th.Tensor:
    try:
        return losses.diagnostics[control.measure]
    except KeyError:
        raise ValueError(
            f"kl_control={control!r} reads the diagnostic {control.measure!r}, but compute_loss returned "
            f"only {sorted(losses.diagnostics)}: return it too"
        ) from None


def functional_step(like: Optimizer, vector: th.Tensor, moments: dict[str, th.Tensor]) -> OptimizerStep:
    r"""The step of an optimizer as a function of tensors, which it changes in place where the step is applied.

    The optimizer's own step is made on copies with a learning rate of 1 and scaled, :math:`w + \eta (w_1 - w)`, which
    is the same for elementwise optimizers and lets the learning rate be a tensor in all of them.
    """

    def step(grads: Gradient, learning_rate: th.Tensor, applied: th.Tensor) -> None:
        stepped = vector.detach().clone().requires_grad_()
        (stepped.grad,) = grads
        new_moments = {name: moment.clone() for name, moment in moments.items()}
        optimizer = new_optimizer(like, stepped)
        group = optimizer.param_groups[0]
        options = {key: value for key, value in like.param_groups[0].items() if key != "params"}
        group.update(options | {"lr": 1.0} | {key: False for key in ("foreach", "fused") if key in group})
        if "capturable" in group:
            group["capturable"] = True
        optimizer.state[stepped] = new_moments
        with as_if_compiling():
            optimizer.step()
        new_vector = vector + learning_rate * (stepped.detach() - vector)
        vector.copy_(th.where(applied, new_vector, vector))
        for name, moment in moments.items():
            moment.copy_(th.where(applied, new_moments[name], moment))

    return step


def means(names: Sequence[str], table: th.Tensor) -> dict[str, th.Tensor]:
    """The mean of each diagnostic in a table of records over the minibatches that count, 0-d (NaN if there is none)."""
    counted = table[table[:, COUNTED] > 0, COUNTED + 1 :]
    return dict(zip(names, counted.mean(dim=0), strict=True))


def names_not_finite(names: Sequence[str], record: th.Tensor) -> str:
    """The diagnostics of a minibatch that are not finite."""
    numbers = record[COUNTED + 1 :].isfinite().tolist()
    return ", ".join(name for name, is_finite in zip(names, numbers, strict=True) if not is_finite)


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
        """Lists the policy's buffers and frozen weights (:func:`~ppo_plus.update.minibatch.others_of`)."""
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
