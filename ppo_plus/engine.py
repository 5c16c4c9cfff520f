"""One gradient step, and the flat vectors that make it cheap.

While ``train()`` runs, parameters, gradients and optimizer state are packed into flat vectors: norm, clipping and the
optimizer are then one call each, whatever the number of layers. Outside of it, policy and optimizer are ordinary torch
objects.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import optim
from torch.optim import Optimizer

from ppo_plus.kl_control import KLControl, KLState
from ppo_plus.losses import Losses

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


class Outcome(NamedTuple):
    """What became of one minibatch.

    :param state: the KL control's next state
    :param applied: whether the weights were changed
    :param finite: whether loss and gradient were finite
    :param diagnostics: 0-d tensors by name
    """

    state: KLState
    applied: bool
    finite: bool
    diagnostics: dict[str, th.Tensor]


def update(
    compute_loss: Callable[[], Losses],
    optimizer: Optimizer,
    max_grad_norm: float,
    control: KLControl,
    state: KLState,
    target_kl: th.Tensor,
) -> Outcome:
    """One minibatch: loss, gradient, KL control, and the step if the control and the numbers allow it.

    :param compute_loss: the loss of this minibatch
    :param optimizer: the optimizer over the policy's weights
    :param max_grad_norm: bound on the norm of the gradient
    :param control: the KL control
    :param state: its state
    :param target_kl: its target, 0-d
    """
    optimizer.zero_grad(set_to_none=False)
    losses = compute_loss()
    losses.total.backward()
    grad_norm = clip_gradient(optimizer, max_grad_norm)
    diagnostics = {"loss": losses.total.detach(), **losses.diagnostics, "grad_norm": grad_norm}
    if not th.isfinite(losses.total.detach() + grad_norm):
        return Outcome(state, applied=False, finite=False, diagnostics=diagnostics)
    new_state = control.after_minibatch(state, losses.diagnostics[control.measure], target_kl)
    if new_state.lr_scale is not state.lr_scale:
        for group in optimizer.param_groups:
            group["lr"] *= float(new_state.lr_scale / state.lr_scale)
    applied = bool(new_state.running)
    if applied:
        optimizer.step()
    return Outcome(new_state, applied, finite=True, diagnostics=diagnostics)


def clip_gradient(optimizer: Optimizer, max_norm: float) -> th.Tensor:
    r"""Scale the gradient to :math:`g \cdot \min(1, c / (\|g\| + 10^{-6}))`.

    :param optimizer: whose parameters' gradients are scaled, in place
    :param max_norm: :math:`c`
    :return: the norm before, 0-d
    """
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norms = [th.linalg.vector_norm(grad) for grad in grads]
    norm = norms[0] if len(norms) == 1 else th.linalg.vector_norm(th.stack(norms))
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale)
    return norm


@contextmanager
def packed(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Lend the optimizer's parameters, gradients and state as flat vectors.

    Inside, the parameters are views of one vector and the yielded optimizer works on that vector; after it (also after
    an exception) values and state are back where they were. An optimizer that cannot be packed is yielded itself: one
    that is not elementwise, has several parameter groups or step hooks, or whose state is not one per weight.

    A parameter that the loss does not reach has a zero gradient here where torch would have none; the two differ only
    under weight decay.

    :param optimizer: a torch optimizer
    """
    group = optimizer.param_groups[0]
    params = [p for p in group["params"] if p.requires_grad]
    if not _packable(optimizer, params):
        yield optimizer
        return
    flat = th.nn.Parameter(th.cat([p.detach().reshape(-1) for p in params]))
    flat.grad = th.zeros_like(flat)
    options = {key: value for key, value in group.items() if key != "params"}
    if isinstance(optimizer, FUSED) and not any(options.get(key) for key in ("foreach", "capturable", "differentiable")):
        options["fused"] = True
    lent = type(optimizer)([flat])
    lent.param_groups[0].update(options)
    if optimizer.state:
        lent.state[flat] = _pack_state(optimizer, params, flat.device if options.get("fused") else None)
    own = [p.data for p in params]
    for p, weights, grads in zip(params, _views(flat.data, params), _views(flat.grad, params), strict=True):
        p.data, p.grad = weights, grads
    try:
        yield lent
    finally:
        _unpack_state(lent, flat, optimizer, params)
        for p, data in zip(params, own, strict=True):
            p.data, p.grad = data.copy_(p.data), p.grad.clone()  # type: ignore[union-attr]


def _packable(optimizer: Optimizer, params: list[th.nn.Parameter]) -> bool:
    if type(optimizer) not in ELEMENTWISE or len(optimizer.param_groups) > 1 or not params:
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if any(p.dtype != th.float32 or p.device != params[0].device for p in params):
        return False
    states = [optimizer.state.get(p, {}) for p in params]
    return all(state.keys() == states[0].keys() for state in states) and all(
        _is_elementwise(name, states, params) or all(th.equal(*map(th.as_tensor, (s[name], states[0][name]))) for s in states)
        for name in states[0]
    )


def _is_elementwise(name: str, states: list[dict[str, Any]], params: list[th.nn.Parameter]) -> bool:
    return name != "step" and all(
        isinstance(state[name], th.Tensor) and state[name].shape == p.shape
        for state, p in zip(states, params, strict=True)
    )


def _pack_state(optimizer: Optimizer, params: list[th.nn.Parameter], step_device: th.device | None) -> dict[str, Any]:
    states = [optimizer.state[p] for p in params if p in optimizer.state]
    packed_state = {}
    for name, value in states[0].items() if states else ():
        if _is_elementwise(name, states, params):
            packed_state[name] = th.cat([state[name].reshape(-1) for state in states])
        else:
            # A fused kernel wants its step count beside the weights.
            packed_state[name] = value.to(step_device, copy=True) if isinstance(value, th.Tensor) else value
    return packed_state


def _unpack_state(lent: Optimizer, flat: th.nn.Parameter, optimizer: Optimizer, params: list[th.nn.Parameter]) -> None:
    capturable = optimizer.param_groups[0].get("capturable") or optimizer.param_groups[0].get("fused")
    for name, value in lent.state[flat].items():
        if isinstance(value, th.Tensor) and value.shape == flat.shape and name != "step":
            parts = [view.clone() for view in _views(value, params)]
        elif isinstance(value, th.Tensor):
            parts = [value.clone() if capturable else value.to("cpu", copy=True) for _ in params]
        else:
            parts = [value] * len(params)
        for p, part in zip(params, parts, strict=True):
            optimizer.state[p][name] = part


def _views(vector: th.Tensor, params: list[th.nn.Parameter]) -> list[th.Tensor]:
    return [part.view(p.shape) for part, p in zip(vector.split([p.numel() for p in params]), params, strict=True)]
