"""Rewrites graphs of tensor operations so that the small networks of reinforcement learning compile to fast code."""

from collections.abc import Callable
from typing import Any

import torch as th

#: Elements from which on a loop should not repeat the arithmetic of single numbers.
LOOP = 1_024
#: Multiplications up to which a matrix product is a loop (with a vector: up to four times as many).
SMALL_PRODUCT = 40_000
#: Terms from which on the sum of a scalar product fills vector registers.
VECTOR = 16


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


SMALL_PRODUCTS: dict[Any, Callable[..., Any]] = {
    th.ops.aten.mm.default: small_mm,
    th.ops.aten.addmm.default: small_addmm,
}
