"""What keeps the new policy close to the old one: stopping, a penalty, a learning rate, and custom controls."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from models import weights
from training import At, Recording, learn, logged, make, n_steps_taken

from ppo_plus import AdaptivePenalty, EarlyStop, KLControl, Losses, PPO_Plus, linear
from ppo_plus.update import minibatch


def test_early_stop_comes_before_the_step_beyond_the_limit():
    model = make(Recording, target_kl=1e-12)
    history = learn(model, 1)
    # The first minibatch has KL 0; after its step the second one is beyond any such target, and counts in the averages.
    assert len(model.record) == 2
    kls = [diagnostics["approx_kl"].item() for _, _, diagnostics in model.record]
    assert history["train/approx_kl"] == pytest.approx([np.mean(kls)])
    assert n_steps_taken(model) == history["train/n_updates"][0] == history["train/kl_early_stop"][0] == 1
    # The next update starts again.
    learn(model, 2)
    assert n_steps_taken(model) == 3


@pytest.mark.parametrize(
    ("arguments", "n_steps", "stopped"),
    [(dict(target_kl=1e-12, kl_control=EarlyStop(per="epoch"), n_epochs=3), 4, 1.0), (dict(target_kl=100.0), 8, 0.0)],
)
def test_stop_finishes_the_epoch_if_asked_or_all_within_the_limit(arguments, n_steps, stopped):
    model = make(**arguments)
    history = learn(model, 1)
    assert n_steps_taken(model) == n_steps and history["train/n_updates"] == [n_steps // 4]
    assert history["train/kl_early_stop"] == [stopped]


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_kl_is_the_exact_divergence_of_new_from_old_policy(kind):
    model = make(Recording, env=vec(ACTIONS[kind]), learning_rate=1e-2, normalize_advantage=False).learn(16)
    batch, coefficients, _ = model.record[-1]
    old = model.policy.action_dist.to_torch(batch.old_params)
    new = model.policy.get_distribution(batch.observations).distribution
    expected = th.distributions.kl_divergence(old, new).reshape(len(batch.actions), -1).sum(dim=1).mean()
    assert expected > 1e-5
    th.testing.assert_close(model.compute_loss(batch, coefficients).diagnostics["kl"], expected, rtol=1e-3, atol=1e-8)


def test_penalty_adds_beta_times_the_exact_kl_to_the_loss():
    model = make(Recording, target_kl=0.01, kl_control="penalty", learning_rate=1e-2)
    learn(model, 1)
    batch, coefficients, _ = model.record[-1]
    plain = model.compute_loss(batch, coefficients._replace(kl_coef=None))
    penalized = model.compute_loss(batch, coefficients._replace(kl_coef=th.tensor(3.0)))
    assert plain.diagnostics["kl"].item() > 0
    assert (penalized.total - plain.total).item() == pytest.approx(3 * plain.diagnostics["kl"].item(), rel=1e-3)
    assert coefficients.kl_coef.item() == 1.0


@pytest.mark.parametrize("kl_control", ["penalty", AdaptivePenalty(band=2.0)], ids=str)
def test_clipping_can_be_off_under_a_penalty(kl_control):
    model = make(clip_range=None, target_kl=0.01, kl_control=kl_control)
    before = weights(model)
    model.learn(16)
    assert not th.equal(weights(model), before)
    assert not {"train/clip_fraction", "train/clip_range"} & set(logged(model))


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1 / 1.5), (1e3, 1.5)])
def test_adaptive_lr_scales_a_decaying_schedule(target, factor):
    schedule = linear(1e-2, 1e-3)
    model = make(target_kl=target, kl_control="adaptive_lr", learning_rate=schedule)
    history = learn(model, 3)
    assert history["train/lr_scale"] == pytest.approx([factor, factor**2, factor**3])
    # The scale that an update ends with serves the next one.
    scales = [1.0, *history["train/lr_scale"][:-1]]
    expected = [schedule(progress) * scale for progress, scale in zip((2 / 3, 1 / 3, 0.0), scales, strict=True)]
    assert history["train/learning_rate"] == pytest.approx(expected)
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(expected[-1])


def test_another_control_starts_with_its_own_coefficient_and_scale():
    model = make(target_kl=1e3, kl_control="adaptive_lr", learning_rate=1e-3)
    assert learn(model, 1)["train/lr_scale"] == [1.5]
    model.kl_control = "stop"
    assert learn(model, 1)["train/learning_rate"] == [1e-3]
    model.kl_control = "penalty"
    assert learn(model, 1)["train/kl_coef"] == [0.5]


class ConstantGradient(PPO_Plus):
    """Every weight has the gradient 1, so that a plain SGD step moves it by the learning rate."""

    def compute_loss(self, batch, coefficients):
        outcome = super().compute_loss(batch, coefficients)
        return Losses(sum(weight.sum() for weight in self.policy.parameters()), outcome.diagnostics)


@dataclass(frozen=True)
class HalveEachMinibatch(KLControl):
    def after_minibatch(self, state, kl, target):
        return state._replace(lr_scale=state.lr_scale / 2)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_custom_control_may_change_the_rate_per_minibatch(is_packed, monkeypatch):
    if not is_packed:
        monkeypatch.setattr(minibatch, "ELEMENTWISE", ())
    kwargs = {"policy_kwargs": {"optimizer_class": th.optim.SGD}, "max_grad_norm": 1e9, "n_epochs": 1}
    model = make(ConstantGradient, kl_control=HalveEachMinibatch(), learning_rate=1.0, **kwargs)
    before = weights(model)
    learn(model, 2)
    # Eight steps, each with half the rate of the one before; the second update goes on where the first one ended.
    moved = before - weights(model)
    th.testing.assert_close(moved, th.full_like(moved, sum(0.5**k for k in range(1, 9))), rtol=0, atol=1e-5)


@dataclass(frozen=True)
class StopAtThird(KLControl):
    """Counts minibatches in ``beta``."""

    def after_minibatch(self, state, kl, target):
        return state._replace(beta=state.beta + 1, running=state.running & (state.beta + 1 < 3))


def test_a_custom_control_may_stop_the_update_without_a_target():
    model = make(kl_control=StopAtThird())
    history = learn(model, 1)
    assert n_steps_taken(model) == 2
    assert history["train/kl_coef"] == [3.0]


class Plain(KLControl):
    """A control that is no dataclass."""

    def __init__(self, allowed):
        object.__setattr__(self, "allowed", allowed)

    def after_minibatch(self, state, kl, target):
        return state._replace(running=state.running & th.tensor(self.allowed))


def test_another_control_of_the_same_class_takes_over():
    model = make(kl_control=Plain(True)).learn(16)
    before = weights(model)
    model.kl_control = Plain(False)
    model.learn(16)
    assert th.equal(weights(model), before)


@pytest.mark.parametrize("kl_control", ["adaptive_lr", "penalty"])
def test_one_minibatch_per_update_has_no_kl_to_adapt_to(kl_control, tmp_path):
    """It would be 0 in each update, and the learning rate, or the penalty, would go to its bound."""
    arguments = {"kl_control": kl_control, "target_kl": 0.01, "n_steps": 32}
    with pytest.raises(ValueError, match=f"kl_control='{kl_control}' with n_epochs=1 and batch_size=64 finds no KL"):
        make(n_epochs=1, batch_size=64, **arguments)
    for fits in ({"n_epochs": 2, "batch_size": 64}, {"n_epochs": 1, "batch_size": 32}):
        assert make(**arguments, **fits).settings.control.penalizes == (kl_control == "penalty")
    # A model may be played in fewer environments than it was trained in.
    make(n_epochs=1, batch_size=32, **arguments).save(tmp_path / "model.zip")
    loaded = PPO_Plus.load(tmp_path / "model.zip", env=vec(ACTIONS["discrete"], n_envs=1))
    with pytest.raises(ValueError, match="finds no KL"):
        loaded.learn(32)
    model = make(n_epochs=2, batch_size=64, **arguments)
    with pytest.raises(ValueError, match="finds no KL"):
        model.learn(64, At(lambda model: setattr(model, "n_epochs", 1), [1]))
