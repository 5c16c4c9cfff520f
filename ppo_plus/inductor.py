"""Graphs of tensor operations, compiled by Inductor for the small networks of reinforcement learning.

The only module that touches torch's semi-private compiler interfaces: ``make_fx`` and Inductor's ``compile_fx_inner``.
``torch._inductor.compile`` would do, but it puts several layers of Python around its result, which a graph without
gradients and without aliases among its arguments does not need: they cost as much as a small network itself.
"""

from collections.abc import Callable
from typing import Any

import torch as th

#: A compiled graph: it takes a list of tensors, which it empties, and returns one.
Compiled = Callable[[list[th.Tensor]], list[th.Tensor]]

#: Settings of Inductor.
OPTIONS = {
    # The compiled form draws the numbers that eager mode would draw.
    "fallback_random": True,
    # By one exponential, exact to 1e-7 absolutely; the library's takes a fifth of the update of a small network.
    "cpp.use_decompose_tanh": True,
    # The caller compares shapes and layouts, and tries results before they are used. Each of these checks, of arguments
    # and of what library kernels return, makes a stream for its message, in half a microsecond.
    "size_asserts": False,
}
#: Elements from which on a loop should not repeat the arithmetic of single numbers.
LOOP = 1_024
#: Multiplications up to which a matrix product is a loop of its own (with a vector: up to four times as many).
SMALL_PRODUCT = 40_000
#: Terms from which on the sum of a scalar product fills vector registers.
VECTOR = 16


def find_compiler() -> None:
    """:raises Exception: Inductor finds no C++ compiler"""
    from torch._inductor.cpp_builder import get_cpp_compiler

    get_cpp_compiler()


def trace(function: Callable[..., list[th.Tensor]], tensors: list[th.Tensor]) -> th.fx.GraphModule:
    """The operations that a function makes of these tensors.

    Tensors that it reads besides its arguments, such as a network's own table, become constants.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


def compile_graph(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Compiled:
    """The graph compiled for tensors of these shapes, dtypes, layouts and devices; it may change them in place.

    The compiled form checks none of that: given others, it may read and write any memory.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    # Inductor keeps on disk only what it compiled for a mode with shapes.
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    with config.patch(OPTIONS | {"cpp_wrapper": on_cpu}), th.no_grad(), tracing(TracingContext(mode)):
        # The table depends on the options.
        decompositions = {**select_decomp_table(), **(SMALL_PRODUCTS if on_cpu else {})}
        # Inductor takes its own set of operations, none of which changes a tensor but, at the end, an argument.
        functional = functionalize(graph, remove="mutations")
        graph = make_fx(functional, decompositions, "fake", _allow_non_fake_inputs=True)(*tensors)
        settle_scalars(graph)
        output: Any = compile_fx_inner(graph, inputs, cpp_wrapper=on_cpu, is_inference=True)
    return output.current_callable


def settle_scalars(graph: th.fx.GraphModule) -> None:
    """Have single numbers computed once.

    Inductor repeats the arithmetic behind a 0-d tensor, such as the powers of Adam's bias correction, for each vector
    of the loops that read it. Of what ``as_strided`` reads, it makes a value in memory.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not isinstance(node.meta.get("val"), th.Tensor) or node.meta["val"].dim():
            continue
        results = {user: user.meta.get("val") for user in node.users}
        loops = [user for user, val in results.items() if isinstance(val, th.Tensor) and val.numel() >= LOOP]
        if loops:
            with graph.graph.inserting_after(node):
                settled = graph.graph.call_function(th.ops.aten.as_strided.default, (node, [], []))
            settled.meta = dict(node.meta)
            for user in loops:
                user.replace_input_with(node, settled)
    graph.recompile()


def small_mm(a: th.Tensor, b: th.Tensor) -> th.Tensor:
    """A matrix product as a loop, which fuses with what stands around it, where calling a library takes longer.

    :param a: shape ``(M, K)``
    :param b: shape ``(K, N)``
    :return: shape ``(M, N)``; ``NotImplemented`` where the library is faster
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
        # Each row of outputs is a sum of rows, which have to stand in memory (see :func:`settle_scalars`).
        rows = b if b.stride(1) == 1 or n == 1 else th.ops.aten.as_strided(b.contiguous(), [k, n], [n, 1])
        return (a.unsqueeze(2) * rows.unsqueeze(0)).sum(1)
    return NotImplemented


def small_addmm(c: th.Tensor, a: th.Tensor, b: th.Tensor, *, beta: float = 1, alpha: float = 1) -> th.Tensor:
    """``c`` plus :func:`small_mm`."""
    product = small_mm(a, b) if beta == alpha == 1 else NotImplemented
    return NotImplemented if product is NotImplemented else c + product


SMALL_PRODUCTS: dict[Any, Callable[..., th.Tensor]] = {
    th.ops.aten.mm.default: small_mm,
    th.ops.aten.addmm.default: small_addmm,
}
