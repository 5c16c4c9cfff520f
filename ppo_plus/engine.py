"""One gradient step as a pure function, and the flat vectors that make it cheap.

While ``train()`` runs, parameters, gradients and optimizer state stand in flat vectors: norm, clipping and optimizer
are then one operation each, whatever the number of layers. Outside of it, policy and optimizer are ordinary torch
objects.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn, optim
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

from ppo_plus.buffers import pick
from ppo_plus.fused import Fused, as_if_compiling, swapped
from ppo_plus.kernels import gradient, optimizer_step
from ppo_plus.kl_control import KLControl, KLState
from ppo_plus.losses import Coefficients, Losses

#: Optimizers that treat every weight by itself, so that all of them may stand in one vector.
ELEMENTWISE = (
    optim.Adam,
    optim.AdamW,
    optim.SGD,
    optim.RMSprop,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    RMSpropTFLike,
)
#: Those of them with a fused kernel on CPU and GPU.
FUSED = (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad)

#: Entries of optimizer states that count steps, one per parameter.
PER_PARAMETER = ("step", "mu_product")

#: What the record of a minibatch begins with: whether its numbers were finite, and whether it counts in the averages
#: (it does until the one, included, at which the KL control stops the update).
FLAGS = ("finite", "counted")


#: The parts of a gradient; ``None`` for those that the loss does not reach.
Gradient = tuple[th.Tensor | None, ...]


@dataclass
class Weights:
    """A policy's parameters and their optimizer, as lent by :func:`packed`.

    :param params: the parameters
    :param optimizer: the optimizer to step
    :param vector: the vector that ``params`` are views of and that ``optimizer`` works on; ``None``: not packed
    """

    params: list[nn.Parameter]
    optimizer: Optimizer
    vector: th.Tensor | None = None

    @property
    def targets(self) -> list[nn.Parameter]:
        """What the optimizer works on: the vector as one parameter, or ``params``."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    @property
    def moments(self) -> dict[str, th.Tensor]:
        """The optimizer's state for the vector, as tensors; empty before the first step."""
        if self.vector is None:
            return {}
        state = self.optimizer.state[self.targets[0]]
        for name, value in state.items():
            if not isinstance(value, th.Tensor):
                state[name] = th.tensor(float(value), device=self.vector.device)
        return state


class Update:
    """Loss, gradient, KL control and optimizer step on one minibatch.

    It is a pure function but for the vectors it is given, which it changes in place. Given the live vector, it works
    on the policy and its optimizer directly; given any other, it lets the policy compute with that one.

    :param policy: the policy
    :param compute_loss: the loss as a function of a batch and the coefficients
    :param control: the KL control
    :param max_grad_norm: bound on the norm of the gradient
    """

    #: How many arguments of :attr:`compilable` it changes in place.
    n_mutable = 3
    #: The policy's weights; set anew for each ``train()``.
    weights: Weights
    #: What the policy computes with besides these: its buffers, which its layers may change, and frozen weights.
    others: list[th.Tensor]

    def __init__(
        self,
        policy: nn.Module,
        compute_loss: Callable[[Any, Coefficients], Losses],
        control: KLControl,
        max_grad_norm: float,
    ):
        self.policy = policy
        self.compute_loss = compute_loss
        self.control = control
        self.max_grad_norm = max_grad_norm
        #: Names of the numbers in a record, known after the first call.
        self.names: tuple[str, ...] = ()

    def __call__(
        self,
        vector: th.Tensor | None,
        moments: dict[str, th.Tensor],
        others: list[th.Tensor],
        coefficients: Coefficients,
        learning_rate: th.Tensor,
        target_kl: th.Tensor,
        data: Any,
        state: KLState,
        indices: th.Tensor | None,
    ) -> tuple[KLState, th.Tensor]:
        """One minibatch.

        :param vector: the weights, changed in place; ``None`` where they are not packed
        :param moments: the optimizer's state for them, changed in place
        :param others: the policy's buffers, which its layers may change in place, and frozen weights
        :param coefficients: weights and bounds of the loss
        :param learning_rate: before the control's scale, 0-d
        :param target_kl: the control's target, 0-d
        :param data: the rollout as a ``Batch``
        :param state: the KL control's state
        :param indices: which rows of the rollout; ``None`` for all
        :return: the control's next state, and a record: :data:`FLAGS` and diagnostics, in the order of :attr:`names`
        """
        if self.control.penalizes:
            coefficients = coefficients._replace(kl_coef=state.beta)
        with self.standing_in(vector, others) as params:
            losses, grads = self.differentiate(params, coefficients, data, indices)
        if vector is not None:
            grads = (_concatenated(grads, params),)
        norm, factor = clip_factor(grads, self.max_grad_norm)
        # In one vector the gradient is ours to change; torch may have spread one number over many weights else.
        grads = (grads[0].mul_(factor),) if vector is not None else _scaled(grads, factor)  # type: ignore[union-attr]

        total = losses.total.detach()
        finite = counted = applied = th.isfinite(total + norm)
        next_state = state
        if type(self.control) is not KLControl:
            counted = finite & state.running
            next_state = self.control.after_minibatch(state, self._measured(losses), target_kl)
            if next_state is not state:
                next_state = KLState(*(th.where(counted, new, old) for new, old in zip(next_state, state, strict=True)))
            applied = counted & next_state.running
        learning_rate = learning_rate * next_state.lr_scale
        if vector is self.weights.vector:
            optimizer_step(self.weights.optimizer, self.weights.targets, grads, learning_rate, applied)
        else:
            assert vector is not None and grads[0] is not None
            self._functional_step(vector, moments, grads[0], learning_rate, applied)

        self.names = (*FLAGS, "loss", *losses.diagnostics, "grad_norm")
        record = (finite.to(total.dtype), counted.to(total.dtype), total, *losses.diagnostics.values(), norm)
        try:
            return next_state, th.stack(record)
        except (TypeError, RuntimeError):
            wrong = [name for name, value in losses.diagnostics.items() if getattr(value, "shape", None) != ()]
            raise ValueError(
                f"compute_loss returned diagnostics {wrong} that are not 0-d tensors: return means"
            ) from None

    @contextmanager
    def standing_in(self, vector: th.Tensor | None, others: list[th.Tensor]) -> Iterator[list[th.Tensor]]:
        """Let the policy compute with these tensors (see :meth:`__call__`); lends the weights as parameters."""
        params: list[th.Tensor] = list(self.weights.params)
        own: list[th.Tensor] = others
        if vector is not self.weights.vector:
            own = [*params, *self.others]
            params = [part.detach().requires_grad_() for part in _views(vector, params)]  # type: ignore[arg-type]
            others = [*params, *others]
        # Also with the policy's own: what a module puts in place of a buffer is written into it, as compiled.
        with swapped(self.policy, own, others) if own else nullcontext():
            yield params

    def differentiate(
        self, params: list[th.Tensor], coefficients: Coefficients, data: Any, indices: th.Tensor | None
    ) -> tuple[Losses, Gradient]:
        """The loss of one minibatch and its gradient with respect to the weights; for the others see
        :meth:`__call__`."""
        # No name for the minibatch: images should not stay while there are gradients.
        losses = self.loss(coefficients, data if indices is None else pick(data, indices))
        return losses, gradient(losses.total, params)

    def loss(self, coefficients: Coefficients, batch: Any) -> Losses:
        """:raises TypeError: what ``compute_loss`` returned is something else"""
        losses = self.compute_loss(batch, coefficients)
        if not isinstance(losses, Losses):
            raise TypeError(f"compute_loss returned {type(losses).__name__}: return Losses(total, diagnostics)")
        return losses

    def release(self) -> None:
        """Forget the weights: they are neither to be kept alive nor to be copied with a model."""
        del self.weights

    @property
    def compilable(self) -> Callable[..., Any]:
        """The pure function, a method, to be compiled for :meth:`stepper`."""
        return self.__call__

    def _measured(self, losses: Losses) -> th.Tensor:
        try:
            return losses.diagnostics[self.control.measure]
        except KeyError:
            raise ValueError(
                f"kl_control={self.control!r} reads the diagnostic {self.control.measure!r}, but compute_loss returned "
                f"only {sorted(losses.diagnostics)}: return it too"
            ) from None

    def stepper(
        self,
        fused: Fused | None,
        verify: bool,
        coefficients: Coefficients,
        learning_rate: th.Tensor,
        target_kl: th.Tensor,
    ) -> Callable[[Any, KLState, th.Tensor | None], tuple[KLState, th.Tensor]]:
        """The update with everything settled that stays the same during one ``train()``.

        :param fused: the compiled form of :attr:`compilable`, or ``None``
        :param verify: whether the constants of the trace may have changed unseen
        :return: a function of the rollout, the control's state and the rows of the minibatch
        """
        compiled: Callable[..., Any] | None = None
        bound_to: Any = None
        fresh = not self.weights.moments
        full_size = 0
        frozen = [weight for weight in self.policy.parameters() if not weight.requires_grad]
        stores = [module._buffers for module in self.policy.modules()]

        def step(data: Any, state: KLState, indices: th.Tensor | None) -> tuple[KLState, th.Tensor]:
            nonlocal compiled, bound_to, fresh, full_size
            if compiled is not None and data is bound_to:
                return compiled(state, indices)
            # A module may have replaced a buffer of its own, or have a new one.
            buffers = [buffer for store in stores for buffer in store.values() if buffer is not None]
            self.others = [*buffers, *frozen]
            settled = self.weights.vector, self.weights.moments, self.others, coefficients, learning_rate, target_kl
            # A fresh optimizer may get its state, which is to be traced, with its first step only; and the minibatch to
            # trace is a full one, as the first is.
            size = len(data.returns) if indices is None else len(indices)
            full_size = max(full_size, size)
            if fused is None or fresh or size < full_size:
                fresh = False
                return self(*settled, data, state, indices)
            for target in self.weights.targets:
                # The compiled form leaves none.
                target.grad = None
            if verify and compiled is None:
                # With other weights than those of the rollout, or terms of the KL and the ratio would not show.
                fused.check(*settled, data, state, indices, noise=0.05)
            compiled, bound_to = fused.bind(*settled, data), data
            return compiled(state, indices)

        return step

    def _functional_step(
        self,
        vector: th.Tensor,
        moments: dict[str, th.Tensor],
        grad: th.Tensor,
        learning_rate: th.Tensor,
        applied: th.Tensor,
    ) -> None:
        r"""The optimizer's own step on copies, taken over where ``applied``.

        It is made with a learning rate of 1 and scaled, :math:`w + \eta (w_1 - w)`, which is the same for elementwise
        optimizers and lets the learning rate be a tensor in all of them.
        """
        stepped = vector.detach().clone().requires_grad_()
        stepped.grad = grad
        new_moments = {name: moment.clone() for name, moment in moments.items()}
        optimizer = _new_optimizer(self.weights.optimizer, stepped)
        group = optimizer.param_groups[0]
        own = {key: value for key, value in self.weights.optimizer.param_groups[0].items() if key != "params"}
        group.update(own | {"lr": 1.0} | {key: False for key in ("foreach", "fused") if key in group})
        if "capturable" in group:
            group["capturable"] = True
        optimizer.state[stepped] = new_moments
        with as_if_compiling():
            optimizer.step()
        new_vector = vector + learning_rate * (stepped.detach() - vector)
        vector.copy_(th.where(applied, new_vector, vector))
        for name, moment in moments.items():
            moment.copy_(th.where(applied, new_moments[name], moment))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads in the block."""
    before = th.get_num_threads()
    th.set_num_threads(number)
    try:
        yield
    finally:
        th.set_num_threads(before)


def clip_factor(grads: Gradient, max_norm: float) -> tuple[th.Tensor, th.Tensor]:
    r"""What to multiply a gradient by so that its norm is at most :math:`c`: :math:`\min(1, c / (\|g\| + 10^{-6}))`.

    :param grads: its parts
    :param max_norm: :math:`c`
    :return: the norm :math:`\|g\|` and the factor, both 0-d
    """
    norms = [th.linalg.vector_norm(grad) for grad in grads if grad is not None]
    norm = norms[0] if len(norms) == 1 else th.linalg.vector_norm(th.stack(norms))
    return norm, (max_norm / (norm + 1e-6)).clamp(max=1.0)


@dataclass
class Act:
    """Acting as a pure function.

    :param policy: the policy
    """

    policy: Any

    def tensors(self) -> list[th.Tensor]:
        """All that the policy computes with."""
        return [*self.policy.parameters(), *self.policy.buffers()]

    def __call__(self, tensors: list[th.Tensor], *inputs: Any) -> tuple[th.Tensor, Any]:
        """:meth:`decide` with these parameters and buffers."""
        with swapped(self.policy, self.tensors(), tensors):
            return self.decide(*inputs)

    def decide(self, *inputs: Any) -> tuple[th.Tensor, Any]:
        """``policy.act(*inputs)`` with its step joined."""
        step, carry = self.policy.act(*inputs)
        return step.joined(), carry


class Records:
    """What the minibatches of an update left.

    :param names: names of the numbers, :data:`FLAGS` first
    :param records: one vector per minibatch
    """

    def __init__(self, names: tuple[str, ...], records: list[th.Tensor]):
        self._table = th.stack(records)
        self._counted = self._table[self._table[:, FLAGS.index("counted")] > 0]
        #: Where each diagnostic stands; of equal names the last one's.
        self.columns = {name: column for column, name in enumerate(names) if column >= len(FLAGS)}

    def finite(self) -> list[bool]:
        """For each minibatch, whether its loss and gradient were finite."""
        return [bool(flag) for flag in self._table[:, FLAGS.index("finite")].tolist()]

    def mean(self, name: str) -> th.Tensor:
        """The mean of a diagnostic over the minibatches that count, 0-d (NaN if there is none)."""
        return self._counted[:, self.columns[name]].mean()


@contextmanager
def packed(optimizer: Optimizer) -> Iterator[Weights]:
    """Lend the optimizer's parameters and its state as flat vectors.

    Inside, the parameters are views of one vector and the lent optimizer works on that vector; after it (also after
    an exception) values and state are back where they were. An optimizer that cannot be packed is lent itself: one
    that is not elementwise, has several parameter groups or step hooks, or whose state is not one per weight.

    A parameter that the loss does not reach has a zero gradient here where torch would have none. The two are the same
    for one that was never reached, without weight decay; otherwise its momentum and decay go on here.

    :param optimizer: a torch optimizer
    """
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not _packable(optimizer, params):
        yield Weights(params, optimizer)
        return
    vector = nn.Parameter(th.cat([p.detach().reshape(-1) for p in params]))
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    if isinstance(optimizer, FUSED) and not any(
        options.get(key) for key in ("foreach", "capturable", "differentiable")
    ):
        options["fused"] = True
    lent = _new_optimizer(optimizer, vector)
    lent.param_groups[0].update(options)
    state = _pack_state(optimizer, params, vector.device)
    if state:
        lent.state[vector] = state
    for p in params:
        # The state is twice as large as the weights: it is kept in one place at a time.
        optimizer.state.pop(p, None)
    own = [p.data for p in params]
    for p, part in zip(params, _views(vector.data, params), strict=True):
        p.data = part
    try:
        yield Weights(params, lent, vector.data)
    finally:
        _unpack_state(lent, vector, optimizer, params)
        grads = [None] * len(params) if vector.grad is None else _views(vector.grad, params)
        for p, data, grad in zip(params, own, grads, strict=True):
            p.data, p.grad = data.copy_(p.data), grad


def _new_optimizer(like: Optimizer, parameter: th.Tensor) -> Optimizer:
    """An optimizer of the same class; its options are set through its parameter group."""
    make: Callable[[list[th.Tensor]], Optimizer] = type(like)  # type: ignore[assignment]
    return make([parameter])


def _packable(optimizer: Optimizer, params: list[nn.Parameter]) -> bool:
    if type(optimizer) not in ELEMENTWISE or len(optimizer.param_groups) > 1 or not params:
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if any(p.dtype != th.float32 or p.device != params[0].device for p in params):
        return False
    states = [optimizer.state.get(p, {}) for p in params]
    return all(
        state.keys() == states[0].keys()
        and all(
            _is_elementwise(name, value, p) or th.equal(*map(th.as_tensor, (value, states[0][name])))
            for name, value in state.items()
        )
        for state, p in zip(states, params, strict=True)
    )


def _is_elementwise(name: str, value: Any, p: th.Tensor) -> bool:
    """Whether an entry of a parameter's optimizer state is one number per weight."""
    return name not in PER_PARAMETER and isinstance(value, th.Tensor) and value.shape == p.shape


def _pack_state(optimizer: Optimizer, params: list[nn.Parameter], device: th.device) -> dict[str, th.Tensor]:
    states = [optimizer.state.get(p, {}) for p in params]
    return {
        name: th.cat([state[name].reshape(-1) for state in states])
        if _is_elementwise(name, value, params[0])
        # Counts of steps: a fused kernel wants them beside the weights.
        else th.as_tensor(value, dtype=th.float32).to(device, copy=True)
        for name, value in states[0].items()
    }


def _unpack_state(lent: Optimizer, vector: nn.Parameter, optimizer: Optimizer, params: list[nn.Parameter]) -> None:
    beside = any(optimizer.param_groups[0].get(key) for key in ("capturable", "fused"))
    for name, value in lent.state[vector].items():
        if _is_elementwise(name, value, vector):
            parts: list[Any] = [part.clone() for part in _views(value, params)]
        elif isinstance(value, th.Tensor):
            parts = [value.to(value.device if beside else "cpu", copy=True) for _ in params]
        else:
            parts = [value] * len(params)
        for p, part in zip(params, parts, strict=True):
            optimizer.state[p][name] = part


def _views(vector: th.Tensor, params: "list[Any]") -> list[th.Tensor]:
    return [part.view(p.shape) for part, p in zip(vector.split([p.numel() for p in params]), params, strict=True)]


def _scaled(grads: Gradient, factor: th.Tensor) -> Gradient:
    return tuple(None if grad is None else grad * factor for grad in grads)


def _concatenated(grads: Gradient, params: list[th.Tensor]) -> th.Tensor:
    every = [th.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
    if len(every) == 1:
        # A copy, as of several.
        return every[0].reshape(-1).clone()
    flat: th.Tensor = _flatten_dense_tensors(every)  # several times cheaper than reshaping one by one
    return flat
