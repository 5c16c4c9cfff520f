"""One minibatch as a function of tensors, in place, and by parts: the same step."""

import copy
import io
import signal
from functools import partial

import numpy as np
import pytest
import torch as th
from compiled import assert_trained_alike, needs_compiler, parameters
from envs import ACTIONS, OBSERVATIONS, MaskedEnv, vec
from models import SMALL, STRUCTURES, NoTraining, make_model, make_recurrent, weights
from networks import without_kinks
from optimizers import OPTIONS, coefficients_at, flat_state, gradients, network, optimizer_of, steps
from parametrization import all_pairs, part
from torch import nn, optim

from ppo_plus import Batch, Carry, MlpLstmPolicy, PPO_Plus
from ppo_plus.compiling.compiled import CompileError
from ppo_plus.formulas.kl_control import EarlyStop, KLControl
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.trees import tree_map
from ppo_plus.update.minibatch import (
    COUNTED,
    ELEMENTWISE,
    FINITE,
    TrainState,
    UpdateRule,
    clip_factor,
    functional_step,
    means,
    moments,
    names_not_finite,
    packed,
    pick,
    trainable,
)
from ppo_plus.update.update import in_place

CASES = {
    "discrete": ("discrete", "MlpPolicy", {}),
    "penalty": ("box", "MlpPolicy", dict(kl_control="penalty", target_kl=0.01, use_sde=True, ent_coef=0.01)),
    "stop": ("mixed", "MlpPolicy", dict(target_kl=1e-6)),
    "memory": ("multidiscrete", "MlpGruPolicy", dict(policy_kwargs=SMALL)),
    "RMSprop": ("box", "MlpPolicy", dict(policy_kwargs=dict(optimizer_class=optim.RMSprop))),
}


def trained(case):
    action, policy, arguments = CASES[case]
    sizes = dict(n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu", compile=False)
    return PPO_Plus(policy, vec(ACTIONS[action]), **sizes | arguments).learn(64)


def arguments_of(model):
    return coefficients_at(model)._replace(learning_rate=th.tensor(1e-3))


@pytest.mark.parametrize("case", CASES)
def test_the_function_of_tensors_and_the_step_in_place_agree(case):
    model = trained(case)
    twin = copy.deepcopy(model)
    results = []
    for learner, is_function in ((model, True), (twin, False)):
        control = learner.settings.control
        rule = UpdateRule(learner.policy, learner.compute_loss, control, 0.5)
        state, coefficients = control.init(), arguments_of(learner)
        rollout = learner.rollout_buffer.on_device()
        with packed(learner.policy.optimizer) as flat:
            for seed in range(3):
                th.manual_seed(seed)
                np.random.seed(seed)
                _, indices = next(learner.rollout_buffer.minibatches(16, rollout))
                if is_function:
                    # On copies, which it changes; the policy's weights stay unchanged meanwhile.
                    real = TrainState(trainable(flat)[0].data, rule.list_others(), moments(flat))
                    copies, before = tree_map(th.clone, real), real.vector.clone()
                    state, names, record = rule(copies, coefficients, rollout, state, indices)
                    assert th.equal(real.vector, before)
                    tree_map(th.Tensor.copy_, real._replace(others=[]), copies._replace(others=[]))
                else:
                    state, names, record = in_place(rule, flat, coefficients)(rollout, state, indices)
            results.append((trainable(flat)[0].detach().clone(), dict(moments(flat)), names, record, state))
    (vector, kept, names, record, state), (other, others, same_names, numbers, final) = results
    th.testing.assert_close(vector, other, rtol=0, atol=2e-6)
    for name in kept:
        th.testing.assert_close(kept[name], others[name], rtol=1e-4, atol=1e-6)
    assert names == same_names
    th.testing.assert_close(record, numbers, rtol=1e-4, atol=1e-6)
    assert state.running == final.running == (case != "stop")


# --- rows of a rollout, and with memory the sequences that they are ---------------------------------------------------


def sequences(n=3, length=2):
    """Sequences one after another; before each, its number is remembered."""
    numbers = th.arange(float(n * length))
    memory = {"actor": (th.arange(float(n)).view(n, 1, 1),)}
    starts = th.zeros(n * length, dtype=th.bool)
    valid = numbers % 3 != 0
    fields = {name: numbers for name in ("old_values", "old_log_prob", "advantages", "returns")}
    observations = {"a": numbers[:, None]}
    return Batch(observations, numbers[:, None], **fields, carry=Carry(memory), episode_starts=starts, valid=valid)


def test_memory_goes_with_its_sequence():
    batch = pick(sequences(), th.tensor([4, 5, 0, 1]))
    assert batch.returns.tolist() == batch.observations["a"].flatten().tolist() == [4, 5, 0, 1]
    assert batch.carry.memory["actor"][0].flatten().tolist() == [2, 0]


def test_valid_transitions_are_in_no_sequences():
    batch = sequences().only_valid()
    assert batch.returns.tolist() == batch.actions.flatten().tolist() == [1, 2, 4, 5]
    assert batch.carry is None and batch.valid is None


# --- policies with memory, compiled from the recurrent layers on: the chain rule, and the same training ---------------

FROZEN = {"nothing": (), "recurrent layers": ("lstm", "gru"), "hidden layers": ("mlp_extractor", "action_net")}


def both_ways(model):
    """Loss and gradient of one minibatch: as a whole, and by the chain rule with nothing compiled."""
    model.__class__ = NoTraining
    model.learn(64)
    # Other weights than those of the rollout, so that ratios are not 1.
    with th.no_grad():
        for weight in model.policy.parameters():
            weight.add_(0.02 * th.randn_like(weight))
    rule = UpdateRule(model.policy, partial(PPO_Plus.compute_loss, model), KLControl(), 0.5)
    coefficients, state = coefficients_at(model), KLControl().init()
    with packed(model.policy.optimizer) as flat:
        rollout, indices = next(model.rollout_buffer.minibatches(32))
        train_state = TrainState(trainable(flat)[0].data, rule.list_others(), {})
        head = partial(rule.gradient, train_state, coefficients, rollout, state, indices)
        whole = rule.own_gradient(coefficients, rollout, state, indices)
        return whole, rule.gradient_by_parts(head, pick(rollout, indices))


@pytest.mark.parametrize(
    ("layer", "structure", "observation", "frozen"),
    all_pairs(["Lstm", "Gru"], [*STRUCTURES, "own features"], ["box", "dict"], FROZEN),
)
def test_the_chain_rule_gives_the_whole_gradient(layer, structure, observation, frozen):
    policy = f"{'MultiInput' if observation == 'dict' else 'Mlp'}{layer}Policy"
    memory = STRUCTURES.get(structure, dict(share_features_extractor=False))
    model = make_recurrent("mixed", policy, observation=observation, memory=memory, n_steps=32, use_sde=True)
    for name, weight in model.policy.named_parameters():
        weight.requires_grad_(not name.startswith(FROZEN[frozen]))
    (losses, grads), (losses_by_parts, grads_by_parts) = both_ways(model)
    assert th.equal(losses.total, losses_by_parts.total)
    assert losses.diagnostics.keys() == losses_by_parts.diagnostics.keys()
    assert sum(grad is not None for grad in grads) > 2
    for grad, by_parts in zip(grads, grads_by_parts, strict=True):
        assert (grad is None) == (by_parts is None)
        assert grad is None or th.allclose(grad, by_parts, rtol=1e-4, atol=1e-7)


TRAINED_CASES = {
    "LSTM, gSDE": ("MlpLstmPolicy", "box", "box", dict(use_sde=True, clip_range_vf=0.2)),
    "two shared layers, dropout": (
        "MlpLstmPolicy",
        "multibinary",
        "box",
        dict(memory=STRUCTURES["shared"] | dict(n_lstm_layers=2, lstm_kwargs=dict(dropout=0.3))),
    ),
    "GRU, masks, penalty": (
        "MultiInputGruPolicy",
        "mixed",
        "dict",
        dict(kl_control="penalty", target_kl=0.01, ent_coef=0.01, batch_size=80),
    ),
}
#: Random numbers within the update. Inductor compiles masks in tests/test_compile.py.
BY_INDUCTOR = "two shared layers, dropout"


@needs_compiler
@pytest.mark.parametrize("case", part(TRAINED_CASES, ["LSTM, gSDE"]))
@pytest.mark.slow
def test_compiled_and_eager_train_the_same(case, request):
    if case != BY_INDUCTOR:
        request.getfixturevalue("traced")
    policy, action, observation, arguments = TRAINED_CASES[case]
    env_class = (MaskedEnv,) if "masks" in case else ()
    eager, compiled = (
        without_kinks(
            make_recurrent(
                policy=policy,
                env=vec(ACTIONS[action], OBSERVATIONS[observation], 4, *env_class),
                **dict(n_steps=32, batch_size=64, n_epochs=3, compile=compile) | arguments,
            )
        ).learn(256)
        for compile in (False, True)
    )
    assert_trained_alike(eager, compiled)


class Augmented(PPO_Plus):
    """Evaluates the policy's heads at other features than those of the minibatch as well."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        features = self.policy.encode_batch(batch)
        values = self.policy.heads(features._replace(critic=features.critic + 0.5)).values
        return losses.plus("smooth", values.square().mean())


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_a_custom_loss_is_compiled_too():
    eager, compiled = (make_recurrent("box", cls=Augmented, compile=compile).learn(64) for compile in (False, True))
    assert_trained_alike(eager, compiled)


class Elsewhere(PPO_Plus):
    """Evaluates the policy at other observations than those of the minibatch as well."""

    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        values, _ = self.policy.evaluate(batch.observations + 0.5, batch.carry, batch.episode_starts)
        return losses.plus("smooth", values.square().mean())


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_a_loss_that_needs_the_encoder_elsewhere_runs_eagerly(monkeypatch):
    monkeypatch.setattr("ppo_plus.compiling.compiled.WORTH_COMPILING", 1)
    eager = make_recurrent("box", cls=Elsewhere).learn(32)
    auto = make_recurrent("box", cls=Elsewhere, compile="auto")
    with pytest.warns(RuntimeWarning, match="the update runs uncompiled"):
        auto.learn(32)
    assert auto.compilation.functions["acting"]._run and not auto.compiled
    assert th.allclose(parameters(eager), parameters(auto), atol=1e-6)
    with pytest.raises(CompileError, match="the update could not be compiled"):
        make_recurrent("box", cls=Elsewhere, compile=True).learn(32)


@needs_compiler
@pytest.mark.usefixtures("traced")
def test_an_evaluate_of_the_users_is_not_left_out_where_the_encoder_is_not_compiled():
    class Doubled(MlpLstmPolicy):
        def evaluate(self, *args, **kwargs):
            values, params = super().evaluate(*args, **kwargs)
            return 2 * values, params

    with pytest.raises(CompileError, match="Doubled overrides evaluate"):
        make_recurrent("box", Doubled, compile=True).learn(32)


# --- from a gradient to new weights: clipping, the optimizer's step as a function, and records ------------------------


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


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("Adam_fused", "Adam_foreach")])
def test_the_step_that_is_compiled_is_the_optimizers(name):
    """Made with a learning rate of 1 and scaled, and with a tensor for everything that changes."""
    plain, compiled = network(), network()
    optimizers = optimizer_of(name, plain), optimizer_of(name, compiled)
    steps(optimizers[0], plain, range(3))
    with packed(optimizers[1]) as flat:
        steps(flat, compiled, [0])
        vector, state = trainable(flat)[0].data, moments(flat)
        step = partial(functional_step, flat, TrainState(vector, [], state))
        for seed in (1, 2):
            _, grads = gradients(compiled, seed)
            grad = th.cat([part.reshape(-1) for part in grads])
            step((grad,), th.tensor(0.01), th.tensor(True))
        before = vector.clone(), {name: moment.clone() for name, moment in state.items()}
        step((grad,), th.tensor(0.01), th.tensor(False))
        assert th.equal(vector, before[0])
        assert all(th.equal(moment, before[1][name]) for name, moment in state.items())
    for mine, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        th.testing.assert_close(mine, other, rtol=1e-5, atol=2e-6)


NAN = float("nan")


def coefficients(learning_rate, target_kl):
    nothing = th.tensor(NAN)
    rates = {"learning_rate": th.tensor(learning_rate), "target_kl": th.tensor(target_kl)}
    return Coefficients(None, None, ent_coef=nothing, vf_coef=nothing, **rates)


def applied_by(control, step, losses, state, *rates):
    """The outcome of a step along a gradient of ones."""
    rule = UpdateRule(policy=None, compute_loss=None, control=control, max_grad_norm=0.5)
    return rule.apply(step, losses, (th.ones(4),), state, coefficients(*rates))


@pytest.mark.parametrize(
    ("loss", "kl", "running", "applied"),
    [(1.0, 0.01, True, True), (1.0, 0.02, True, False), (1.0, 0.01, False, False), (NAN, 0.01, True, False)],
)
def test_steps_need_the_controls_consent_and_finite_numbers(loss, kl, running, applied):
    asked = []
    losses = Losses(th.tensor(loss), {"approx_kl": th.tensor(kl)})
    state = EarlyStop().init()._replace(running=th.tensor(running), lr_scale=th.tensor(0.5))
    after, names, record = applied_by(EarlyStop(), lambda *args: asked.append(args), losses, state, 0.1, 0.01)
    ((grad,), learning_rate, is_applied) = asked[0]
    assert is_applied.item() == applied and learning_rate == 0.05
    th.testing.assert_close(grad, th.full((4,), 0.25))
    # A minibatch that is not finite leaves the control as it is; the one that stops the update still counts.
    assert after.running.item() == (running and kl < 0.015)
    assert (record[FINITE], record[COUNTED]) == (loss == loss, loss == loss and running)
    assert names == ("loss", "approx_kl", "grad_norm") and len(record) == 5


def test_without_a_control_finite_steps_are_applied():
    asked, state = [], KLControl().init()
    for loss in (1.0, NAN):
        applied_by(
            KLControl(), lambda *args: asked.append(args[-1].item()), Losses(th.tensor(loss), {}), state, 0.1, NAN
        )
    assert asked == [True, False]


@pytest.mark.filterwarnings("ignore:batch_size=8 does not divide")
def test_other_diagnostics_in_another_minibatch_are_named():
    class Wrong(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            losses = super().compute_loss(batch, coefficients)
            return losses.plus(f"of {len(batch.actions)}", losses.total.detach())

    message = r"'of 8', .* in one minibatch and .*'of 4', .*: return the same, in the same order"
    with pytest.raises(ValueError, match=message):
        make_model(Wrong, n_steps=6, compile=False).learn(12)


def test_means_are_over_applied_minibatches():
    rows = [[1.0, 1.0, 2.0, 5.0], [1.0, 1.0, 4.0, 7.0], [0.0, 0.0, NAN, NAN]]
    found = means(("loss", "mine"), th.tensor(rows))
    assert found == {"loss": 3.0, "mine": 6.0}
    assert means(("loss",), th.zeros(1, 3))["loss"].isnan()


def test_what_is_not_finite_is_named():
    assert names_not_finite(("loss", "mine", "grad_norm"), th.tensor([0.0, 0.0, NAN, 1.0, th.inf])) == "loss, grad_norm"


def test_a_diagnostic_may_have_the_name_of_the_loss():
    losses = Losses(th.tensor(1.0), {"loss": th.tensor(2.0)})
    _, names, record = applied_by(KLControl(), lambda *args: None, losses, KLControl().init(), 0.1, NAN)
    assert means(names, record[None]) == {"loss": 2.0, "grad_norm": 2.0}


# --- flat vectors: packing changes the cost of a gradient step, not its result --------------------------------------

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
def test_packing_changes_neither_values_nor_places(name):
    module = network()
    optimizer = optimizer_of(name, module)
    steps(optimizer, module, range(2))
    weights, pointers = [p.detach().clone() for p in module.parameters()], [p.data_ptr() for p in module.parameters()]
    state = flat_state(optimizer)
    with packed(optimizer) as flat:
        # All weights, and only they, share one vector.
        storages = {p.untyped_storage().data_ptr() for p in module.parameters()}
        assert storages == {part.untyped_storage().data_ptr() for part in trainable(flat)} and len(storages) == 1
    assert all(map(th.equal, module.parameters(), weights))
    assert [p.data_ptr() for p in module.parameters()] == pointers and len(set(pointers)) == 4
    after = flat_state(optimizer)
    assert after.keys() == state.keys()
    assert all(th.equal(after[key], state[key]) for key in state)


@PACKABLE
def test_steps_on_the_packed_vector_are_steps_on_the_parameters(name):
    """Also if an exception ends them, in an optimizer that is saved and loaded, and without packing again."""
    plain, module, twin = network(), network(), network()
    plain_optimizer, optimizer, other = (optimizer_of(name, each) for each in (plain, module, twin))
    for seeds in (range(3), range(3, 5)):
        steps(plain_optimizer, plain, seeds)
        with pytest.raises(KeyError), packed(optimizer) as flat:
            steps(flat, module, seeds)
            raise KeyError
    assert_same(module, plain, optimizer, plain_optimizer)
    file = io.BytesIO()
    th.save((module.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    for each, state in zip((twin, other), th.load(file, weights_only=False), strict=True):
        each.load_state_dict(state)
    for each, each_optimizer in ((plain, plain_optimizer), (module, optimizer)):
        steps(each_optimizer, each, [7])
    with packed(other) as flat:
        steps(flat, twin, [7])
    assert_same(module, plain, optimizer, plain_optimizer)
    assert_same(twin, plain, other, plain_optimizer)


def test_a_change_of_the_learning_rate_stays_inside():
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.5)
    with packed(optimizer) as flat:
        assert flat.param_groups[0]["lr"] == 0.5
        flat.param_groups[0]["lr"] = 0.1
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_frozen_parameter_does_not_change():
    module = network()
    module.p1.requires_grad_(False)
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    with packed(optimizer) as flat:
        steps(flat, module, [0])
    assert [th.equal(p, old) for p, old in zip(module.parameters(), before, strict=True)] == [False, True, False, False]
    module.requires_grad_(False)
    with pytest.raises(ValueError, match="all weights of the policy are frozen: set requires_grad=True"):
        packed(optimizer).__enter__()


def test_a_frozen_parameter_of_an_optimizer_that_is_not_packed_does_not_change():
    module = network()
    optimizer = two_groups(module)
    steps(optimizer, module, [0])  # leaves gradients
    module.p1.requires_grad_(False)
    before = module.p1.clone()
    with packed(optimizer) as same:
        same.step()
    assert same is optimizer and th.equal(module.p1, before)


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
    [
        *(two_groups, with_hook, with_another_step, stepped_unevenly),
        # A custom class may do anything.
        pytest.param(lambda module: type("Own", (optim.Adam,), {})(module.parameters()), id="own class"),
        pytest.param(lambda module: optim.Adam(module.double().parameters()), id="double"),
    ],
)
def test_optimizers_that_cannot_be_packed_are_used_unchanged(make):
    optimizer = make(network())
    with packed(optimizer) as flat:
        assert flat is optimizer


# --- within the algorithm --------------------------------------------------------------------------------------------


def trained_again(model):
    """The weights after another update on the same rollout, in the same order of minibatches."""
    np.random.seed(1)
    model.train()
    return weights(model)


@pytest.mark.parametrize("optimizer_class", part(ELEMENTWISE, [optim.Adam, optim.RMSprop]))
def test_optimizer_state_is_saved_and_used_in_the_next_update(optimizer_class, tmp_path):
    policy_kwargs = {"optimizer_class": optimizer_class}
    model = make_model(env=vec(ACTIONS["box"]), policy_kwargs=policy_kwargs, n_epochs=3).learn(16)
    assert {int(state["step"]) for state in model.policy.optimizer.state.values() if "step" in state} <= {2 * 3}
    model.save(tmp_path / "model")
    loaded, forgetful = (PPO_Plus.load(tmp_path / "model", device="cpu") for _ in range(2))
    expected, found = flat_state(model.policy.optimizer), flat_state(loaded.policy.optimizer)
    assert expected.keys() == found.keys()
    assert all(th.equal(expected[key], found[key]) for key in expected)
    forgetful.policy.optimizer.state.clear()
    for each in (loaded, forgetful):
        each.rollout_buffer, each._logger = model.rollout_buffer, model.logger
    assert th.equal(trained_again(model), trained_again(loaded))
    if expected:
        assert not th.equal(weights(model), trained_again(forgetful))


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


class Interrupted(PPO_Plus):
    """Is interrupted in the second minibatch of the second update."""

    n = 0

    def compute_loss(self, batch, coefficients):
        self.n += 1
        if self.n == 4 + 2:
            signal.raise_signal(signal.SIGINT)
        return super().compute_loss(batch, coefficients)


def test_an_interrupt_finds_weights_and_moments_of_a_minibatch():
    model = make_model(Interrupted).learn(16)
    with pytest.raises(KeyboardInterrupt):
        model.learn(16, reset_num_timesteps=False)
    parameters = [*model.policy.parameters()]
    moments = [model.policy.optimizer.state[p] for p in parameters]
    assert {int(state["step"]) for state in moments} == {6}
    assert [state["exp_avg"].shape for state in moments] == [p.shape for p in parameters]
    assert len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
    # Training can continue.
    interrupted = weights(model)
    assert th.isfinite(weights(model.learn(16))).all() and not th.equal(weights(model), interrupted)
