"""From a gradient to new weights: clipping, the optimizer's step as a function, and records."""

import pytest
import torch as th
from envs import ACTIONS, vec
from optimizers import OPTIONS, gradients, network, optimizer_of, steps
from torch import nn

from ppo_plus import PPO_Plus
from ppo_plus.formulas.kl_control import EarlyStop, KLControl
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.update.flat import moments, packed, trainable
from ppo_plus.update.step import COUNTED, FINITE, apply, clip_factor, functional_step, means, names_not_finite


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
    with packed(optimizers[1]) as lent:
        steps(lent, compiled, [0])
        vector, state = trainable(lent)[0].data, moments(lent)
        step = functional_step(lent, vector, state)
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


@pytest.mark.parametrize(
    ("loss", "kl", "running", "applied"),
    [(1.0, 0.01, True, True), (1.0, 0.02, True, False), (1.0, 0.01, False, False), (NAN, 0.01, True, False)],
)
def test_steps_need_the_controls_consent_and_finite_numbers(loss, kl, running, applied):
    asked = []
    losses = Losses(th.tensor(loss), {"approx_kl": th.tensor(kl)})
    state = EarlyStop().init()._replace(running=th.tensor(running), lr_scale=th.tensor(0.5))
    settled = 0.5, EarlyStop(), state, coefficients(0.1, 0.01)
    after, names, record = apply(lambda *args: asked.append(args), losses, (th.ones(4),), *settled)
    ((grad,), learning_rate, is_applied) = asked[0]
    assert is_applied.item() == applied and learning_rate == 0.05
    th.testing.assert_close(grad, th.full((4,), 0.25))
    # A minibatch that is not finite leaves the control as it is; the one that stops the update still counts.
    assert after.running.item() == (running and kl < 0.015)
    assert (record[FINITE], record[COUNTED]) == (loss == loss, loss == loss and running)
    assert names == ("loss", "approx_kl", "grad_norm") and len(record) == 5


def test_without_a_control_finite_steps_are_applied():
    asked = []
    for loss in (1.0, NAN):
        settled = 0.5, KLControl(), KLControl().init(), coefficients(0.1, NAN)
        apply(lambda *args: asked.append(args[-1].item()), Losses(th.tensor(loss), {}), (th.ones(4),), *settled)
    assert asked == [True, False]


class WrongDiagnostic(PPO_Plus):
    def compute_loss(self, batch, coefficients):
        losses = super().compute_loss(batch, coefficients)
        return losses._replace(diagnostics=losses.diagnostics | {"mine": 3.0})


def test_a_diagnostic_that_is_not_a_tensor_is_named():
    model = WrongDiagnostic("MlpPolicy", vec(ACTIONS["discrete"]), n_steps=4, batch_size=8, compile=False)
    with pytest.raises(ValueError, match=r"diagnostics \['mine'\] that are not 0-d tensors"):
        model.learn(8)


def test_means_are_over_applied_minibatches():
    rows = [[1.0, 1.0, 2.0, 5.0], [1.0, 1.0, 4.0, 7.0], [0.0, 0.0, NAN, NAN]]
    found = means(("loss", "mine"), th.tensor(rows))
    assert found == {"loss": 3.0, "mine": 6.0}
    assert means(("loss",), th.zeros(1, 3))["loss"].isnan()


def test_what_is_not_finite_is_named():
    assert names_not_finite(("loss", "mine", "grad_norm"), th.tensor([0.0, 0.0, NAN, 1.0, th.inf])) == "loss, grad_norm"


def test_a_diagnostic_may_have_the_name_of_the_loss():
    losses = Losses(th.tensor(1.0), {"loss": th.tensor(2.0)})
    settled = 0.5, KLControl(), KLControl().init(), coefficients(0.1, NAN)
    _, names, record = apply(lambda *args: None, losses, (th.ones(4),), *settled)
    assert means(names, record[None]) == {"loss": 2.0, "grad_norm": 2.0}
