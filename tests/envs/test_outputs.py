"""Results of environments are checked against their spaces."""

import numpy as np
import pytest
from gymnasium import spaces

from ppo_plus.envs.outputs import InvalidOutput, check_obs, check_reward

BOX = spaces.Box(-np.inf, np.inf, (2,))
KIND = spaces.Discrete(3)
BOTH = spaces.Dict(near=BOX, far=spaces.Tuple([KIND, BOX]))
FINE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("obs", "space"),
    [
        (FINE, BOX),
        (np.zeros(2), BOX),
        ([1, 2], BOX),
        (np.array([1e30, 0], np.float32), BOX),
        (2, KIND),
        (np.array([2.0]), KIND),
        (np.float32(0), spaces.Box(-1, 1, (1,))),
        (np.ones(2, bool), BOX),
        ({"near": FINE, "far": (1, FINE), "more": None}, BOTH),
    ],
)
def test_what_a_space_contains_is_valid(obs, space):
    check_obs(obs, space)


@pytest.mark.parametrize(
    ("obs", "space", "message"),
    [
        (np.zeros(3, np.float32), BOX, r"an observation of shape \(3,\), but its space Box.* has \(2,\)"),
        (FINE * np.nan, BOX, "an observation that is not finite: array"),
        (np.array([np.inf, 0], np.float32), BOX, "an observation that is not finite"),
        (np.full(2, 1e300), BOX, "an observation that is too large for single precision"),
        (1.5, KIND, "an observation of dtype float64, whose values int64 of its space cannot represent"),
        (np.array(["a", "b"]), BOX, "an observation of dtype <U1"),
        ([[1], [1, 2]], BOX, "an observation of unequal rows"),
        (FINE, BOTH, "an observation without 'near'"),
        ({"near": FINE, "far": [1, FINE]}, BOTH, r"an observation\['far'\] that is not a tuple of 2 parts"),
        ({"near": FINE, "far": (1, FINE * np.nan)}, BOTH, r"an observation\['far'\]\[1\] that is not finite"),
    ],
)
def test_what_it_does_not_contain_is_invalid(obs, space, message):
    with pytest.raises(InvalidOutput, match=f"^returned {message}"):
        check_obs(obs, space)


def test_rewards_are_finite_in_single_precision():
    assert check_reward(np.float32(1.5)) == 1.5
    with pytest.raises(InvalidOutput, match="a reward that is not finite: nan"):
        check_reward(np.nan)
    with pytest.raises(InvalidOutput, match="a reward that is too large for single precision: -1e[+]39"):
        check_reward(-1e39)
