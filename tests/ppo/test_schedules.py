"""Arguments that change over time: schedules, and what callbacks and calls assign."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, vec
from models import weights
from stable_baselines3 import PPO
from training import Recording, learn, logged, make

from ppo_plus import AdaptiveLearningRate, KLControl, MlpPolicy, PPO_Plus, cosine, linear
from ppo_plus.compiling.compiled import CompileError

NAN, INF = float("nan"), float("inf")


def test_a_string_a_callable_and_an_object_are_the_same_schedule():
    forms = "lin_1e-2_1e-3", linear(1e-2, 1e-3), lambda progress: 1e-3 + (1e-2 - 1e-3) * progress
    results = [weights(make(learning_rate=form).learn(48)) for form in forms]
    # The lambda may round the rate differently in the last bit of a double.
    th.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    th.testing.assert_close(results[0], results[2], rtol=0, atol=1e-7)


class OwnRates(PPO_Plus):
    """Sets the rates in ``rates``, for one group or two."""

    rates = (0.0,)

    def _update_learning_rate(self, optimizers):
        for group, rate in zip(optimizers.param_groups, self.rates, strict=True):
            group["lr"] = rate


def test_an_override_may_keep_the_rates_of_the_optimizer():
    model = make()
    model._update_learning_rate = lambda optimizers: None
    model.policy.optimizer.param_groups[0]["lr"] = 1e-5
    assert logged(model.learn(16))["train/learning_rate"] == 1e-5


class TwoGroups(MlpPolicy):
    def _build(self, lr_schedule):
        super()._build(lr_schedule)
        actor = {*self.action_net.parameters()}
        self.optimizer = th.optim.Adam([{"params": [*actor]}, {"params": [*{*self.parameters()} - actor]}], lr=1.0)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("compile", [False, True])
def test_learning_rates_that_an_override_sets_are_used_and_scaled(compile):
    control = AdaptiveLearningRate(factor=2.0)
    model = make(OwnRates, compile=compile, target_kl=1e3, kl_control=control)
    before = weights(model)
    assert th.equal(weights(model.learn(16)), before)
    model.rates = (1e-3,)
    assert not th.equal(weights(model.learn(16)), before)
    # After the first update, the control has doubled the rate.
    assert logged(model)["train/learning_rate"] == 2e-3 and logged(model)["train/lr_scale"] == 4.0
    assert bool(model.compiled) is compile


@pytest.mark.usefixtures("traced")
def test_groups_of_parameters_keep_their_rates_and_what_is_uncompiled_is_said():
    model = make(OwnRates, policy=TwoGroups)
    model.rates = (0.0, 1e-3)
    actor, critic = (part.weight.detach().clone() for part in (model.policy.action_net, model.policy.value_net))
    model.learn(16)
    assert th.equal(model.policy.action_net.weight, actor) and not th.equal(model.policy.value_net.weight, critic)
    with pytest.raises(CompileError, match="Adam cannot be packed: .* several groups .*: use compile=False"):
        make(policy=TwoGroups, compile=True).learn(16)


@pytest.mark.parametrize("schedule", [linear(0.4, 0.1), "cos_0.4_0.1"], ids=str)
def test_coefficients_follow_their_schedules(schedule):
    names = "clip_range", "clip_range_vf", "ent_coef", "vf_coef"
    model = make(Recording, n_epochs=1, batch_size=16, **dict.fromkeys(names, schedule)).learn(48)
    reference = cosine(0.4, 0.1) if isinstance(schedule, str) else schedule
    for name in names:
        found = [getattr(coefficients, name).item() for _, coefficients, _ in model.record]
        assert found == pytest.approx([reference(2 / 3), reference(1 / 3), reference(0.0)])


@dataclass(frozen=True)
class TargetAsBeta(KLControl):
    def after_update(self, state, kl, target):
        return state._replace(beta=target.clone())


def test_target_kl_follows_its_schedule():
    model = make(target_kl=linear(0.4, 0.1), kl_control=TargetAsBeta())
    assert learn(model, 3)["train/kl_coef"] == pytest.approx([0.3, 0.2, 0.1])


def test_progress_never_becomes_negative():
    seen = []
    model = make(learning_rate=lambda progress: seen.append(progress) or 1e-3)
    model.learn(20)
    # 20 steps were asked for, 32 taken: the last update is past the end.
    assert model.num_timesteps == 32
    assert min(seen) == 0.0


def test_a_decayed_to_zero_schedule_ends_learning_not_training():
    model = make(learning_rate="lin_1e-3", clip_range="lin_0.2", target_kl="lin_0.02")
    assert np.isfinite(list(learn(model, 2)["train/loss"])).all()


class Counted:
    """A schedule with a state: it falls with each call."""

    def __init__(self):
        self.calls = []

    def __call__(self, progress):
        self.calls.append(progress)
        return 0.1 / len(self.calls)


def test_schedules_are_called_as_sb3_calls_them():
    names = "learning_rate", "clip_range", "clip_range_vf"
    sizes = dict(n_steps=8, batch_size=4, n_epochs=2, seed=0, device="cpu")
    ours, theirs = {name: Counted() for name in names}, {name: Counted() for name in names}
    PPO_Plus("MlpPolicy", vec(ACTIONS["discrete"]), **sizes, **ours).learn(48)
    PPO("MlpPolicy", vec(ACTIONS["discrete"]), **sizes, **theirs).learn(48)
    assert len(ours["clip_range"].calls) == 3
    for name in names:
        # SB3 asks for the learning rate a second time, to log it.
        assert ours[name].calls == list(dict.fromkeys(theirs[name].calls))


def test_our_own_schedules_are_called_once_per_update():
    counted = {name: Counted() for name in ("ent_coef", "vf_coef", "target_kl")}
    history = learn(make(**counted), 3)
    assert {name: len(each.calls) for name, each in counted.items()} == dict(ent_coef=3, vf_coef=3, target_kl=3)
    assert len(history["train/loss"]) == 3


#: What a callback assigns in a rollout, and what then holds for its update.
ASSIGNED = {
    "learning_rate": (0.0, "train/learning_rate", 0.0),
    "lr_schedule": (lambda progress: 0.5, "train/learning_rate", 0.5),
    "clip_range": (0.05, "train/clip_range", 0.05),
    "gamma": (0.0, None, None),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_a_callback_can_change_an_argument(name):
    value, key, expected = ASSIGNED[name]
    model = make(env=vec(ACTIONS["box"]), learning_rate=1e-3)
    before = weights(model)
    model.learn(16, callback=lambda *_: setattr(model, name, value) is None)
    assert key is None or logged(model)[key] == expected
    assert th.equal(weights(model), before) is (expected == 0.0)
    if name == "gamma":
        rollout = model.rollout_buffer
        # Without a future the advantage is that of one step.
        np.testing.assert_allclose(rollout.advantages, rollout.rewards - rollout.values, atol=1e-6)


def test_arguments_can_be_changed_between_calls():
    model = make(learning_rate=1e-3).learn(16)
    model.learning_rate = 0.0
    before = weights(model)
    model.learn(16)
    assert th.equal(weights(model), before) and logged(model)["train/learning_rate"] == 0.0
    model.learning_rate = "lin_0.2"
    assert learn(model, 2)["train/learning_rate"] == [0.1, 0.0]


def test_a_schedule_that_becomes_nan_stops_training():
    model = make(vf_coef=lambda progress: NAN if 0.331 < progress < 0.339 else 0.5)
    with pytest.raises(ValueError, match="vf_coef.*nan"):
        model.learn(48)
    assert model.num_timesteps == 32
    assert th.isfinite(weights(model)).all()


def counting_calls(calls):
    def rate(progress):
        calls.append(progress)
        return 1e-3 * 0.99 ** len(calls)

    return rate


@pytest.mark.parametrize("name", ["learning_rate", "ent_coef"])
def test_saving_does_not_call_what_training_calls(name, tmp_path):
    """A function may have state in its closure."""
    calls = []
    model = make(**{name: counting_calls(calls)}).learn(32)
    before = len(calls)
    with pytest.warns(UserWarning, match=f"without {name}"):
        model.save(tmp_path / "model")
    assert len(calls) == before
