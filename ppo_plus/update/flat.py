"""Flat vectors: during ``train()``, parameters, gradients and optimizer state stand in one vector each.

Norm, clipping, optimizer (and, across processes, the reduction) are then one operation each, whatever the number of
layers. Outside of ``train()``, policy and optimizer are ordinary torch objects.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn, optim
from torch.optim import Optimizer

from ppo_plus.compiling.torch_private import flatten, has_step_hooks
from ppo_plus.trees import to_device

#: Optimizers with a fused kernel on CPUs and GPUs; Adagrad's is for CPUs.
FUSED = (optim.Adam, optim.AdamW, optim.SGD)
#: Optimizers that treat every weight by itself, so that all weights may stand in one vector.
ELEMENTWISE = (
    *FUSED,
    optim.RMSprop,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    RMSpropTFLike,
)

#: Entries of optimizer states that count steps, one per parameter.
PER_PARAMETER = ("step", "mu_product")
#: Options of how an optimizer computes, which are those of this machine.
IMPLEMENTATION = ("capturable", "differentiable", "foreach", "fused")


def trainable(optimizer: Optimizer) -> list[nn.Parameter]:
    """What an optimizer works on, in its order, without what is frozen."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def moments(lent: Optimizer) -> dict[str, th.Tensor]:
    """The state of an optimizer for the vector that it works on, as tensors; empty before the first step."""
    (vector,) = trainable(lent)
    state: dict[str, th.Tensor] = lent.state[vector]
    for name, value in state.items():
        if not isinstance(value, th.Tensor):
            state[name] = th.tensor(float(value), device=vector.device)
    return state


@contextmanager
def packed(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Lend an optimizer whose only parameter is a vector of all weights that ``optimizer`` works on.

    Inside, the weights are views of that vector; after it (also after an exception) values and state are back where
    they were. An optimizer that cannot be packed is lent itself: one that is not elementwise, has several parameter
    groups or step hooks, or whose state is not one per weight.

    A parameter that the loss does not reach has a zero gradient here where torch would have none. The two are the same
    for one that was never reached, without weight decay; otherwise its momentum and decay go on here.
    """
    params = trainable(optimizer)
    if not _packable(optimizer, params):
        yield optimizer
        return
    vector = nn.Parameter(th.cat([p.detach().reshape(-1) for p in params]))
    options = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    fused = (*FUSED, optim.Adagrad) if vector.device.type == "cpu" else FUSED
    if isinstance(optimizer, fused) and not any(
        options.get(key) for key in ("foreach", "capturable", "differentiable")
    ):
        options["fused"] = True
    lent = new_optimizer(optimizer, vector)
    lent.param_groups[0].update(options)
    # A fused kernel needs the counts of steps beside the weights.
    beside = options.get("fused") or options.get("capturable")
    state = _pack_state(optimizer, params, vector.device if beside else th.device("cpu"))
    if state:
        lent.state[vector] = state
    for p in params:
        # The state is twice as large as the weights: it is kept in one place at a time.
        optimizer.state.pop(p, None)
    own = [p.data for p in params]
    for p, part in zip(params, views(vector.data, params), strict=True):
        p.data = part
    try:
        yield lent
    finally:
        _unpack_state(lent, vector, optimizer, params)
        grads = [None] * len(params) if vector.grad is None else views(vector.grad, params)
        for p, data, grad in zip(params, own, grads, strict=True):
            p.data, p.grad = data.copy_(p.data), grad


def new_optimizer(like: Optimizer, parameter: th.Tensor) -> Optimizer:
    """An optimizer of the same class; its options are set through its parameter group."""
    make: Callable[[list[th.Tensor]], Optimizer] = type(like)
    return make([parameter])


def _packable(optimizer: Optimizer, params: list[nn.Parameter]) -> bool:
    elementwise = type(optimizer) in ELEMENTWISE and len(optimizer.param_groups) == 1 and not has_step_hooks(optimizer)
    if not elementwise or not params or any(p.dtype != th.float32 or p.device != params[0].device for p in params):
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


def check_optimizer_state(optimizer: Optimizer) -> None:
    """Check what an optimizer has loaded. How it computes (:data:`IMPLEMENTATION`) stays as it was made.

    :raises ValueError: its state does not fit its weights: torch's fused kernels would write outside of it. It is
        deleted then
    """
    needed = {"exp_avg", "exp_avg_sq", "step"} if isinstance(optimizer, (optim.Adam, optim.AdamW)) else set()
    valid = True
    for group in optimizer.param_groups:
        group.update({name: value for name, value in optimizer.defaults.items() if name in IMPLEMENTATION})
        valid &= all(_alike(group.get(name), default) for name, default in optimizer.defaults.items())
        names = needed | ({"max_exp_avg_sq"} if group.get("amsgrad") else set())
        for p in group["params"] if isinstance(optimizer, FUSED) else ():
            state = optimizer.state.get(p, {})
            valid &= all(_fits(name, value, p) for name, value in state.items())
            valid &= not state or names <= state.keys()
    if not valid:
        optimizer.state.clear()
        raise ValueError(f"the state of {type(optimizer).__name__} does not fit its weights")


def _alike(value: Any, default: Any) -> bool:
    """Whether an option of an optimizer is as its default: a number, or as many of them."""
    if isinstance(default, (tuple, list)):
        is_row = isinstance(value, (tuple, list)) and len(value) == len(default)
        return is_row and all(map(_alike, value, default))
    return value is None or default is None or isinstance(value, (int, float, th.Tensor))


def _fits(name: str, value: Any, p: th.Tensor) -> bool:
    if name in PER_PARAMETER:
        return th.as_tensor(value).shape == () and bool(value >= 0)
    return _is_elementwise(name, value, p) or (value is None and name == "momentum_buffer")


def _pack_state(optimizer: Optimizer, params: list[nn.Parameter], device: th.device) -> dict[str, th.Tensor]:
    states = [optimizer.state.get(p, {}) for p in params]
    return {
        name: th.cat([state[name].reshape(-1) for state in states])
        if _is_elementwise(name, value, params[0])
        else to_device(th.as_tensor(value, dtype=th.float32).clone(), device)
        for name, value in states[0].items()
    }


def _unpack_state(lent: Optimizer, vector: nn.Parameter, optimizer: Optimizer, params: list[nn.Parameter]) -> None:
    beside = any(optimizer.param_groups[0].get(key) for key in ("capturable", "fused"))
    for name, value in lent.state[vector].items():
        if _is_elementwise(name, value, vector):
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
    every = [th.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)]
    if len(every) == 1:
        # A copy, as of several.
        return every[0].reshape(-1).clone()
    return flatten(every)
