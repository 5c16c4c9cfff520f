"""One minibatch of an update: its transitions, the gradient of its loss, and a step of all weights as one vector."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn, optim
from torch.optim import Optimizer

from ppo_plus.compiling.constants import Reads
from ppo_plus.compiling.torch_private import as_if_compiling, autograd_grad, has_step_hooks, swapped
from ppo_plus.formulas.kl_control import KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.policy.normalization import RunningMoments
from ppo_plus.policy.policies import ActorCriticPolicy, Carry, Features
from ppo_plus.policy.streams import Streams
from ppo_plus.trees import to_device, tree_flatten, tree_leaves, tree_map, widest

Observations = th.Tensor | dict[str, th.Tensor]


class Batch(NamedTuple):
    """``B`` transitions of a minibatch or of a whole rollout, with the names of SB3's ``RolloutBufferSamples``.

    :param observations: tensor ``(B, ...)``, or a dict of them
    :param actions: internal actions (see :mod:`ppo_plus.policy.distributions`), float32, shape ``(B, action_dim)``
    :param old_values: the critic's predictions during the rollout, shape ``(B,)``; with ``K - 1`` streams
        (:class:`ppo_plus.Stream`) ``(B, K)``, those of the reward first
    :param old_log_prob: log-probability of the actions when they were taken, shape ``(B,)``
    :param advantages: shape ``(B,)``; with streams, those of all of them combined
    :param returns: targets of the critic, shaped like ``old_values``
    :param old_params: parameters of the action distribution during the rollout, ``(B, param_dim)``; ``None``: unknown
    :param masks: action masks (:mod:`ppo_plus.policy.masking`), booleans ``(B, M)``; ``None`` where there are none
    :param carry: with memory: what was remembered before the first step of each sequence. The transitions are then
        sequences of equal length, one after another; ``None`` without memory
    :param episode_starts: with memory: which observations begin an episode, shape ``(B,)``
    :param valid: which transitions to learn from, booleans ``(B,)``; ``None``: all. The others only hand on the memory
    :param normalized: advantages normalized within a minibatch of several processes, shape ``(B,)``, or ``None``
    :param features: what the policy's encoder makes of the observations, where it has run already; else ``None``
    :param next_observations: what followed, like ``observations``: an episode's final observation where it has ended.
        ``None`` unless streams are computed and learn
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
    next_observations: Observations | None = None

    def only_valid(self) -> "Batch":
        """The valid transitions alone, no longer in sequences."""
        assert self.valid is not None
        return pick(self._replace(carry=None, valid=None), self.valid.nonzero().squeeze(1))


def pick(rollout: Batch, indices: th.Tensor) -> Batch:
    """The transitions of a rollout with these indices; with memory these are those of whole sequences."""
    transitions: Batch = rows(rollout._replace(carry=None), indices)
    if rollout.carry is None:
        return transitions
    length = steps_per_sequence(rollout)
    return transitions._replace(carry=rows(rollout.carry, indices[::length] // length))


def steps_per_sequence(rollout: Batch) -> int:
    """How many transitions in a row are a sequence: 1 without memory."""
    return 1 if rollout.carry is None else len(rollout.returns) // len(tree_leaves(rollout.carry)[0])


def n_transitions(rollout: Batch, indices: th.Tensor) -> int:
    """How many transitions of a minibatch are learned from."""
    return len(indices) if rollout.valid is None else int(rollout.valid[indices].sum())


def read(tree: Any) -> Any:
    """Any nesting of tensors on the CPU, from a device in one copy. Integers up to 2**53 stay exact."""
    leaves, structure = tree_flatten(tree)
    if all(leaf.device.type == "cpu" for leaf in leaves):
        return tree
    numbers = th.cat([leaf.reshape(-1).to(widest(leaf.device)) for leaf in leaves]).cpu()
    parts = th.split(numbers, [leaf.numel() for leaf in leaves])
    return structure.unflatten(part.view(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True))


def rows(tree: Any, indices: th.Tensor) -> Any:
    """The rows with these indices of any nesting of tensors; numbers stay."""
    return tree_map(lambda leaf: leaf.index_select(0, indices) if isinstance(leaf, th.Tensor) else leaf, tree)


# Flat vectors: during ``train()``, parameters, gradients and optimizer state stand in one vector each. Norm, clipping,
# optimizer (and, across processes, the reduction) are then one operation each, whatever the number of layers.

#: Optimizers with a fused kernel on CPUs and GPUs; Adagrad's is for CPUs.
FUSED = (optim.Adam, optim.AdamW, optim.SGD)
FUSED_ON_CPU = (*FUSED, optim.Adagrad)
#: Optimizers that treat every weight by itself, so that all weights may stand in one vector.
ELEMENTWISE = (*FUSED_ON_CPU, optim.RMSprop, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, RMSpropTFLike)

#: Entries of optimizer states that count steps, one per parameter.
PER_PARAMETER = ("step", "mu_product")


def trainable(optimizer: Optimizer) -> list[nn.Parameter]:
    """What an optimizer works on, in its order, without what is frozen."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def moments(flat: Optimizer) -> dict[str, th.Tensor]:
    """The state of an optimizer for the vector that it works on, as tensors; empty before the first step."""
    (vector,) = trainable(flat)
    state: dict[str, th.Tensor] = flat.state[vector]
    for name, value in state.items():
        if not isinstance(value, th.Tensor):
            state[name] = th.tensor(float(value), device=vector.device)
    return state


@contextmanager
def packed(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Yield an optimizer whose only parameter is a vector of all weights that ``optimizer`` works on.

    Inside, the weights are views of that vector; after it (also after an exception) values and state are back where
    they were. An optimizer that cannot be packed is yielded itself: one that is not elementwise, has several parameter
    groups or step hooks, or whose state is not one per weight.

    A parameter that the loss does not reach has a zero gradient here where torch would have none. The two are the same
    for one that was never reached, without weight decay; otherwise its momentum and weight decay still apply here.

    :raises ValueError: all weights are frozen
    """
    params = trainable(optimizer)
    if not params:
        raise ValueError("all weights of the policy are frozen: set requires_grad=True for those that are to learn")
    if not _packable(optimizer, params):
        optimizer.zero_grad()  # its step would use what frozen weights still have
        yield optimizer
        return
    vector = nn.Parameter(th.cat([p.detach().reshape(-1) for p in params]))
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    fused = FUSED_ON_CPU if vector.device.type == "cpu" else FUSED
    if isinstance(optimizer, fused) and not any(map(options.get, ("foreach", "capturable", "differentiable"))):
        options["fused"] = True
    flat: Optimizer = type(optimizer)([vector])  # type: ignore[call-arg]
    flat.param_groups[0].update(options)
    # A fused kernel needs the counts of steps beside the weights.
    beside = options.get("fused") or options.get("capturable")
    state = _pack_state(optimizer, params, vector.device if beside else th.device("cpu"))
    if state:
        flat.state[vector] = state
    for p in params:
        # The state is twice as large as the weights: it is kept in one place at a time.
        optimizer.state.pop(p, None)
    own = [p.data for p in params]
    for p, part in zip(params, views(vector.data, params), strict=True):
        p.data = part
    try:
        yield flat
    finally:
        _unpack_state(flat, vector, optimizer, params)
        grads = [None] * len(params) if vector.grad is None else views(vector.grad, params)
        for p, data, grad in zip(params, own, grads, strict=True):
            p.data, p.grad = data.copy_(p.data), grad


def _packable(optimizer: Optimizer, params: list[nn.Parameter]) -> bool:
    elementwise = type(optimizer) in ELEMENTWISE and len(optimizer.param_groups) == 1 and not has_step_hooks(optimizer)
    if not elementwise or any(p.dtype != th.float32 or p.device != params[0].device for p in params):
        return False
    states = [optimizer.state.get(p, {}) for p in params]
    return all(
        state.keys() == states[0].keys()
        and all(
            is_elementwise(name, value, p) or th.equal(*map(th.as_tensor, (value, states[0][name])))
            for name, value in state.items()
        )
        for state, p in zip(states, params, strict=True)
    )


def is_elementwise(name: str, value: Any, p: th.Tensor) -> bool:
    """Whether an entry of a parameter's optimizer state is one number per weight."""
    return name not in PER_PARAMETER and isinstance(value, th.Tensor) and value.shape == p.shape


def _pack_state(optimizer: Optimizer, params: list[nn.Parameter], device: th.device) -> dict[str, th.Tensor]:
    states = [optimizer.state.get(p, {}) for p in params]
    return {
        name: th.cat([state[name].reshape(-1) for state in states])
        if is_elementwise(name, value, params[0])
        else to_device(th.as_tensor(value, dtype=th.float32).clone(), device)
        for name, value in states[0].items()
    }


def _unpack_state(flat: Optimizer, vector: nn.Parameter, optimizer: Optimizer, params: list[nn.Parameter]) -> None:
    beside = any(optimizer.param_groups[0].get(key) for key in ("capturable", "fused"))
    for name, value in flat.state[vector].items():
        if is_elementwise(name, value, vector):
            parts: list[Any] = [part.clone() for part in views(value, params)]
        elif isinstance(value, th.Tensor):
            value = value if beside else value.cpu()
            parts = [value.clone() for _ in params]
        else:
            parts = [value] * len(params)
        for p, part in zip(params, parts, strict=True):
            optimizer.state[p][name] = part


def views(vector: th.Tensor, params: "list[Any]") -> list[th.Tensor]:
    """Parts of a vector in the shapes of parameters, one after another."""
    return [part.view(p.shape) for part, p in zip(th.split(vector, [p.numel() for p in params]), params, strict=True)]


def concatenated(grads: Sequence[th.Tensor | None], params: "list[Any]") -> th.Tensor:
    """A gradient as one vector, with zeros for what the loss does not reach."""
    return th.cat([(th.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, params, strict=True)])


#: The parts of a gradient; ``None`` for those that the loss does not reach.
Gradient = tuple[th.Tensor | None, ...]
#: The loss of a minibatch, and its gradient.
LossAndGradient = tuple[Losses, Gradient]
#: Steps an optimizer: takes the gradient, the learning rate (0-d) and whether the step is applied (0-d).
OptimizerStep = Callable[[Gradient, th.Tensor, th.Tensor], None]
#: What a minibatch returns: the KL control's next state, the names of the diagnostics, and a record: two flags
#: (:data:`FINITE`, :data:`COUNTED`), then the diagnostics.
Outcome = tuple[KLState, tuple[str, ...], th.Tensor]

#: What a record begins with: whether loss and gradient were finite, and whether the minibatch counts in the averages
#: (it does until the one, included, at which the KL control stops the update).
FINITE, COUNTED = 0, 1


class TrainState(NamedTuple):
    """The tensors that a policy computes with, and its optimizer's: a minibatch changes them in place."""

    vector: th.Tensor  # the weights that are learned
    others: list[th.Tensor]  # buffers and frozen weights (:meth:`UpdateRule.list_others`)
    moments: dict[str, th.Tensor]  # the optimizer's state, where the step is a part of the function


@dataclass(frozen=True)
class UpdateRule:
    """How a minibatch changes a policy: by a step along the gradient of its loss.

    Called, it is a function of tensors, which can be compiled: it reads weights and buffers from its first argument, a
    :class:`TrainState`, not from the policy, and changes nothing but that, in place. So does :meth:`gradient`, which
    changes buffers alone.
    """

    policy: ActorCriticPolicy  # with its optimizer
    compute_loss: Callable[[Batch, Coefficients], Losses]
    control: KLControl
    max_grad_norm: float  # bound on the norm of the gradient
    #: Averages losses and gradients over processes: takes those of this process (``None``: it has no transitions), the
    #: tensors that the gradient belongs to, and the number of transitions. ``None``: there is one process.
    reduction: Callable[[LossAndGradient | None, list[Any], int], LossAndGradient] | None = None
    #: What ``compute_loss`` reads besides the policy.
    reads: Reads = Reads()
    #: Adds what the policy's streams learn (:class:`ppo_plus.Stream`); ``None``: they do not learn.
    streams: Streams | None = None

    def __call__(
        self, train_state: TrainState, coefficients: Coefficients, rollout: Batch, state: KLState, indices: th.Tensor
    ) -> Outcome:
        """One minibatch, of the rows of a rollout with these indices."""
        losses, gradient = self.gradient(train_state, coefficients, rollout, state, indices)
        gradient = (concatenated(gradient, views(train_state.vector, trainable(self.policy.optimizer))),)
        step = partial(functional_step, self.policy.optimizer, train_state)
        return self.apply(step, losses, gradient, state, coefficients)

    def gradient(
        self,
        train_state: TrainState,
        coefficients: Coefficients,
        rollout: Batch,
        state: KLState,
        indices: th.Tensor,
        features: Features | None = None,
    ) -> LossAndGradient:
        """The loss of a minibatch and its gradient. With ``features``, the encoder does not run here, and the gradient
        has the parts of these after those of the weights."""
        batch = pick(rollout, indices)
        if features is not None:
            features = Features(*(part.detach().requires_grad_() for part in features))
            batch = batch._replace(features=features)
        own = trainable(self.policy.optimizer)
        params = [part.detach().requires_grad_() for part in views(train_state.vector, own)]
        with swapped(self.policy, [*own, *self.list_others()], [*params, *train_state.others]):
            losses, gradient = self.differentiate([*params, *(features or ())], coefficients, state, batch)
        return losses._replace(total=losses.total.detach()), gradient

    def own_gradient(
        self, coefficients: Coefficients, rollout: Batch, state: KLState, indices: th.Tensor
    ) -> LossAndGradient:
        """:meth:`gradient` with the policy's own weights."""
        with self.keeping_buffers():
            # Not assigned to a variable, so that images are freed before the gradient is computed.
            return self.differentiate(trainable(self.policy.optimizer), coefficients, state, pick(rollout, indices))

    def gradient_by_parts(self, head: Callable[[Features], LossAndGradient], batch: Batch) -> LossAndGradient:
        r""":meth:`own_gradient` by the chain rule, :math:`\partial L = \partial L|_f + \partial_f L \cdot \partial f`:
        through the encoder eagerly, such as torch's recurrent layers, whose loops over time no compiler outdoes.

        :param head: the loss and its gradient as a function of the features, as :meth:`gradient`
        """
        params = trainable(self.policy.optimizer)
        with self.keeping_buffers():
            features = self.policy.encode_batch(batch)
            losses, gradient = head(Features(*(part.detach() for part in features)))
            # Layers may be frozen; the critic sends no gradient into shared ones; a loss may be of the critic alone.
            pairs = zip(features, gradient[len(params) :], strict=True)
            reached = [pair for pair in pairs if pair[0].requires_grad and pair[1] is not None]
            if not reached:
                return losses, gradient[: len(params)]
            outputs, inflow = zip(*reached, strict=True)
            through = th.autograd.grad(outputs, params, inflow, allow_unused=True)
        both = zip(gradient, through, strict=False)  # of which None is 0
        return losses, tuple(b if a is None else a if b is None else a + b for a, b in both)

    def differentiate(
        self, inputs: list[Any], coefficients: Coefficients, state: KLState, batch: Batch
    ) -> LossAndGradient:
        """The loss of a minibatch, and its gradient with respect to ``inputs``."""
        if self.control.penalizes:
            coefficients = coefficients._replace(kl_coef=state.beta)
        losses = self.compute_loss(batch, coefficients)
        if self.streams is not None:
            losses = self.streams.learn(losses, batch)
        return losses, autograd_grad(losses.total, inputs)

    def apply(
        self, step: OptimizerStep, losses: Losses, gradient: Gradient, state: KLState, coefficients: Coefficients
    ) -> Outcome:
        """A step along a gradient, unless it is not finite or the KL control has stopped the update."""
        control = self.control
        norm, factor = clip_factor(gradient, self.max_grad_norm)
        gradient = tuple(None if part is None else part * factor for part in gradient)
        total = losses.total.detach()
        finite = counted = applied = th.isfinite(total + norm)
        next_state = state
        if control.controls:
            counted = finite & state.running
            measured = losses.measured(control.measure)
            next_state = control.after_minibatch(state, measured, coefficients.target_kl)
            if next_state is not state:
                pairs = zip(next_state, state, strict=True)
                next_state = KLState(*(th.where(counted, new, old) for new, old in pairs))
            applied = counted & next_state.running
        step(gradient, coefficients.learning_rate * next_state.lr_scale, applied)
        diagnostics = {"loss": total, **losses.diagnostics, "grad_norm": norm}
        record = th.stack([finite.to(total.dtype), counted.to(total.dtype), *diagnostics.values()])
        return next_state, tuple(diagnostics), record

    def list_others(self) -> list[th.Tensor]:
        """The policy's buffers, which its layers may change in place or replace, and its frozen weights."""
        return [*self.policy.buffers(), *(weight for weight in self.policy.parameters() if not weight.requires_grad)]

    def keeping_buffers(self) -> AbstractContextManager[Any]:
        """In the block, what a module assigns in place of a buffer is written into it, as in compiled code."""
        others = self.list_others() if self.may_change_buffers else []
        return swapped(self.policy, others, others) if others else nullcontext()

    @cached_property
    def may_change_buffers(self) -> bool:
        """Whether layers may change buffers in a minibatch; moments of normalization change between rollouts only."""
        layers = (module for module in self.policy.modules() if not isinstance(module, RunningMoments))
        return any(buffer is not None for layer in layers for buffer in layer.buffers(recurse=False))


def clip_factor(gradient: Gradient, max_norm: float) -> tuple[th.Tensor, th.Tensor]:
    r"""What to multiply a gradient by so that its norm is at most :math:`c`: :math:`\min(1, c / (\|g\| + 10^{-6}))`.

    :return: the norm :math:`\|g\|` and the factor, both 0-d
    """
    norms = [th.linalg.vector_norm(part) for part in gradient if part is not None]
    norm = norms[0] if len(norms) == 1 else th.linalg.vector_norm(th.stack(norms))
    return norm, (max_norm / (norm + 1e-6)).clamp(max=1.0)


def functional_step(
    like: Optimizer, train_state: TrainState, gradient: Gradient, learning_rate: th.Tensor, applied: th.Tensor
) -> None:
    r"""The step of an optimizer as a function of tensors, which it changes in place where the step is applied.

    The optimizer's own step is made on copies with a learning rate of 1 and scaled, :math:`w + \eta (w_1 - w)`, which
    is the same for elementwise optimizers and lets the learning rate be a tensor in all of them.
    """
    vector, _, moments = train_state
    stepped = vector.detach().clone().requires_grad_()
    (stepped.grad,) = gradient
    new_moments = {name: moment.clone() for name, moment in moments.items()}
    optimizer: Optimizer = type(like)([stepped])  # type: ignore[call-arg]
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


def means(names: Sequence[str], table: th.Tensor) -> dict[str, th.Tensor]:
    """The mean of each diagnostic in a table of records over the minibatches that count, 0-d (NaN if there is none)."""
    counted = table[table[:, COUNTED] > 0, COUNTED + 1 :]
    return dict(zip(names, counted.mean(dim=0), strict=True))


def names_not_finite(names: Sequence[str], record: th.Tensor) -> str:
    """The diagnostics of a minibatch that are not finite."""
    numbers = record[COUNTED + 1 :].isfinite().tolist()
    return ", ".join(name for name, is_finite in zip(names, numbers, strict=True) if not is_finite)
