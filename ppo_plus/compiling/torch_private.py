"""Private parts of torch: every private name that the package uses.

On a small network, the Python around ``torch.autograd.grad``, ``Optimizer.step`` or a compiled graph takes longer than
the work itself. The functions here call torch directly, by names that may change. :data:`KNOWN` says for which versions
that is done; :class:`~ppo_plus.compiling.compiled.Compiled` checks every compiled graph.
"""

import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch as th
from torch import nn, optim
from torch.autograd import Variable

from ppo_plus.process import assigned

#: Whether this is a version of torch whose gradients and optimizers are known, and are called directly.
KNOWN = th.__version__ < "2.14"

#: Settings of Inductor.
OPTIONS: dict[str, Any] = {
    # Compiled code draws the same random numbers as eager code.
    "fallback_random": True,
    # One exponential, with an absolute error of 1e-7; the library's takes a fifth of the update of a small network.
    "cpp.use_decompose_tanh": True,
    # The caller checks shapes, layouts and results. Each of Inductor's checks, of arguments and of results of library
    # kernels, makes a stream for its message, in half a microsecond.
    "size_asserts": False,
    # These functions are recorded in graphs here (`Replayed`).
    "triton.cudagraphs": False,
}
#: Elements from which on a loop should not repeat the arithmetic of single numbers.
LOOP = 1_024
#: Multiplications up to which a matrix product is a loop (with a vector: up to four times as many).
SMALL_PRODUCT = 40_000
#: Terms from which on the sum of a scalar product fills vector registers.
VECTOR = 16


@contextmanager
def inductor_options() -> Iterator[dict[str, Any]]:
    """Use :data:`OPTIONS` with the vector width that torch uses on this processor, and no other.

    Inductor's cache does not have that width in its keys, although the code depends on it. And by default, Inductor
    tests six extensions of an x86 processor by a program each, which takes as long as compiling a small network.
    """
    from torch._inductor import config, cpu_vec_isa

    capability = th.backends.cpu.get_cpu_capability().lower()
    if platform.machine() in ("x86_64", "AMD64"):
        with config.patch("cpp.vec_isa_ok", True):
            # The truth value of AVX-512 also tests for bfloat16.
            sets = [isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) == capability and isa]
    else:
        sets = [cpu_vec_isa.pick_vec_isa()]
    width = sets[0].bit_width() if sets else 0
    with assigned(cpu_vec_isa, valid_vec_isa_list=lambda: sets):
        yield OPTIONS | {"cpp.simdlen": width, "cpp.vec_isa_ok": True}


def autograd_grad(loss: th.Tensor, params: list[th.Tensor]) -> tuple[th.Tensor | None, ...]:
    """``torch.autograd.grad(loss, params, allow_unused=True)``."""
    if loss.dim() or not KNOWN:
        return th.autograd.grad(loss, params, allow_unused=True)
    grads: tuple[th.Tensor | None, ...] = Variable._execution_engine.run_backward(
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
    """``optimizer.step()`` if ``applied`` (0-d); directly by the fused kernel for an Adam on one parameter.

    With the kernel, a CUDA device decides whether the step is applied, and the host never synchronizes. Otherwise
    ``p.grad`` is set to the gradient that was applied. ``learning_rate`` is for all groups, 0-d, or one for each.
    """
    by_kernel = KNOWN and _is_plain_adam(optimizer, params) and bool(optimizer.state.get(params[0]))
    on_gpu = by_kernel and applied.device.type == "cuda"
    if not on_gpu:
        if not applied:
            return
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
    if not by_kernel:
        for group, rate in zip(optimizer.param_groups, learning_rate.expand(len(optimizer.param_groups)), strict=True):
            group["lr"] = float(rate)
        optimizer.step()
        return
    group, state = optimizer.param_groups[0], optimizer.state[params[0]]
    kernel: Any = th._fused_adamw_ if group["decoupled_weight_decay"] else th._fused_adam_
    state["step"].add_(applied)
    kernel(
        [params[0].data],
        [grads[0]],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=learning_rate,
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        # In gradient scaling, a step is not applied if `found_inf`.
        found_inf=applied.logical_not().float() if on_gpu else None,
    )


def _is_plain_adam(optimizer: optim.Optimizer, params: list[nn.Parameter]) -> bool:
    """Whether the kernel does everything that ``step`` does."""
    if type(optimizer) not in (optim.Adam, optim.AdamW) or has_step_hooks(optimizer):
        return False
    if len(params) != 1 or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    return bool(group["fused"] and not group["amsgrad"])


def has_step_hooks(optimizer: optim.Optimizer) -> bool:
    """Whether something is called before, after or instead of the steps of an optimizer."""
    own = (getattr(optimizer, f"_optimizer_step_{when}_hooks", True) for when in ("pre", "post"))
    return "step" in vars(optimizer) or any(own)


def original(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` has wrapped; others unchanged."""
    inside: nn.Module = getattr(module, "_orig_mod", module)
    return inside


def as_if_compiling() -> AbstractContextManager[None]:
    """Make torch's optimizers compute with tensors throughout, as under ``torch.compile``."""
    return assigned(th.compiler, _is_compiling_flag=True)


@contextmanager
def swapped(module: nn.Module, own: Sequence[th.Tensor], others: Sequence[th.Tensor]) -> Iterator[None]:
    """Make a module compute with other parameters and buffers, under all names that it has for each.

    A buffer that the module replaces meanwhile, instead of changing it in place, is written into its replacement.
    """
    replacements = {id(tensor): other for tensor, other in zip(own, others, strict=True)}
    stores: list[dict[str, Any]] = [store for part in module.modules() for store in (part._parameters, part._buffers)]
    before = [store.copy() for store in stores]
    try:
        for store in stores:
            for name, tensor in store.items():
                store[name] = replacements.get(id(tensor), tensor)
        yield
        for store, kept in zip(stores, before, strict=True):
            for name, tensor in kept.items():
                replacement = replacements.get(id(tensor))
                if replacement is not None and store[name] is not replacement:
                    replacement.copy_(store[name])
    finally:
        for store, kept in zip(stores, before, strict=True):
            store.clear()
            store.update(kept)


#: Torch traces and compiles one function at a time: it patches itself meanwhile.
ONE_AT_A_TIME = threading.RLock()


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Have cuBLAS take new memory in the block, which nothing else can free or use."""
    th._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        th._C._cuda_clearCublasWorkspaces()


def find_compiler() -> None:
    """:raises Exception: Inductor finds no C++ compiler"""
    from torch._inductor.cpp_builder import get_cpp_compiler

    get_cpp_compiler()


def trace(function: Callable[..., list[th.Tensor]], tensors: list[th.Tensor]) -> th.fx.GraphModule:
    """The operations of a function on these tensors; others that it reads become constants."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def compile_graph(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Callable[[list[th.Tensor]], list[th.Tensor]]:
    """The graph compiled by Inductor for such tensors; it may change them in place, and empties the list.

    The compiled form does not check its arguments: with others, it may read and write any memory. ``torch.compile``
    adds layers of Python, which take as long as a small network: without gradients and aliases, they are not needed.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    on_cpu = _on_cpu(tensors)
    # Inductor caches on disk only if the mode has a shape environment.
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    known = {*map(id, PyCodeCache.modules)}
    with (
        inductor_options() as options,
        config.patch(options | {"cpp_wrapper": on_cpu}),
        th.no_grad(),
        tracing(TracingContext(mode)),
    ):
        output: Any = compile_fx_inner(prepared(graph, tensors), inputs, cpp_wrapper=on_cpu, is_inference=True)
    # The list, which is there to delete files, would keep the new module and its constants as long as the process.
    PyCodeCache.modules[:] = [module for module in PyCodeCache.modules if id(module) in known]
    return output.current_callable  # type: ignore[no-any-return]


def prepared(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> th.fx.GraphModule:
    """The graph in Inductor's set of operations, none of which changes a tensor, except for arguments at the end.

    The set depends on Inductor's options.
    """
    from torch._inductor.decomposition import select_decomp_table
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    decompositions = {**select_decomp_table(), **(SMALL_PRODUCTS if _on_cpu(tensors) else {})}
    functional = functionalize(graph, remove="mutations")
    graph = make_fx(functional, decompositions, "fake", _allow_non_fake_inputs=True)(*tensors)
    for node in reversed(graph.graph.nodes):
        # The optimizer's marks for the profiler, which torch.compile does not accept.
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    materialize_scalars(graph)
    return graph


def _on_cpu(tensors: list[th.Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)


def materialize_scalars(graph: th.fx.GraphModule) -> None:
    """Compute single numbers once.

    Inductor repeats the arithmetic of a 0-d tensor, such as the powers of Adam's bias correction, for each vector of
    the loops that read it. It stores in memory what ``as_strided`` reads.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), th.Tensor) or node.meta["val"].dim():
            continue
        results = {user: user.meta.get("val") for user in node.users}
        loops = [user for user, val in results.items() if isinstance(val, th.Tensor) and val.numel() >= LOOP]
        if loops:
            with graph.graph.inserting_after(node):
                stored = graph.graph.call_function(th.ops.aten.as_strided.default, (node, [], []))
            stored.meta = dict(node.meta)
            for user in loops:
                user.replace_input_with(node, stored)
    graph.recompile()


def small_mm(a: th.Tensor, b: th.Tensor) -> Any:
    """The product of ``(M, K)`` and ``(K, N)`` as a loop, which fuses with the operations around it.

    ``NotImplemented`` if calling a library is faster.
    """
    (m, k), n = a.shape, b.shape[1]
    if a.dtype != th.float32 or b.dtype != th.float32:
        return NotImplemented
    is_layer = b.stride(0) == 1 and a.stride(1) == 1
    if is_layer and k >= VECTOR:
        # Each output is a scalar product of two rows in memory.
        if m * n * k <= SMALL_PRODUCT or (m == 1 and n * k <= 4 * SMALL_PRODUCT):
            return (a.unsqueeze(1) * b.t().unsqueeze(0)).sum(2)
    elif (is_layer or b.stride(1) == 1) and m * n * k <= SMALL_PRODUCT:
        # Each row of outputs is a sum of rows, which have to be in memory (see :func:`materialize_scalars`).
        rows = b if b.stride(1) == 1 or n == 1 else th.ops.aten.as_strided(b.contiguous(), [k, n], [n, 1])
        return (a.unsqueeze(2) * rows.unsqueeze(0)).sum(1)
    return NotImplemented


def small_addmm(c: th.Tensor, a: th.Tensor, b: th.Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """``c`` plus :func:`small_mm`."""
    product = small_mm(a, b) if beta == alpha == 1 else NotImplemented
    return NotImplemented if product is NotImplemented else c + product


SMALL_PRODUCTS: dict[Any, Any] = {th.ops.aten.mm.default: small_mm, th.ops.aten.addmm.default: small_addmm}
