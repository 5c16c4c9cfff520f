"""The device that stands in for a GPU does what the other tests rely on."""

import copy

import pytest
import torch as th
from simulated_device import waits
from torch import nn, optim

from ppo_plus.compiling.torch_private import optimizer_step
from ppo_plus.trees import to_device
from ppo_plus.update.minibatch import read

CUDA = th.device("cuda")


def test_devices_cannot_be_mixed():
    x = th.ones(3, device=CUDA)
    for operation in (lambda: x + th.ones(3), lambda: th.cat([x, th.ones(3)]), lambda: x.add_(th.ones(3))):
        with pytest.raises(RuntimeError, match="same device"):
            operation()
    # A number on the CPU is one.
    assert (x + th.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]


def test_waiting_is_counted():
    x = th.arange(3.0, device=CUDA)
    with waits() as found:
        y = (x * 2).sum()
        to_device(th.ones(3), CUDA)
    assert not found
    for wait in (y.item, x.cpu, lambda: th.ones(3).to(CUDA), lambda: x[x > 1], lambda: x.nonzero()):
        with waits() as found:
            wait()
        assert len(found) >= 1
        assert "test_device.py" in found[0] or "_tensor.py" in found[0]


def test_a_tree_is_read_in_one_copy():
    tree = {"b": (th.tensor([True, False], device=CUDA), th.tensor(2**40 + 1, device=CUDA)), "a": th.ones(2, 3).cuda()}
    with waits() as found:
        copied = read(tree)
    assert len(found) == 1
    assert copied["b"][0].tolist() == [True, False] and copied["b"][1].item() == 2**40 + 1
    assert copied["a"].device.type == "cpu" and copied["a"].equal(th.ones(2, 3))


def test_cudnns_layers_need_contiguous_states():
    layer = nn.LSTM(3, 4, batch_first=True).to(CUDA)
    state = th.zeros(2, 3, 4, device=CUDA)[:, :1].transpose(0, 1)
    with pytest.raises(RuntimeError, match="hx is not contiguous"):
        th.lstm(th.zeros(2, 5, 3, device=CUDA), (state, state), [*layer.parameters()], True, 1, 0.0, True, False, True)


@pytest.mark.parametrize("applied", [True, False])
def test_nobody_waits_for_a_step_of_adam(applied):
    p = nn.Parameter(th.ones(8, device=CUDA))
    reference = copy.deepcopy(p)
    optimizer, expected = (optim.Adam([each], lr=0.1, fused=True) for each in (p, reference))
    grad, learning_rate = th.ones(8, device=CUDA), th.tensor(0.1, device=CUDA)
    optimizer_step(optimizer, [p], (grad,), learning_rate, th.tensor(True, device=CUDA))
    reference.grad = grad.clone()
    expected.step()
    gate = th.tensor(applied, device=CUDA)
    th.cuda.set_sync_debug_mode("error")
    try:
        optimizer_step(optimizer, [p], (grad,), learning_rate, gate)
    finally:
        th.cuda.set_sync_debug_mode("default")
    if applied:
        expected.step()
    assert th.allclose(p, reference)
