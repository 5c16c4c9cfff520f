"""What is compiled computes what was traced, and in fewer operations."""

import os
import subprocess
import sys

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from parametrization import sample

from ppo_plus.compiling.graphs import LOOP, SMALL_PRODUCT, materialize_scalars, small_addmm, small_mm
from ppo_plus.compiling.torch_private import compile_graph, trace

sizes = st.integers(1, 70)


def matrix(rows, columns, transposed, generator):
    made = th.randn((columns, rows) if transposed else (rows, columns), generator=generator)
    return made.t() if transposed else made


@settings(deadline=None)  # the first call warms torch up
@given(m=sizes, k=sizes, n=sizes, a_transposed=st.booleans(), b_transposed=st.booleans(), seed=st.integers(0, 99))
def test_small_products_are_matrix_products(m, k, n, a_transposed, b_transposed, seed):
    generator = th.Generator().manual_seed(seed)
    a, b = matrix(m, k, a_transposed, generator), matrix(k, n, b_transposed, generator)
    c = th.randn(n, generator=generator)
    product, total = small_mm(a, b), small_addmm(c, a, b)
    assert (product is NotImplemented) == (total is NotImplemented)
    if product is not NotImplemented:
        th.testing.assert_close(product, a @ b, rtol=1e-4, atol=1e-4)
        th.testing.assert_close(total, th.addmm(c, a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "a,b,small",
    [
        (th.zeros(8, 64), th.zeros(2, 64).t(), True),
        (th.zeros(1, 64), th.zeros(64, 64).t(), True),
        (th.zeros(2, 64), th.zeros(64, 64), True),
        (th.zeros(64, 4), th.zeros(64, 4).t(), True),
        (th.zeros(512, 4), th.zeros(64, 4).t(), False),
        (th.zeros(64, 64), th.zeros(64, 64).t(), False),
        (th.zeros(64, 64), th.zeros(64, 64), False),
        (th.zeros(1, 64).double(), th.zeros(64, 2).double(), False),
    ],
)
def test_only_small_products_in_single_precision_are_loops(a, b, small):
    assert (small_mm(a, b) is not NotImplemented) == small


def test_scaled_sums_are_left_to_the_library():
    a, b, c = th.ones(2, 2), th.ones(2, 2), th.ones(2)
    assert small_mm(a, b) is not NotImplemented
    assert small_addmm(c, a, b, beta=2) is NotImplemented and small_addmm(c, a, b, alpha=0.5) is NotImplemented


def test_only_scalars_that_large_loops_read_are_stored():
    large, small, scalar = th.randn(LOOP), th.randn(3), th.tensor(2.0)

    def function(large, small, scalar):
        power = 0.9**scalar
        return [large * power, small * (power + 1), power]

    graph = trace(function, [large, small, scalar])
    before = graph(large, small, scalar)
    materialize_scalars(graph)
    settled = [node for node in graph.graph.nodes if node.target is th.ops.aten.as_strided.default]
    assert len(settled) == 1 and [user.meta["val"].numel() for user in settled[0].users] == [LOOP]
    for one, other in zip(before, graph(large, small, scalar), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("shape", sample([(4, 24), (1, 24), (4, 1)], 3))
def test_a_layer_with_few_inputs_is_compiled_to_what_it_computes(shape):
    """Its weight stands in the middle of a vector, given or computed."""
    k, n = shape

    def function(x, vector):
        outputs = []
        for weights in (vector, vector.exp()):
            weight = weights[5 : 5 + n * k].view(n, k)
            outputs.append(th.addmm(weights[:n], x, weight.t()).tanh())
        return outputs

    arguments = [th.randn(8, k), th.randn(200)]
    compiled = compile_graph(trace(function, [tensor.clone() for tensor in arguments]), arguments)
    for got, expected in zip(compiled(arguments.copy()), function(*arguments), strict=True):
        th.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_graph_does_what_the_function_does():
    def function(weights, x, step):
        loss = (th.addmm(weights[0], x, weights.t()).tanh() * 0.9**step).square().mean()
        weights.sub_(0.1 * loss)
        step.add_(1)
        return [loss, weights.sum(), th.empty_like(x).exponential_(1)]

    assert 8 * 40 * 40 <= SMALL_PRODUCT  # or the loop is not tested
    arguments = th.randn(40, 40), th.randn(8, 40), th.tensor(3.0)
    compiled = compile_graph(trace(function, [tensor.clone() for tensor in arguments]), list(arguments))
    expected, got = [tensor.clone() for tensor in arguments], [tensor.clone() for tensor in arguments]
    th.manual_seed(0)
    outputs = function(*expected)
    th.manual_seed(0)
    for one, other in zip([*compiled(got.copy()), *got], [*outputs, *expected], strict=True):
        th.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_processors_with_other_vectors_can_share_a_cache(tmp_path):
    """Torch's variable makes of one processor another."""
    script = """
import torch as th
from ppo_plus.compiling.torch_private import compile_graph, trace

def function(x, weights):
    return [(x @ weights).tanh().sum(dim=1), x.t().contiguous().exp(), (weights + x[:1]).softmax(dim=1)]

th.manual_seed(0)
given = [th.randn(37, 29), th.randn(29, 29)]
for got, expected in zip(compile_graph(trace(function, given), given)(given.copy()), function(*given), strict=True):
    th.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
"""
    shared = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    shared.pop("ATEN_CPU_CAPABILITY", None)
    for environment in (shared, shared | {"ATEN_CPU_CAPABILITY": "avx2"}):
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
