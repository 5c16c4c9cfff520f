"""The gradient of a loss: of the policy's own weights, and as pure functions of other tensors.

A policy with memory may be differentiated in two parts, joined by the chain rule: its encoder eagerly, whose loops over
time no compiler outdoes, and the loss as a function of the encoder's features (:func:`head_gradient`), which can be
compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from torch import nn

from ppo_plus.compiling.torch_private import buffer_tables, gradient, swapped
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.policies import Features
from ppo_plus.update.batch import Batch, pick
from ppo_plus.update.flat import trainable, views

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
    assert batch.carry is not None
    features, _ = policy.encode(batch.observations, batch.carry.memory, batch.episode_starts)
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
