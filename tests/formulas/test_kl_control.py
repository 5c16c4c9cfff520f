"""What each KL control does to its state, and when."""

import math

import pytest
import torch as th

from ppo_plus import AdaptiveLearningRate, AdaptivePenalty, EarlyStop, KLControl
from ppo_plus.formulas.kl_control import KL_CONTROLS, make_kl_control

TARGET = th.tensor(0.01)
HOOKS = ("after_minibatch", "after_epoch", "after_update")
STOPS = [(EarlyStop(), "after_minibatch"), (EarlyStop(per="epoch"), "after_epoch")]
#: Each control with its own hook.
OWN = [*STOPS, (AdaptivePenalty(), "after_update"), (AdaptiveLearningRate(), "after_update")]


def after(control, hook, *kls, state=None):
    """The state after a series of KLs."""
    state = control.init() if state is None else state
    for kl in kls:
        state = getattr(control, hook)(state, th.tensor(kl), TARGET)
    return state


@pytest.mark.parametrize("control", [KLControl(), EarlyStop(), AdaptivePenalty(), AdaptiveLearningRate()])
def test_a_fresh_state_runs_at_the_scheduled_rate(control):
    state = control.init()
    assert all(isinstance(entry, th.Tensor) and entry.ndim == 0 for entry in state)
    assert state.running.item() is True
    assert state.lr_scale == 1
    assert state.beta == (1 if control.penalizes else 0)


@pytest.mark.parametrize("hook", HOOKS)
def test_no_control_ignores_every_kl(hook):
    assert after(KLControl(), hook, 1e9, float("nan")) == KLControl().init()


@pytest.mark.parametrize(("control", "hook"), [(each, hook) for each, own in OWN for hook in HOOKS if hook != own])
def test_a_control_acts_at_its_own_hook_only(control, hook):
    assert after(control, hook, 1e9, 0.0) == control.init()


# --- early stop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("control", "hook"), STOPS)
@pytest.mark.parametrize(("kl", "running"), [(0.0, True), (0.0149, True), (0.0151, False), (math.nan, False)])
def test_early_stop_at_one_and_a_half_targets(control, hook, kl, running):
    assert after(control, hook, kl).running == running


@pytest.mark.parametrize(("control", "hook"), STOPS)
def test_early_stop_is_sticky(control, hook):
    assert not after(control, hook, 1.0, 0.0, 0.0).running


# --- adaptive penalty and learning rate -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "beta"), [(0.0, 0.5), (0.0066, 0.5), (0.0067, 1.0), (0.0149, 1.0), (0.0151, 2.0), (1.0, 2.0)]
)
def test_penalty_is_doubled_above_the_band_and_halved_below(kl, beta):
    assert after(AdaptivePenalty(), "after_update", kl).beta == beta


@pytest.mark.parametrize(
    ("kl", "scale"), [(0.0, 1.5), (0.0049, 1.5), (0.0051, 1.0), (0.0199, 1.0), (0.0201, 1 / 1.5), (1.0, 1 / 1.5)]
)
def test_learning_rate_falls_above_the_band_and_rises_below(kl, scale):
    state = after(AdaptiveLearningRate(), "after_update", kl)
    assert state.lr_scale.item() == pytest.approx(scale, rel=1e-7)  # one rounding to float32
    assert state.running and state.beta == 0


def test_bands_tolerance_and_factor_are_taken_from_the_arguments():
    assert after(EarlyStop(tolerance=3.0), "after_minibatch", 0.029).running
    assert not after(EarlyStop(tolerance=0.5), "after_minibatch", 0.0051).running
    assert after(AdaptivePenalty(band=4.0), "after_update", 0.03).beta == 1
    assert after(AdaptivePenalty(band=4.0), "after_update", 0.05).beta == 2
    assert after(AdaptiveLearningRate(band=4.0), "after_update", 0.03).lr_scale == 1
    assert after(AdaptiveLearningRate(band=4.0, factor=2.0), "after_update", 0.05).lr_scale == 0.5


@pytest.mark.parametrize(("kl", "bound"), [(1.0, 10.0), (0.0, 0.1)])
def test_penalty_and_learning_rate_scale_stay_within_their_bounds(kl, bound):
    state = after(AdaptivePenalty(max_beta=10.0), "after_update", *[kl] * 20)
    assert state.beta.item() == pytest.approx(bound, rel=1e-7)  # float32
    state = after(AdaptiveLearningRate(max_scale=10.0), "after_update", *[kl] * 20)
    assert state.lr_scale.item() == pytest.approx(1 / bound, rel=1e-7)


@pytest.mark.parametrize("control", [AdaptivePenalty(), AdaptiveLearningRate()])
def test_adaptive_controls_change_nothing_at_a_nan_kl(control):
    assert after(control, "after_update", float("nan")) == control.init()


@pytest.mark.parametrize("control", [EarlyStop(), AdaptivePenalty(), AdaptiveLearningRate()])
def test_hooks_change_no_argument(control):
    state, kl = control.init(), th.tensor(1.0)
    for hook in HOOKS:
        getattr(control, hook)(state, kl, TARGET)
    assert state == control.init() and kl == 1


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "arguments", "message"),
    [
        (EarlyStop, {"per": "rollout"}, "EarlyStop: per=.rollout. must be one of .minibatch., .epoch."),
        (EarlyStop, {"tolerance": float("nan")}, "EarlyStop: tolerance=nan must be a number in .0, inf"),
        (AdaptivePenalty, {"band": 1.0}, r"AdaptivePenalty: band=1\.0 must be a number in \(1, inf"),
        (AdaptiveLearningRate, {"max_scale": 1.0}, r"AdaptiveLearningRate: max_scale=1\.0 must be a number in \(1"),
    ],
)
def test_impossible_arguments_raise_an_error(control, arguments, message):
    with pytest.raises(ValueError, match=message):
        control(**arguments)


def test_a_control_is_made_of_its_name_or_passed_through():
    for name, control in KL_CONTROLS.items():
        assert make_kl_control(name, has_target=True) == control()
    assert make_kl_control("stop", has_target=False) == KLControl()
    control = EarlyStop(per="epoch")
    assert make_kl_control(control, has_target=False) is control
    with pytest.raises(ValueError, match="kl_control='early' must be one of 'stop', 'penalty', 'adaptive_lr'"):
        make_kl_control("early", has_target=True)
    with pytest.raises(TypeError, match="kl_control=0.01 must be one of"):
        make_kl_control(0.01, has_target=True)
