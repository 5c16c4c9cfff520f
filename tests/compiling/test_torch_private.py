"""Torch's private parts have the very bits of the public functions."""

import copy
import platform

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from ppo_plus.compiling import torch_private
from ppo_plus.compiling.torch_private import (
    LOOP,
    SMALL_PRODUCT,
    autograd_grad,
    compile_graph,
    materialize_scalars,
    optimizer_step,
    small_addmm,
    small_mm,
    swapped,
    trace,
)


@pytest.fixture(params=["known", "unknown"])
def how(request, monkeypatch):
    """Private parts, or public functions as with an unknown version of torch."""
    monkeypatch.setattr(torch_private, "KNOWN", request.param == "known")


@pytest.fixture
def parts():
    th.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return network, [*network.parameters(), nn.Parameter(th.ones(2))]


def test_gradient_is_autograds(how, parts):
    network, params = parts
    x = th.randn(16, 3)
    expected = th.autograd.grad(network(x).square().mean(), params, allow_unused=True)
    grads = autograd_grad(network(x).square().mean(), params)
    assert grads[-1] is None and expected[-1] is None
    assert all(th.equal(a, b) for a, b in zip(grads[:-1], expected[:-1], strict=True))
    assert all(p.grad is None for p in params), "nothing is accumulated"


def test_gradient_of_several_numbers_or_of_no_graph_is_an_error(how, parts):
    network, params = parts
    with pytest.raises(RuntimeError, match="scalar"):
        autograd_grad(network(th.randn(16, 3)).squeeze(1), params)
    with pytest.raises(RuntimeError, match="does not require grad"):
        autograd_grad(th.tensor(1.0), params)


@settings(deadline=None)
@given(
    kind=st.sampled_from([optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad]),
    amsgrad=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.1]),
    maximize=st.booleans(),
    eps=st.sampled_from([1e-8, 1e-5]),
    betas=st.sampled_from([(0.9, 0.999), (0.5, 0.9)]),
    fused=st.booleans(),
    known=st.booleans(),
    applied=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_steps_are_the_optimizers(kind, amsgrad, weight_decay, maximize, eps, betas, fused, known, applied):
    options = {"weight_decay": weight_decay, "maximize": maximize, "fused": fused}
    if issubclass(kind, optim.Adam):
        options |= {"amsgrad": amsgrad, "eps": eps, "betas": betas}
    generator = th.Generator().manual_seed(0)
    ours = nn.Parameter(th.randn(100, generator=generator))
    reference = copy.deepcopy(ours)
    optimizer, expected = (kind([p], lr=0.1, **options) for p in (ours, reference))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(torch_private, "KNOWN", known)
        for i, is_applied in enumerate(applied):
            grad = th.randn(100, generator=generator)
            learning_rate = th.tensor(0.1 / (i + 1))
            optimizer_step(optimizer, [ours], (grad.clone(),), learning_rate, th.tensor(is_applied))
            if is_applied:
                reference.grad = grad.clone()
                expected.param_groups[0]["lr"] = learning_rate.item()
                expected.step()
            assert th.equal(ours, reference)
            assert (ours.grad is None) == (reference.grad is None)
            assert ours.grad is None or th.equal(ours.grad, reference.grad)
    states = (each.state_dict()["state"][0] if each.state else {} for each in (optimizer, expected))
    assert all(th.equal(th.as_tensor(a), th.as_tensor(b)) for a, b in zip(*(s.values() for s in states), strict=True))


@pytest.mark.parametrize("first", [[], [nn.Parameter(th.ones(1), requires_grad=False)]])
def test_several_parameters_are_stepped_by_their_optimizer(parts, first):
    network, params = parts
    optimizer = optim.Adam([{"params": first}, {"params": params}], fused=True)
    before = [p.detach().clone() for p in params]
    for _ in range(2):
        grads = autograd_grad(network(th.ones(4, 3)).mean(), params)
        optimizer_step(optimizer, params, grads, th.tensor(1e-3), th.tensor(True))
    moved = [not th.equal(a, b) for a, b in zip(before, params, strict=True)]
    assert moved == [True] * 4 + [False]


def test_swapped_replaces_tied_parameters_under_all_names():
    linear = nn.Linear(2, 2)
    module = nn.Sequential(linear, linear, nn.BatchNorm1d(2))
    own = [linear.weight, module[2].running_mean]
    others = [th.zeros(2, 2), th.ones(2)]
    with pytest.raises(RuntimeError, match="stop"), swapped(module, own, others):
        assert module[0].weight is others[0] and module[1].weight is others[0]
        assert module[2].running_mean is others[1]
        raise RuntimeError("stop")
    assert linear.weight is own[0] and module[2].running_mean is own[1]
    assert isinstance(linear.weight, nn.Parameter)


def test_a_replaced_buffer_is_written_into_its_replacement():
    module = nn.BatchNorm1d(2)
    own, other = module.running_mean, th.ones(2)
    with swapped(module, [own], [other]):
        module.running_mean = module.running_mean + 1
    assert th.equal(other, th.full((2,), 2.0))
    assert module.running_mean is own and th.equal(own, th.zeros(2))


@pytest.mark.parametrize(("capability", "width"), [("DEFAULT", 0), ("AVX2", 256), ("AVX512", 512)])
def test_inductor_takes_vectors_as_wide_as_torchs_own(capability, width, monkeypatch):
    # Seconds to import, which not every process that collects tests should take.
    from torch._inductor import config, cpu_vec_isa

    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("Inductor looks for the vectors of other processors without trying them")
    tried = []
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda self, code: tried.append(str(self)) or True)
    monkeypatch.setattr(th.backends.cpu, "get_cpu_capability", lambda: capability)
    find = cpu_vec_isa.valid_vec_isa_list
    with torch_private.inductor_options() as options, config.patch(options):
        assert cpu_vec_isa.pick_vec_isa().bit_width() == width
    assert options == torch_private.OPTIONS | {"cpp.simdlen": width, "cpp.vec_isa_ok": True}
    assert set(tried) <= {"avx512"}  # whether it knows bfloat16
    assert cpu_vec_isa.valid_vec_isa_list is find


# --- what is compiled computes what was traced, and in fewer operations -----------------------------------------------


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


@pytest.mark.slow
def test_a_compiled_graph_does_what_the_function_does(k=4, n=24):
    """Among it layers with few inputs, whose weights stand in the middle of a vector, given or computed."""

    def function(weights, x, step, vector):
        loss = (th.addmm(weights[0], x, weights.t()).tanh() * 0.9**step).square().mean()
        weights.sub_(0.1 * loss)
        step.add_(1)
        layers = (part[5 : 5 + n * k].view(n, k) for part in (vector, vector.exp()))
        outputs = [th.addmm(vector[:n], x[:, :k], weight.t()).tanh() for weight in layers]
        return [loss, weights.sum(), th.empty_like(x).exponential_(1), *outputs]

    assert 8 * 40 * 40 <= SMALL_PRODUCT  # or the loop is not tested
    arguments = th.randn(40, 40), th.randn(8, 40), th.tensor(3.0), th.randn(200)
    compiled = compile_graph(trace(function, [tensor.clone() for tensor in arguments]), list(arguments))
    expected, got = [tensor.clone() for tensor in arguments], [tensor.clone() for tensor in arguments]
    th.manual_seed(0)
    outputs = function(*expected)
    th.manual_seed(0)
    for one, other in zip([*compiled(got.copy()), *got], [*outputs, *expected], strict=True):
        th.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
