"""Packing and clipping change the cost of a gradient step, not its result."""

import copy
import io

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from torch import nn, optim

from ppo_plus import PPO_Plus
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.update.engine import ELEMENTWISE, FLAGS, Records, Update, Weights, clip_factor, packed

#: Beside the plain ones: state that is only there with certain options.
OPTIONS = {
    **{cls.__name__: (cls, {}) for cls in ELEMENTWISE},
    "SGD_momentum": (optim.SGD, {"momentum": 0.9}),
    "Adam_amsgrad": (optim.Adam, {"amsgrad": True}),
    "Adam_fused": (optim.Adam, {"fused": True}),
    "Adam_foreach": (optim.Adam, {"foreach": True}),
    "RMSprop_centered": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
}
PACKABLE = pytest.mark.parametrize("name", OPTIONS)


def network(seed=0):
    th.manual_seed(seed)
    # A scalar, a vector, a matrix and a tensor of more dimensions.
    module = nn.Module()
    for number, shape in enumerate([(), (3,), (2, 3), (2, 1, 3)]):
        module.register_parameter(f"p{number}", nn.Parameter(th.randn(shape)))
    return module


def optimizer_of(name, module):
    cls, options = OPTIONS[name]
    return cls(module.parameters(), lr=0.01, **options)


def gradients(module, seed):
    generator = th.Generator().manual_seed(seed)
    loss = sum((p * th.randn(p.shape, generator=generator)).sum() + p.square().sum() for p in module.parameters())
    params = [p for p in module.parameters() if p.requires_grad]
    return params, th.autograd.grad(loss, params)


def steps(optimizer, module, seeds):
    """Steps of an optimizer, or of the one lent with packed weights."""
    for seed in seeds:
        params, grads = gradients(module, seed)
        if isinstance(optimizer, Weights) and optimizer.vector is not None:
            optimizer.targets[0].grad = th.cat([grad.reshape(-1) for grad in grads])
            optimizer.optimizer.step()
            continue
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
        optimizer.step()


def flat_state(optimizer):
    """The state as numbers, for comparison."""
    states = optimizer.state_dict()["state"]
    return {
        (index, name): th.as_tensor(value, dtype=th.float64)
        for index, state in states.items()
        for name, value in state.items()
        if value is not None
    }


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
            assert len(lent.targets) == 1
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
def test_an_exception_leaves_values_and_state_where_they_were_at_that_moment(name):
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
        assert storages == {lent.vector.untyped_storage().data_ptr()}
    assert len({p.untyped_storage().data_ptr() for p in module.parameters()}) == 4


def test_a_change_of_the_learning_rate_stays_inside():
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.5)
    with packed(optimizer) as lent:
        assert lent.optimizer.param_groups[0]["lr"] == 0.5
        lent.optimizer.param_groups[0]["lr"] = 0.1
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_frozen_parameter_stays_as_it_is():
    module = network()
    module.p1.requires_grad_(False)
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    with packed(optimizer) as lent:
        steps(lent, module, [0])
    assert [th.equal(p, old) for p, old in zip(module.parameters(), before, strict=True)] == [False, True, False, False]


class NotElementwise(optim.Adam):
    """A class of one's own may do anything."""


def two_groups(module):
    first, *rest = module.parameters()
    return optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}])


def with_hook(module):
    optimizer = optim.Adam(module.parameters())
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def stepped_unevenly(module):
    optimizer = optim.Adam(module.parameters())
    module.p0.grad = th.ones(())
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [lambda module: NotElementwise(module.parameters()), two_groups, with_hook, stepped_unevenly],
    ids=["own_class", "two_groups", "hook", "uneven_state"],
)
def test_what_cannot_be_packed_is_lent_as_it_is(make):
    module = network()
    optimizer = make(module)
    with packed(optimizer) as lent:
        assert lent.optimizer is optimizer and lent.vector is None and lent.moments == {}


def test_parameters_of_another_precision_are_not_packed():
    module = network().double()
    optimizer = optim.Adam(module.parameters())
    with packed(optimizer) as lent:
        assert lent.optimizer is optimizer and lent.vector is None and lent.moments == {}


# --- clipping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [1e-3, 0.5, 1e3])
@pytest.mark.parametrize("in_one_vector", [True, False])
def test_clipping_is_torchs(max_norm, in_one_vector):
    module = network()
    params, grads = gradients(module, 3)
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad.clone()
    expected = nn.utils.clip_grad_norm_(params, max_norm)
    vector = th.cat([grad.reshape(-1) for grad in grads])
    norm, factor = clip_factor((vector,) if in_one_vector else grads, max_norm)
    # One sum of 16 squares instead of a sum of four.
    th.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    th.testing.assert_close(vector * factor, th.cat([p.grad.reshape(-1) for p in params]), rtol=1e-6, atol=0)


def test_clipping_passes_over_missing_gradients():
    norm, factor = clip_factor((None, th.full((3,), 2.0), th.full((2, 3), -2.0)), 1.0)
    assert (norm.item(), factor.item()) == pytest.approx((6.0, 1 / 6))


# --- within the algorithm --------------------------------------------------------------------------------------------


def make(optimizer_class, **kwargs):
    env = vec(ACTIONS["box"])
    policy_kwargs = {"optimizer_class": optimizer_class}
    return PPO_Plus(
        "MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu", policy_kwargs=policy_kwargs, **kwargs
    )


def weights(model):
    return nn.utils.parameters_to_vector(model.policy.parameters()).detach()


@pytest.mark.parametrize("optimizer_class", ELEMENTWISE)
def test_optimizer_state_goes_through_saving_and_on_into_the_next_update(optimizer_class, tmp_path):
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


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("Adam_fused", "Adam_foreach")])
def test_the_step_that_is_compiled_is_the_optimizers(name):
    """Made with a learning rate of 1 and scaled, and with a tensor for everything that changes."""
    plain, compiled = network(), network()
    optimizers = optimizer_of(name, plain), optimizer_of(name, compiled)
    steps(optimizers[0], plain, range(3))
    with packed(optimizers[1]) as weights:
        steps(weights, compiled, [0])
        update = Update(compiled, None, KLControl(), 1.0)
        update.weights = weights
        for seed in (1, 2):
            _, grads = gradients(compiled, seed)
            grad = th.cat([part.reshape(-1) for part in grads])
            update._functional_step(weights.vector, weights.moments, grad, th.tensor(0.01), th.tensor(True))
        before = weights.vector.clone()
        update._functional_step(weights.vector, weights.moments, grad, th.tensor(0.01), th.tensor(False))
        assert th.equal(weights.vector, before)
    for mine, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        th.testing.assert_close(mine, other, rtol=1e-5, atol=2e-6)


class WrongDiagnostic(PPO_Plus):
    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        return losses._replace(diagnostics=losses.diagnostics | {"mine": 3.0})


def test_a_diagnostic_that_is_no_tensor_is_named():
    model = WrongDiagnostic("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=4, batch_size=8, compile=False)
    with pytest.raises(ValueError, match=r"diagnostics \['mine'\] that are not 0-d tensors"):
        model.learn(8)


def test_means_are_over_the_minibatches_that_count_and_of_equal_names_the_last_is_meant():
    nan = float("nan")
    rows = [[1.0, 1.0, 2.0, 5.0, 1.0], [1.0, 1.0, 4.0, 7.0, 2.0], [0.0, 0.0, nan, nan, nan]]
    records = Records((*FLAGS, "loss", "mine", "loss"), [th.tensor(row) for row in rows])
    assert list(records.columns) == ["loss", "mine"]
    assert records.mean("mine") == 6.0 and records.mean("loss") == 1.5
    assert records.finite() == [True, True, False]
    assert Records((*FLAGS, "loss"), [th.zeros(3)]).mean("loss").isnan()
