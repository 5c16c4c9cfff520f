"""Schedules: their formulas, their spellings, and errors before training starts."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common import utils

from ppo_plus import PPO_Plus
from ppo_plus.formulas.schedules import Constant, Cosine, Linear, constant, cosine, linear, make_schedule, value_at

values = st.floats(0, 1e3)


@given(values, values, st.floats(0, 1))
@settings(deadline=None, max_examples=50)
def test_formulas(start, end, progress):
    assert constant(start)(progress) == start
    # Written as a mean of the ends, whose terms the code adds in another order.
    tolerance = {"rel": 1e-12, "abs": 1e-12}
    assert linear(start, end)(progress) == pytest.approx(progress * start + (1 - progress) * end, **tolerance)
    weight = math.sin(math.pi * progress / 2) ** 2
    assert cosine(start, end)(progress) == pytest.approx(weight * start + (1 - weight) * end, **tolerance)


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_schedule_goes_from_start_to_end_or_zero(schedule):
    assert schedule(0.5, 0.25)(1.0) == 0.5
    assert schedule(0.5, 0.25)(0.0) == 0.25
    assert schedule(0.5)(0.0) == 0.0


@pytest.mark.parametrize(
    ("value", "schedule"),
    [
        (3e-4, Constant(3e-4)),
        (1, Constant(1.0)),
        (np.float32(0.5), Constant(0.5)),
        (np.int64(2), Constant(2.0)),
        ("3e-4", Constant(3e-4)),
        ("lin_3e-4", Linear(3e-4)),
        ("cos_3e-4", Cosine(3e-4)),
        ("lin_3e-4_1e-5", Linear(3e-4, 1e-5)),
        ("cos_0.1_0.2", Cosine(0.1, 0.2)),
        (" lin_0.2 ", Linear(0.2)),
        (linear(0.1, 0.2), Linear(0.1, 0.2)),
    ],
)
def test_spellings(value, schedule):
    made = make_schedule("clip_range", value)
    assert made == schedule
    value = value_at(0.3, "clip_range", made)
    assert type(value) is float and value == schedule(0.3)


@pytest.mark.parametrize("value", [0.1, "lin_0.2", "cos_0.2_0.1", constant(0.3)])
def test_schedules_survive_pickling(value):
    made = make_schedule("clip_range", value)
    assert pickle.loads(pickle.dumps(made)) == made


MALFORMED = ["", "lin_", "cos_x", "lin_1_2_3", "linear_3e-4", "1_000", "auto", "lin_3e-4_"]
NOT_A_NUMBER = "ent_coef=.* must be a number, a string such as"
SB3S = [utils.ConstantSchedule(-0.1), utils.FloatSchedule(utils.LinearSchedule(0.1, -0.1, 0.5))]
WRONG = [
    *((text, {}, ValueError, f"ent_coef={text!r} is not a valid schedule: .*for example") for text in MALFORMED),
    *((value, {}, TypeError, NOT_A_NUMBER) for value in (None, [0.1], True, 1j)),
    *((value, {}, ValueError, "^ent_coef=.* must be finite and at least 0") for value in (-0.1, math.nan, "-1", "inf")),
    *(
        (value, {}, ValueError, "^ent_coef: the schedule .* returned .* at progress_remaining=.*at least 0")
        for value in ("lin_0.1_-0.1", "cos_-0.1", "lin_nan", linear(0.1, -1e-9), *SB3S)
    ),
    *((value, {"strict": True}, ValueError, "ent_coef.* above 0") for value in (0.0, "0", constant(0.0), "lin_0_0.1")),
    (0.5, {"low": 1.0}, ValueError, r"ent_coef=0\.5 must be finite and at least 1"),
    (math.nan, {"low": -math.inf}, ValueError, "^ent_coef=nan must be finite$"),
]


@pytest.mark.parametrize(("value", "options", "error", "message"), WRONG)
def test_what_is_not_a_schedule_raises_an_error(value, options, error, message):
    with pytest.raises(error, match=message):
        make_schedule("ent_coef", value, **options)


def test_a_strict_bound_holds_at_the_start_only():
    assert make_schedule("clip_range", "lin_0.2", strict=True)(0.0) == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_function_is_checked_when_it_is_asked(bad):
    schedule = make_schedule("ent_coef", lambda progress: bad if progress == 0.37 else 1.0)
    assert value_at(0.38, "ent_coef", schedule) == 1.0
    with pytest.raises(ValueError, match=r"ent_coef: .*progress_remaining=0\.37"):
        value_at(0.37, "ent_coef", schedule)
    with pytest.raises(TypeError, match="ent_coef: .* must return a number"):
        value_at(1.0, "ent_coef", make_schedule("ent_coef", lambda progress: "fast"))
    with pytest.raises(ValueError, match=f"^learning_rate: the schedule .* returned {bad!r}"):
        PPO_Plus("MlpPolicy", "CartPole-v1", learning_rate=lambda progress: bad)


@pytest.mark.parametrize("function", [lambda progress, scale=2.0: scale * progress, lambda *all: 1.0, math.sqrt, float])
def test_a_function_may_take_more_or_not_say_what_it_takes(function):
    assert make_schedule("ent_coef", function)(1.0) in (1.0, 2.0)


def test_a_schedule_is_checked_during_training():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", learning_rate=lambda progress: -1.0 if progress < 0.001 else 1.0)
    assert model.settings.at(0.5)["learning_rate"] == 1.0
    with pytest.raises(ValueError, match="learning_rate: .* returned -1.0"):
        model.settings.at(0.0005)
    model.lr_schedule = lambda progress: -2
    with pytest.raises(ValueError, match="learning_rate: .* returned -2"):
        model.learn(16)
