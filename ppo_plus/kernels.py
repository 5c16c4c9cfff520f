"""What is below torch's Python: its engine and kernels, called directly, and the memory they work in.

On a small network, the Python around ``torch.autograd.grad`` and ``Optimizer.step`` takes longer than the work itself,
and a sixth of an uncompiled update. What is called here in their place is torch's own, but promises less to stay as it
is: with other than the tested versions, and wherever it does not apply, the public functions do the same.
"""

import ctypes
import sys
from typing import Any

import torch as th
from torch import optim
from torch.autograd import Variable

#: The torch versions whose less public parts are known to do what is expected here.
TESTED = ("2.13",)
#: Names of ``malloc.h``.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Devices whose numbers can be read without waiting for much.
CHEAP_TO_ASK = ("cpu",)


def gradient(loss: th.Tensor, params: list[th.Tensor]) -> tuple[th.Tensor | None, ...]:
    """The gradient of a loss, as by ``torch.autograd.grad(loss, params, allow_unused=True)``; its graph is freed.

    :param loss: one number
    :param params: tensors that it may depend on
    :return: a tensor for each of them; ``None`` for those that it does not depend on
    """
    if loss.dim() or not th.__version__.startswith(TESTED):
        return th.autograd.grad(loss, params, allow_unused=True)
    run: Any = Variable._execution_engine.run_backward
    grads: tuple[th.Tensor | None, ...] = run(
        (loss,), (th.ones_like(loss),), False, False, tuple(params), allow_unreachable=True, accumulate_grad=False
    )
    return grads


def optimizer_step(
    optimizer: optim.Optimizer, vector: th.Tensor | None, learning_rate: th.Tensor, applied: th.Tensor
) -> None:
    """``optimizer.step()`` where ``applied``; directly by the fused kernel for an Adam on one vector.

    With the kernel, nobody waits for a GPU to say whether the step is applied.

    :param optimizer: with its gradients
    :param vector: the values of its only parameter; ``None`` if it has several
    :param learning_rate: of all its groups, 0-d
    :param applied: whether to step, 0-d
    """
    group = optimizer.param_groups[0]
    state = optimizer.state.get(group["params"][0], {})
    is_plain = type(optimizer) in (optim.Adam, optim.AdamW) and group["fused"] and not group["amsgrad"]
    direct = vector is not None and state and is_plain and th.__version__.startswith(TESTED)
    waits = not direct or applied.device.type in CHEAP_TO_ASK
    if waits and not applied:
        return
    if not direct:
        for each in optimizer.param_groups:
            each["lr"] = float(learning_rate)
        optimizer.step()
        return
    kernel: Any = th._fused_adamw_ if group["decoupled_weight_decay"] else th._fused_adam_
    state["step"].add_(1 if waits else applied)
    kernel(
        [vector],
        [group["params"][0].grad],
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


def keep_freed_memory() -> None:
    """Have this process keep the memory that a minibatch frees for the next one.

    Linux's allocator (glibc) gives large free areas back to the system, and gets them page by page: for convolutions
    and recurrent layers that takes up to a quarter of the time. From now on it maps only blocks above 32 MiB by
    themselves and keeps up to 1 GiB (``mallopt(3)``). Other allocators are left alone.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
