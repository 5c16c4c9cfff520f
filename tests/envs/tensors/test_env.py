"""Spaces of environments in tensors."""

import numpy as np
import pytest
from envs import ACTIONS
from gymnasium import spaces

from ppo_plus import PPO_Plus, TensorEnv
from ppo_plus.envs.tensors.env import UNBOUNDED, bounded


@pytest.mark.parametrize("kind", ACTIONS)
def test_spaces_with_bounds_stay_as_they_are(kind):
    assert bounded(ACTIONS[kind]) == ACTIONS[kind]


def test_bounds_that_are_missing_are_added():
    half = spaces.Box(np.float32([-1.0, -np.inf]), np.float32([np.inf, 2.0]))
    expected = spaces.Box(np.float32([-1.0, -UNBOUNDED]), np.float32([UNBOUNDED, 2.0]))
    assert bounded(half) == expected
    assert bounded(spaces.Dict(a=half, b=spaces.Tuple([half]))) == spaces.Dict(a=expected, b=spaces.Tuple([expected]))


def test_the_base_class_has_no_masks_and_is_abstract():
    env = TensorEnv(2, spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
    assert not env.has_masks and env.action_masks() is None and env.render() is None
    with pytest.raises(NotImplementedError):
        env.reset()


def test_squashing_needs_bounds():
    class Free(TensorEnv):
        def __init__(self, bound):
            box = spaces.Box(-bound, bound, (1,))
            super().__init__(2, spaces.Box(-1, 1, (2,)), box)

    squashed = {"policy_kwargs": {"squash_output": True}, "n_steps": 8, "device": "cpu"}
    with pytest.raises(ValueError, match="squash_output=True scales actions to the bounds of the Box, which has none"):
        PPO_Plus("MlpPolicy", Free(np.inf), **squashed)
    PPO_Plus("MlpPolicy", Free(1.0), **squashed)
    PPO_Plus("MlpPolicy", Free(np.inf), n_steps=8, device="cpu")
