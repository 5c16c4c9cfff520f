"""Checks of arguments: what passes, and what the messages say."""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from ppo_plus import PPO_Plus
from ppo_plus.require import require_int, require_number, require_one_of, require_spaces, same_space

integer = partial(require_int, "n_steps", low=1)
number = partial(require_number, "gamma", low=0, high=1)
above = partial(require_number, "max_grad_norm", low=0, above=True)
choice = partial(require_one_of, "normalize_advantage", choices=(True, False, "minibatch"))

PASSES = [
    *((integer, value) for value in (1, 7, np.int64(1), np.uint8(3))),
    (partial(integer, or_none=True), None),
    *((number, value) for value in (0, 1, 0.5, np.float32(0.25), np.int32(1))),
    (partial(number, or_none=True), None),
    (above, 1e-300),
    *((choice, value) for value in (True, False, "minibatch")),
]


@pytest.mark.parametrize(("check", "value"), PASSES)
def test_values_in_range_pass(check, value):
    check(value=value)


CHOICES = r"^normalize_advantage=.* must be one of True, False, 'minibatch'$"
RAISES = [
    *((integer, value, TypeError, r"^n_steps=.* must be an integer, at least 1$") for value in (2.0, True, None)),
    *((integer, value, TypeError, "must be an integer") for value in (np.float64(2), np.bool_(True))),
    *((integer, value, ValueError, r"^n_steps=.* must be at least 1$") for value in (0, -5, np.int64(0))),
    (partial(integer, or_none=True), "100", TypeError, "'100' must be an integer, at least 1, or None"),
    (partial(integer, high=9), 10, ValueError, "^n_steps=10 must be at least 1 and at most 9$"),
    *((number, value, ValueError, r"^gamma=.* must be a number in \[0, 1\]$") for value in (-1e-9, 1.0000001)),
    *((number, value, ValueError, "gamma=.* must be") for value in (math.nan, -math.inf, math.inf, np.float64("nan"))),
    *((number, value, TypeError, r"gamma=.* must be a number in \[0, 1\]") for value in (None, True, np.bool_(True))),
    *((number, value, TypeError, "gamma=.* must be a number") for value in ("0.5", [0.5], 1j)),
    (partial(number, or_none=True), 2, ValueError, r"^gamma=2 must be a number in \[0, 1\], or None$"),
    *((above, value, ValueError, r"^max_grad_norm=.* must be a number in \(0, inf") for value in (0, 0.0, -1)),
    # Values that Python says are equal to a choice of another type.
    *((choice, value, ValueError, CHOICES) for value in (1, 0, 1.0, None, "Minibatch", np.array([1, 2]))),
]


@pytest.mark.parametrize(("check", "value", "error", "text"), RAISES)
def test_other_values_raise_an_error(check, value, error, text):
    with pytest.raises(error, match=text):
        check(value=value)


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_environments_with_other_spaces_raise_an_error(kind):
    env = gym.make("CartPole-v1")
    theirs = {"observation_space": env.observation_space, "action_space": env.action_space}
    require_spaces(env, **theirs)
    text = f"env does not fit .* {kind} spaces do not match, .* of env and Discrete.7. of"
    with pytest.raises(ValueError, match=text):
        require_spaces(env, **theirs | {f"{kind}_space": spaces.Discrete(7)})


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


def test_a_log_for_tensorboard_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("ppo_plus.require.find_spec", {"tensorboard": None}.get)
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=64, tensorboard_log=str(tmp_path / "tb"), compile=False)
    with pytest.raises(ImportError, match="^tensorboard_log='.*tb' needs tensorboard: pip install tensorboard$"):
        model.learn(64)
    assert not list(tmp_path.iterdir())
