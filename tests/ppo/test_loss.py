"""What is minimized: normalized advantages, clipped values and custom losses."""

import pytest
import torch as th
from models import weights
from training import Recording, logged, make

from ppo_plus import Losses, PPO_Plus


def test_minibatch_is_another_name_for_true():
    first, second = (weights(make(normalize_advantage=mode).learn(32)) for mode in (True, "minibatch"))
    assert th.equal(first, second)


def test_rollout_normalizes_once_over_all_minibatches():
    model = make(Recording, normalize_advantage="rollout", n_epochs=1).learn(16)
    advantages = th.cat([batch.advantages for batch, _, _ in model.record])
    # Sixteen float32 numbers of size 1.
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.std().item() == pytest.approx(1, abs=1e-6)
    loss = model.record[0][2]["policy_gradient_loss"]
    assert loss.item() == pytest.approx(-model.record[0][0].advantages.mean().item(), abs=1e-6)


@pytest.mark.parametrize(("mode", "is_invariant"), [(True, True), ("rollout", False), (False, False)])
def test_only_minibatch_normalization_removes_the_scale(mode, is_invariant):
    model = make(Recording, normalize_advantage=mode, learning_rate=1e-2).learn(16)
    batch, coefficients, diagnostics = model.record[-1]
    scaled = model.compute_loss(batch._replace(advantages=10 * batch.advantages + 3), coefficients).diagnostics
    again = model.compute_loss(batch, coefficients).diagnostics
    same = scaled["policy_gradient_loss"].item() == pytest.approx(again["policy_gradient_loss"].item(), abs=1e-5)
    assert same == is_invariant


def test_value_clip_takes_the_maximum_unless_it_is_plain():
    values = {}
    for form in ("max", "plain"):
        model = make(Recording, clip_range_vf=0.01, value_clip=form, learning_rate=1e-2).learn(16)
        batch, coefficients, _ = model.record[-1]
        values[form] = model.compute_loss(batch, coefficients).diagnostics["value_loss"]
        new = model.policy.evaluate(batch.observations)[0].detach()
        clipped = batch.old_values + (new - batch.old_values).clamp(-0.01, 0.01)
        plain, unclipped = (clipped - batch.returns) ** 2, (new - batch.returns) ** 2
        expected = plain.mean() if form == "plain" else th.max(plain, unclipped).mean()
        th.testing.assert_close(values[form], expected)


class WithPlus(PPO_Plus):
    """Adds a term whose gradient is known."""

    def compute_loss(self, batch, coefficients):
        bias = self.policy.value_net.bias
        return super().compute_loss(batch, coefficients).plus("bias", 0.5 * bias.sum())


def test_a_custom_loss_term_is_descended_and_logged():
    options = dict(policy_kwargs={"optimizer_class": th.optim.SGD}, max_grad_norm=1e9, n_epochs=1, batch_size=16)
    plain, more = (make(cls, learning_rate=0.1, **options).learn(16) for cls in (PPO_Plus, WithPlus))
    # SB3's initial biases are 0, so is the term's first value.
    assert logged(more)["train/bias"] == pytest.approx(0.0)
    assert (plain.policy.value_net.bias - more.policy.value_net.bias).item() == pytest.approx(0.05, rel=1e-4)
    assert logged(more)["train/loss"] == pytest.approx(logged(plain)["train/loss"])


def test_a_custom_loss_needs_no_diagnostics_without_kl_control():
    class Regression(PPO_Plus):
        def compute_loss(self, batch, coefficients):
            values, _ = self.policy.evaluate(batch.observations)
            return Losses((values - batch.returns).square().mean(), {})

    model = make(Regression).learn(16)
    assert logged(model)["train/loss"] > 0


def test_compute_loss_changes_nothing():
    model = make(Recording).learn(16)
    batch, coefficients, _ = model.record[0]
    before, record = weights(model), dict(logged(model))
    first, second = (model.compute_loss(batch, coefficients) for _ in range(2))
    assert th.equal(first.total, second.total)
    assert th.equal(weights(model), before)
    assert logged(model) == record
