"""Checks of arguments: what passes, and what the messages say."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from ppo_plus.require import require_int, require_number, require_one_of, require_spaces, same_space


@pytest.mark.parametrize("value", [1, 7, np.int64(1), np.uint8(3)])
def test_integers_pass(value):
    require_int("n_steps", value, 1)


@pytest.mark.parametrize("value", [2.0, True, "2", None, np.float64(2), np.bool_(True)])
def test_not_an_integer_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"n_steps=.* must be an integer, at least 1"):
        require_int("n_steps", value, 1)


@pytest.mark.parametrize("value", [0, -5, np.int64(0)])
def test_an_integer_too_low_is_a_value_error(value):
    with pytest.raises(ValueError, match=r"n_steps=.* must be at least 1"):
        require_int("n_steps", value, 1)


def test_none_passes_if_allowed_and_messages_say_so():
    require_int("save_freq", None, 1, or_none=True)
    require_number("minutes", None, 0, 1, or_none=True)
    with pytest.raises(TypeError, match="^save_freq='100' must be an integer, at least 1, or None, not text"):
        require_int("save_freq", "100", 1, or_none=True)
    with pytest.raises(ValueError, match=r"^minutes=2 must be a number in \[0, 1\], or None$"):
        require_number("minutes", 2, 0, 1, or_none=True)


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_environments_with_other_spaces_are_errors(kind):
    env = gym.make("CartPole-v1")
    theirs = {"observation_space": env.observation_space, "action_space": env.action_space}
    require_spaces(env, **theirs)
    other = gym.spaces.Discrete(7)
    with pytest.raises(
        ValueError, match=f"env does not fit .* {kind} spaces do not match, .* of env and Discrete.7. of"
    ):
        require_spaces(env, **theirs | {f"{kind}_space": other})


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25), np.int32(1)])
def test_numbers_within_both_bounds_pass(value):
    require_number("gamma", value, 0, 1)


@pytest.mark.parametrize("value", [-1e-9, 1.0000001, math.nan, -math.inf, math.inf, np.float64("nan")])
def test_numbers_outside_are_value_errors(value):
    with pytest.raises(ValueError, match=r"gamma=.* must be a number in \[0, 1\]"):
        require_number("gamma", value, 0, 1)


@pytest.mark.parametrize("value", ["0.5", None, True, np.bool_(True), [0.5], 1j])
def test_not_a_number_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"gamma=.* must be a number in \[0, 1\]"):
        require_number("gamma", value, 0, 1)


def test_an_open_lower_bound_is_itself_an_error():
    require_number("max_grad_norm", 1e-300, 0, above=True)
    for value in (0, 0.0, -1):
        with pytest.raises(ValueError, match=r"max_grad_norm=.* must be a number in \(0, inf"):
            require_number("max_grad_norm", value, 0, above=True)


@pytest.mark.parametrize("value", [True, False, "minibatch"])
def test_one_of_the_choices_passes(value):
    require_one_of("normalize_advantage", value, (True, False, "minibatch"))


@pytest.mark.parametrize("value", [1, 0, 1.0, None, "Minibatch", ["minibatch"], np.array([1, 2])])
def test_a_value_equal_to_a_choice_of_another_type_is_an_error(value):
    with pytest.raises(ValueError, match=r"normalize_advantage=.* must be one of True, False, 'minibatch'"):
        require_one_of("normalize_advantage", value, (True, False, "minibatch"))


MAX = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("space", "other", "expected"),
    [
        (spaces.Box(-MAX, MAX, (2,)), spaces.Box(-np.inf, np.inf, (2,)), True),
        (spaces.Box(-1, MAX, (2,)), spaces.Box(-1, np.inf, (2,)), True),
        (spaces.Box(-1, MAX, (2,)), spaces.Box(-2, np.inf, (2,)), False),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, np.inf, (2,)), False),
        (spaces.Box(-MAX, MAX, (2,)), spaces.Box(-MAX, MAX, (3,)), False),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Box(-np.inf, np.inf, (2,)), False),
        (spaces.Dict(a=spaces.Box(-MAX, MAX)), spaces.Dict(a=spaces.Box(-np.inf, np.inf)), True),
        (spaces.Tuple([spaces.Box(0, MAX)]), spaces.Tuple([spaces.Box(0, np.inf)]), True),
        (spaces.Tuple([spaces.Box(0, MAX)]), spaces.Tuple([spaces.Box(0, np.inf)] * 2), False),
        (spaces.Discrete(2), spaces.Discrete(3), False),
    ],
)
def test_bounds_beyond_single_precision_are_infinite(space, other, expected):
    assert same_space(space, other) is expected and same_space(other, space) is expected
