"""What lasts from one update to the next."""

import copy
import pickle

import pytest
import torch as th
from envs import ACTIONS, vec

from ppo_plus import PPO_Plus
from ppo_plus.formulas.kl_control import AdaptivePenalty, EarlyStop, KLState
from ppo_plus.update.learner import Learner


def remembering(control, running=False, beta=4.0, lr_scale=0.5):
    learner = Learner()
    learner.kl_memory = control, (float(running), beta, lr_scale)
    return learner


def test_a_new_one_begins_as_the_control_does():
    control = AdaptivePenalty()
    assert Learner().kl_state(control) == control.init()


def test_a_control_that_stopped_the_last_update_runs_again_and_keeps_the_rest():
    state = remembering(AdaptivePenalty(band=2.0)).kl_state(AdaptivePenalty(band=2.0))
    assert state == KLState(th.tensor(True), th.tensor(4.0), th.tensor(0.5))


@pytest.mark.parametrize("other", [AdaptivePenalty(band=3.0), EarlyStop()])
def test_another_control_begins_anew(other):
    assert remembering(AdaptivePenalty(band=2.0)).kl_state(other) == other.init()


@pytest.mark.parametrize("kl_control", ["penalty", "adaptive_lr", "stop"])
def test_it_keeps_what_an_update_left(kl_control):
    env = vec(ACTIONS["box"])
    model = PPO_Plus("MlpPolicy", env, n_steps=16, seed=0, device="cpu", kl_control=kl_control, target_kl=1e-7).learn(
        32
    )
    control, (running, beta, lr_scale) = model.learner.kl_memory
    assert control == model.settings.control
    assert (running == 0) == (kl_control == "stop")
    assert (beta > 1) == (kl_control == "penalty") and (lr_scale < 1) == (kl_control == "adaptive_lr")
    for again in (copy.deepcopy(model.learner), pickle.loads(pickle.dumps(model.learner))):
        assert again.kl_memory == model.learner.kl_memory
    rate = model.policy.optimizer.param_groups[0]["lr"]
    model.train()
    # The scale that the update before left.
    assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(3e-4 * lr_scale) and rate <= 3e-4
