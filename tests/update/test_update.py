"""Updates, and what lasts from one to the next."""

import copy
import pickle
import signal

import pytest
import torch as th
from envs import ACTIONS, vec

from ppo_plus import KLControl, PPO_Plus
from ppo_plus.compiling.compiled import Compilation
from ppo_plus.formulas.kl_control import AdaptivePenalty, EarlyStop, KLState
from ppo_plus.formulas.losses import clip_fraction
from ppo_plus.update.minibatch import COUNTED, UpdateRule, packed
from ppo_plus.update.update import Trainer, Update, coefficients_of, in_place, interrupts_wait


def remembering(control, running=False, beta=4.0, lr_scale=0.5):
    trainer = Trainer(Compilation())
    trainer.kl_memory = control, (float(running), beta, lr_scale)
    return trainer


def test_a_control_that_is_the_same_starts_from_the_state_that_it_left():
    control = AdaptivePenalty(band=2.0)
    assert Trainer(Compilation()).kl_state(control) == control.init()
    # It runs again after it stopped an update.
    remembered = KLState(th.tensor(True), th.tensor(4.0), th.tensor(0.5))
    assert remembering(control).kl_state(AdaptivePenalty(band=2.0)) == remembered
    for other in (AdaptivePenalty(band=3.0), EarlyStop()):
        assert remembering(control).kl_state(other) == other.init()


@pytest.mark.parametrize("kl_control", ["penalty", "adaptive_lr", "stop"])
def test_the_state_of_the_last_update_is_kept(kl_control):
    env = vec(ACTIONS["box"])
    model = PPO_Plus("MlpPolicy", env, n_steps=16, seed=0, device="cpu", kl_control=kl_control, target_kl=1e-7).learn(
        32
    )
    control, (running, beta, lr_scale) = model.trainer.kl_memory
    assert control == model.settings.control
    assert (running == 0) == (kl_control == "stop")
    assert (beta > 1) == (kl_control == "penalty") and (lr_scale < 1) == (kl_control == "adaptive_lr")
    for again in (copy.deepcopy(model.trainer), pickle.loads(pickle.dumps(model.trainer))):
        assert again.kl_memory == model.trainer.kl_memory
    rate = model.policy.optimizer.param_groups[0]["lr"]
    model.train()
    # The scale that the update before left.
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4 * lr_scale) and rate <= 3e-4


class UntilSecondEpoch(KLControl):
    """Ends the update after the second epoch."""

    def after_epoch(self, state, kl, target):
        return state._replace(running=state.running & (kl < 2))


def test_a_control_may_end_the_update_after_an_epoch():
    env = vec(ACTIONS["discrete"])
    model = PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu", compile=False)
    model.learn(32)
    made = []

    def minibatch(data, state, indices):
        made.append(data)
        _, names, record = real(rollout, state, indices)
        record[COUNTED + 1 + names.index("approx_kl")] = float(data)
        return state, names, record

    rule = UpdateRule(model.policy, model.compute_loss, UntilSecondEpoch(), 0.5)
    values = model.settings.at(1.0)
    with packed(model.policy.optimizer) as flat:
        real = in_place(rule, flat, coefficients_of(values))
        rollout = model.rollout_buffer.on_device()
        state = rule.control.init()
        update = Update(Trainer(Compilation()), rule, state, coefficients_of(values), minibatch, list, [th.zeros(1)])
        for epoch in (1, 2):
            assert not update.stopped
            update.run([(epoch, th.arange(32))] * 2)
        update.finish()
    assert made == [1, 1, 2, 2] and update.n_epochs == 2 and update.kl == 2 and update.stopped


def test_rounding_does_not_decide_what_is_clipped_at_the_end_of_a_schedule():
    coefficients = coefficients_of({"clip_range": 0.0, "ent_coef": 0.0, "vf_coef": 0.5})
    log_ratio = th.tensor([3e-8, -3e-8, 1e-3])
    assert clip_fraction(log_ratio, coefficients.clip_range) == pytest.approx(1 / 3)


@pytest.mark.parametrize("answers", [True, False])
def test_an_interrupt_waits_for_an_answer_or_the_end(answers):
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait() as answer, interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached.append("halfway")
        if answers:
            answer()  # what the inner block has got waits for its end
        reached.append("the end")
    assert reached == ["halfway", "the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_later_interrupt_does_not_wait(monkeypatch):
    monkeypatch.setattr("ppo_plus.update.update.PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it has waited")
