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
    compile_graph,
    gradient,
    optimizer_step,
    swapped,
    trace,
    without_gradients,
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
    grads = gradient(network(x).square().mean(), params)
    assert grads[-1] is None and expected[-1] is None
    assert all(th.equal(a, b) for a, b in zip(grads[:-1], expected[:-1], strict=True))
    assert all(p.grad is None for p in params), "nothing is accumulated"


def test_gradient_of_several_numbers_or_of_no_graph_is_an_error(how, parts):
    network, params = parts
    with pytest.raises(RuntimeError, match="scalar"):
        gradient(network(th.randn(16, 3)).squeeze(1), params)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient(th.tensor(1.0), params)


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
        grads = gradient(network(th.ones(4, 3)).mean(), params)
        optimizer_step(optimizer, params, grads, th.tensor(1e-3), th.tensor(True))
    moved = [not th.equal(a, b) for a, b in zip(before, params, strict=True)]
    assert moved == [True] * 4 + [False]


def test_an_optimizer_without_state_gets_none():
    p = nn.Parameter(th.ones(2))
    optimizer = optim.SGD([p])
    optimizer_step(optimizer, [p], (th.ones(2),), th.tensor(0.5), th.tensor(True))
    assert th.equal(p, th.full((2,), 0.5))
    assert not optimizer.state


def test_what_stands_in_place_of_the_step_is_called():
    p = nn.Parameter(th.ones(2))
    optimizer = optim.Adam([p], fused=True)
    calls, own = [], optimizer.step
    optimizer.step = lambda: calls.append(own())
    for _ in range(3):
        optimizer_step(optimizer, [p], (th.ones(2),), th.tensor(0.5), th.tensor(True))
    assert len(calls) == 3


@pytest.mark.parametrize("before", [True, False])
def test_without_gradients_only_inside(before):
    weight = th.ones(2, requires_grad=True)

    def double_or_fail(x):
        assert not th.is_grad_enabled()
        if x is None:
            raise KeyError("x")
        return 2 * weight * x

    function = without_gradients(double_or_fail)
    with th.set_grad_enabled(before):
        assert not function(weight).requires_grad and th.is_grad_enabled() is before
        with pytest.raises(KeyError):
            function(None)
        assert th.is_grad_enabled() is before


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


@pytest.mark.slow
def test_compiling_leaves_nothing_in_inductors_list():
    from torch._inductor.codecache import PyCodeCache

    tensors, others = [th.ones(3)], list(PyCodeCache.modules)
    run = compile_graph(trace(lambda x: [x * 2], tensors), tensors)
    assert PyCodeCache.modules == others and th.equal(run(list(tensors))[0], th.full((3,), 2.0))
