"""Packing changes the cost of a gradient step, not its result."""

import copy
import io
import signal
import sys

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from models import make_model, weights
from optimizers import OPTIONS, flat_state, network, optimizer_of, steps
from torch import optim

from ppo_plus import PPO_Plus
from ppo_plus.update.flat import ELEMENTWISE, packed, trainable

PACKABLE = pytest.mark.parametrize("name", OPTIONS)


def assert_same(first, second, first_optimizer, second_optimizer):
    # Fused kernels order their multiplications differently: a few float32 roundings.
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        th.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    mine, other = flat_state(first_optimizer), flat_state(second_optimizer)
    assert mine.keys() == other.keys()
    for key in mine:
        th.testing.assert_close(mine[key], other[key], rtol=1e-5, atol=1e-6)


@PACKABLE
def test_steps_on_the_packed_vector_are_steps_on_the_parameters(name):
    plain, module = network(), network()
    plain_optimizer, optimizer = optimizer_of(name, plain), optimizer_of(name, module)
    for seeds in (range(3), range(3, 5)):
        steps(plain_optimizer, plain, seeds)
        with packed(optimizer) as lent:
            assert len(trainable(lent)) == 1
            steps(lent, module, seeds)
    assert_same(module, plain, optimizer, plain_optimizer)


@PACKABLE
def test_packing_alone_changes_nothing(name):
    module = network()
    optimizer = optimizer_of(name, module)
    steps(optimizer, module, range(2))
    weights = [p.detach().clone() for p in module.parameters()]
    state, pointers = flat_state(optimizer), [p.data_ptr() for p in module.parameters()]
    with packed(optimizer):
        pass
    assert all(map(th.equal, module.parameters(), weights))
    assert [p.data_ptr() for p in module.parameters()] == pointers
    after = flat_state(optimizer)
    assert after.keys() == state.keys()
    assert all(th.equal(after[key], state[key]) for key in state)


@PACKABLE
def test_an_exception_keeps_values_and_state_of_that_moment(name):
    plain, module = network(), network()
    plain_optimizer, optimizer = optimizer_of(name, plain), optimizer_of(name, module)
    pointers = [p.data_ptr() for p in module.parameters()]
    steps(plain_optimizer, plain, range(2))
    with pytest.raises(KeyError), packed(optimizer) as lent:
        steps(lent, module, range(2))
        raise KeyError
    assert_same(module, plain, optimizer, plain_optimizer)
    assert [p.data_ptr() for p in module.parameters()] == pointers
    # It is an ordinary optimizer again.
    steps(plain_optimizer, plain, [7])
    steps(optimizer, module, [7])
    assert_same(module, plain, optimizer, plain_optimizer)


@PACKABLE
def test_state_after_packing_can_be_saved_and_loaded(name):
    module = network()
    optimizer = optimizer_of(name, module)
    with packed(optimizer) as lent:
        steps(lent, module, range(2))
    twin = copy.deepcopy(module)
    other = optimizer_of(name, twin)
    file = io.BytesIO()
    th.save(optimizer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(th.load(file, weights_only=False))
    for each_module, each in ((module, optimizer), (twin, other)):
        with packed(each) as lent:
            steps(lent, each_module, [7])
    assert_same(module, twin, optimizer, other)


def test_parameters_share_one_vector_inside_and_none_outside():
    module = network()
    optimizer = optim.Adam(module.parameters())
    with packed(optimizer) as lent:
        storages = {p.untyped_storage().data_ptr() for p in module.parameters()}
        assert storages == {trainable(lent)[0].untyped_storage().data_ptr()}
    assert len({p.untyped_storage().data_ptr() for p in module.parameters()}) == 4


def test_a_change_of_the_learning_rate_stays_inside():
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.5)
    with packed(optimizer) as lent:
        assert lent.param_groups[0]["lr"] == 0.5
        lent.param_groups[0]["lr"] = 0.1
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_frozen_parameter_does_not_change():
    module = network()
    module.p1.requires_grad_(False)
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    with packed(optimizer) as lent:
        steps(lent, module, [0])
    assert [th.equal(p, old) for p, old in zip(module.parameters(), before, strict=True)] == [False, True, False, False]


class NotElementwise(optim.Adam):
    """A custom class may do anything."""


def two_groups(module):
    first, *rest = module.parameters()
    return optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}])


def with_hook(module):
    optimizer = optim.Adam(module.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def with_another_step(module):
    optimizer = optim.Adam(module.parameters())
    optimizer.step = lambda: None
    return optimizer


def stepped_unevenly(module):
    optimizer = optim.Adam(module.parameters())
    module.p0.grad = th.ones(())
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [lambda module: NotElementwise(module.parameters()), two_groups, with_hook, with_another_step, stepped_unevenly],
    ids=["own_class", "two_groups", "hook", "another_step", "uneven_state"],
)
def test_optimizers_that_cannot_be_packed_are_used_unchanged(make):
    module = network()
    optimizer = make(module)
    with packed(optimizer) as lent:
        assert lent is optimizer


def test_parameters_of_another_precision_are_not_packed():
    module = network().double()
    optimizer = optim.Adam(module.parameters())
    with packed(optimizer) as lent:
        assert lent is optimizer


# --- within the algorithm --------------------------------------------------------------------------------------------


def make(optimizer_class, **kwargs):
    env = vec(ACTIONS["box"])
    return make_model(env=env, policy_kwargs={"optimizer_class": optimizer_class}, **kwargs)


@pytest.mark.parametrize("optimizer_class", ELEMENTWISE)
def test_optimizer_state_is_saved_and_used_in_the_next_update(optimizer_class, tmp_path):
    model = make(optimizer_class).learn(16)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", device="cpu")
    expected, found = flat_state(model.policy.optimizer), flat_state(loaded.policy.optimizer)
    assert expected.keys() == found.keys()
    assert all(th.equal(expected[key], found[key]) for key in expected)

    # The same rollout for both, in the same order of minibatches.
    loaded.rollout_buffer, loaded._logger = model.rollout_buffer, model.logger
    for each in (model, loaded):
        np.random.seed(1)
        each.train()
    assert th.equal(weights(model), weights(loaded))


def test_forgetting_the_optimizer_state_would_be_noticed():
    model = make(optim.Adam).learn(16)
    twin = copy.deepcopy(model.policy.state_dict())
    results = []
    for forget in (False, True):
        model.policy.load_state_dict(twin)
        if forget:
            model.policy.optimizer.state.clear()
        else:
            saved = copy.deepcopy(model.policy.optimizer.state_dict())
        np.random.seed(1)
        model.train()
        results.append(weights(model).clone())
        model.policy.optimizer.load_state_dict(saved)
    assert not th.allclose(*results, atol=1e-4)


def test_adam_counts_every_step_of_every_update():
    model = make(optim.Adam, n_epochs=3).learn(32)
    counts = {state["step"].item() for state in model.policy.optimizer.state.values()}
    assert counts == {2 * 3 * 2}


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


class Remembering(PPO_Plus):
    """Keeps the weights before each minibatch."""

    def compute_loss(self, batch, coefficients):
        self.seen.append(weights(self))
        return super().compute_loss(batch, coefficients)


def interrupted_at(line, model):
    """Learn, with a Ctrl-C at the given line of those of ``flat.py`` that run; returns how many lines have run."""
    n_lines = 0

    def trace(frame, event, _):
        nonlocal n_lines
        if not frame.f_code.co_filename.endswith("update/flat.py"):
            return None
        n_lines += event == "line"
        if event == "line" and n_lines == line:
            signal.raise_signal(signal.SIGINT)
        return trace

    model.set_random_seed(0)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        model.learn(16, reset_num_timesteps=False)
        assert line == 0
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return n_lines


def test_an_interrupt_finds_weights_and_moments_of_a_minibatch():
    """Also in the middle of packing and unpacking them."""
    learned = make_model(Remembering)
    learned.seen = []
    learned.learn(16)
    n_lines = interrupted_at(0, whole := copy.deepcopy(learned))
    states = [*whole.seen[4:], weights(whole)]
    n_steps = set()
    for line in range(1, n_lines, 73):
        model = copy.deepcopy(learned)
        interrupted_at(line, model)
        parameters = [*model.policy.parameters()]
        moments = [model.policy.optimizer.state[p] for p in parameters]
        steps = {int(state["step"]) for state in moments}
        assert len(steps) == 1 and [state["exp_avg"].shape for state in moments] == [p.shape for p in parameters]
        assert th.equal(weights(model), states[min(steps) - 4])
        assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
        n_steps |= steps
    assert {5, 8} <= n_steps
