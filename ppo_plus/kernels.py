"""What is below torch's Python: its engine and kernels, called directly, and the memory they work in.

On a small network, the Python around ``torch.autograd.grad`` and ``Optimizer.step`` takes longer than the work itself.
What is called here in their place is torch's own, but promises less to stay as it is: with other than the tested
versions, and wherever it does not apply, the public functions do the same.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch as th
from torch import nn, optim
from torch.autograd import Variable
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

#: The torch versions whose less public parts are known to do what is expected here.
TESTED = ("2.13",)
IS_TESTED = th.__version__.startswith(TESTED)
#: Names of ``malloc.h``.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.no_grad()(function)``, whose own cost per call is a tenth of acting on a small network."""
    if not IS_TESTED:
        return th.no_grad()(function)

    def call(*args: Any) -> Any:
        before = th.is_grad_enabled()
        th._C._set_grad_enabled(False)
        try:
            return function(*args)
        finally:
            th._C._set_grad_enabled(before)

    return call


def gradient(loss: th.Tensor, params: list[th.Tensor]) -> tuple[th.Tensor | None, ...]:
    """The gradient of a loss, as by ``torch.autograd.grad(loss, params, allow_unused=True)``; its graph is freed.

    :param loss: one number
    :param params: tensors that it may depend on
    :return: a tensor for each of them; ``None`` for those that it does not depend on
    """
    if loss.dim() or not IS_TESTED:
        return th.autograd.grad(loss, params, allow_unused=True)
    run: Any = Variable._execution_engine.run_backward
    grads: tuple[th.Tensor | None, ...] = run(
        (loss,), (th.ones_like(loss),), False, False, tuple(params), allow_unreachable=True, accumulate_grad=False
    )
    return grads


def optimizer_step(
    optimizer: optim.Optimizer,
    params: list[nn.Parameter],
    grads: Sequence[th.Tensor | None],
    learning_rate: th.Tensor,
    applied: th.Tensor,
) -> None:
    """``optimizer.step()`` where ``applied``; directly by the fused kernel for an Adam on one parameter.

    With the kernel, nobody waits for a CUDA device to say whether the step is applied. Otherwise ``p.grad`` is set to
    what was applied.

    :param optimizer: a torch optimizer
    :param params: all its parameters
    :param grads: their gradients
    :param learning_rate: of all its groups, 0-d
    :param applied: whether to step, 0-d
    """
    state = _state_for_kernel(optimizer, params)
    waits = not state or applied.device.type != "cuda"
    if waits:
        if not applied:
            return
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
    if not state:
        for group in optimizer.param_groups:
            group["lr"] = float(learning_rate)
        optimizer.step()
        return
    group = optimizer.param_groups[0]
    kernel: Any = th._fused_adamw_ if group["decoupled_weight_decay"] else th._fused_adam_
    state["step"].add_(1 if waits else applied)
    kernel(
        [params[0].data],
        grads,
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=float(learning_rate) if waits else learning_rate,
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        # Gradient scaling's name for what a step is not applied for.
        found_inf=None if waits else applied.logical_not().float(),
    )


def _state_for_kernel(optimizer: optim.Optimizer, params: list[nn.Parameter]) -> dict[str, th.Tensor]:
    """The state of Adam's only parameter; empty where the kernel alone would not do all that ``step`` does."""
    if type(optimizer) not in (optim.Adam, optim.AdamW) or len(params) != 1 or len(optimizer.param_groups) != 1:
        return {}
    group = optimizer.param_groups[0]
    hooked = _global_optimizer_pre_hooks or _global_optimizer_post_hooks
    if not group["fused"] or group["amsgrad"] or hooked or not IS_TESTED:
        return {}
    state: dict[str, th.Tensor] = optimizer.state.get(params[0], {})
    return state


def keep_freed_memory() -> None:
    """Have this process keep the memory that a minibatch frees for the next one.

    Linux's allocator (glibc) gives large free areas back to the system, and gets them anew page by page, which takes
    much of the time of convolutions and recurrent layers. From now on it maps only blocks above 32 MiB by themselves
    and keeps up to 1 GiB (``mallopt(3)``). Other allocators are left alone, and so are settings of the user's, in the
    environment variables ``MALLOC_...`` and ``GLIBC_TUNABLES``.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
