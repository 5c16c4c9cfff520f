"""A recorded function returns what it would return otherwise."""

import pytest
import torch as th

from ppo_plus.compiling.compiled import Compiled, Replayed

CUDA = th.device("cuda")


def counted(function):
    """The function, and a list with an entry for each time that it ran."""
    runs = []

    def run(given):
        runs.append(1)
        return function(*given)

    return run, runs


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_function_is_recorded_at_its_second_call(device):
    if th.device(device).index >= th.cuda.device_count():
        pytest.skip("there is one GPU")
    total, (run, runs) = th.zeros(3, device=device), counted(lambda total, x: [total.add_(x), x * 2])
    replayed = Replayed(run, 1)
    results = [replayed([total, th.full((3,), float(i), device=device)]) for i in range(5)]
    assert len(runs) == 2
    # Each result is its own, and the static tensor was changed once for each call.
    assert [doubled.tolist() for _, doubled in results] == [[2.0 * i] * 3 for i in range(5)]
    assert total.tolist() == [10.0] * 3


def test_it_is_recorded_again_after_a_tensor_has_moved():
    run, runs = counted(lambda a, x: [a + x])
    replayed, one, other = Replayed(run, 1), th.ones(2, device=CUDA), th.full((2,), 5.0, device=CUDA)
    for a, expected in [(one, 3.0)] * 3 + [(other, 7.0)] * 3 + [(one, 3.0)] * 2:
        (result,) = replayed([a, th.full((2,), 2.0, device=CUDA)])
        assert result.tolist() == [expected] * 2
    one.fill_(2.0)
    assert replayed([one, th.zeros(2, device=CUDA)])[0].tolist() == [2.0, 2.0]
    assert len(runs) == 6


def test_random_numbers_are_those_of_the_generator():
    def noisy(x):
        return [x + th.randn_like(x)]

    run, runs = counted(noisy)
    replayed, x = Replayed(run, 0), th.zeros(100, device=CUDA)
    th.manual_seed(3)
    expected = [noisy(x)[0] for _ in range(5)]
    th.manual_seed(3)
    found = [replayed([x])[0] for _ in range(5)]
    assert len(runs) <= 2 and all(a.equal(b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("other", [th.tensor(2.0), th.tensor(2.0).to(CUDA).expand(3)], ids=["on the CPU", "expanded"])
def test_what_cannot_be_recorded_runs_unrecorded(other):
    run, runs = counted(lambda x, y: [x * y])
    replayed, x = Replayed(run, 1), th.ones(3, device=CUDA)
    for _ in range(4):
        assert replayed([x, other])[0].tolist() == [2.0] * 3
    assert len(runs) == 4


def test_numbers_drawn_on_the_cpu_are_drawn_again(is_simulated, request):
    """A replay would have those of the recording."""
    if is_simulated:
        request.getfixturevalue("traced")

    def shaken(x):
        return x + th.randn(3).to(x.device, non_blocking=True)

    compiled, x = Compiled(shaken, "shaking", strict=True), th.zeros(3, device=CUDA)
    bound = compiled.bind(x)
    th.manual_seed(5)
    expected = [shaken(x) for _ in range(4)]
    bound()
    th.manual_seed(5)
    assert compiled._run and all(bound().equal(each) for each in expected)
