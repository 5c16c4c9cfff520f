"""Engine and kernels called directly: the very bits of the public functions."""

import copy
import ctypes
import subprocess
import sys

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook

from ppo_plus import kernels
from ppo_plus.compiling.torch_private import gradient, optimizer_step, without_gradients


@pytest.fixture(params=["direct", "public"])
def how(request, monkeypatch):
    if request.param == "public":
        monkeypatch.setattr(kernels, "IS_TESTED", False)


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
    tested=st.booleans(),
    applied=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_steps_are_the_optimizers(kind, amsgrad, weight_decay, maximize, eps, betas, fused, tested, applied):
    options = {"weight_decay": weight_decay, "maximize": maximize, "fused": fused}
    if issubclass(kind, optim.Adam):
        options |= {"amsgrad": amsgrad, "eps": eps, "betas": betas}
    generator = th.Generator().manual_seed(0)
    ours = nn.Parameter(th.randn(100, generator=generator))
    reference = copy.deepcopy(ours)
    optimizer, expected = (kind([p], lr=0.1, **options) for p in (ours, reference))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if not tested:
            monkeypatch.setattr(kernels, "IS_TESTED", False)
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


def test_hooks_of_all_optimizers_are_called():
    p = nn.Parameter(th.ones(2))
    optimizer = optim.Adam([p], fused=True)
    calls = []
    hook = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    try:
        for _ in range(3):
            optimizer_step(optimizer, [p], (th.ones(2),), th.tensor(0.5), th.tensor(True))
    finally:
        hook.remove()
    assert len(calls) == 3


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("applied", [True, False])
def test_on_a_gpu_nobody_waits(applied):
    p = nn.Parameter(th.ones(8, device="cuda"))
    reference = copy.deepcopy(p)
    optimizer, expected = (optim.Adam([each], lr=0.1, fused=True) for each in (p, reference))
    grad, learning_rate = th.ones(8, device="cuda"), th.tensor(0.1, device="cuda")
    optimizer_step(optimizer, [p], (grad,), learning_rate, th.tensor(True, device="cuda"))
    reference.grad = grad.clone()
    expected.step()
    gate = th.tensor(applied, device="cuda")
    th.cuda.set_sync_debug_mode("error")
    try:
        optimizer_step(optimizer, [p], (grad,), learning_rate, gate)
    finally:
        th.cuda.set_sync_debug_mode("default")
    if applied:
        expected.step()
    assert th.allclose(p, reference)


FAULTS = """
import resource
import torch as th
from ppo_plus.compiling.process import keep_freed_memory

def faults(n_blocks=8, n_bytes=2**24, n_times=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n_times):
        blocks = [th.zeros(n_bytes, dtype=th.uint8) for _ in range(n_blocks)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
keep_freed_memory()
faults()
print(without, faults())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)
def test_freed_memory_is_kept():
    output = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    without, kept = map(int, output.split())
    assert 10 * kept < without


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
