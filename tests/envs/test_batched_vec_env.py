"""What the adapters share: actions become a batch, and there are no single environments."""

import numpy as np
import pytest
from envs import ACTIONS, RandomEnv
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from tensor_envs import TensorTwin

from ppo_plus import as_vec_env


class Spy(SyncVectorEnv):
    """Remembers the actions that it is given."""

    def step(self, actions):
        self.given = actions
        return super().step(actions)


def spied(space):
    env = as_vec_env(Spy([lambda: RandomEnv(space)] * 2))
    env.reset()
    return env


@pytest.mark.parametrize(
    ("space", "actions", "dtype", "shape"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), np.ones((2, 2), np.float32), np.float64, (2, 2)),
        (spaces.Discrete(3), np.ones((2, 1), np.int32), np.int64, (2,)),
    ],
)
def test_actions_get_the_dtype_that_the_environment_wants(space, actions, dtype, shape):
    env = spied(space)
    env.step(actions)
    assert (env.env.given.dtype, env.env.given.shape) == (dtype, shape)


def test_structured_actions_come_as_a_list_or_a_batch():
    env = spied(ACTIONS["tuple"])
    kinds, places = np.array([0, 2]), np.array([[0.5, 1.5], [-1.0, 0.0]], np.float32)
    for actions in ([(0, places[0]), (2, places[1])], (kinds, places)):
        env.step(actions)
        np.testing.assert_array_equal(env.env.given[0], kinds)
        np.testing.assert_array_equal(env.env.given[1], places)


def test_there_are_no_single_environments():
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"]))
    for access in (lambda: env.get_attr("t"), lambda: env.set_attr("t", 0), lambda: env.env_method("reset")):
        with pytest.raises(AttributeError, match="single environments"):
            access()
    assert env.get_attr("render_mode") == [None] * 3 and not env.has_attr("action_masks")
    assert env.env_is_wrapped(Monitor, indices=[0, 2]) == [True, True]
    masked = as_vec_env(TensorTwin(3, ACTIONS["discrete"], "method"))
    assert np.stack(masked.env_method("action_masks")).shape == (3, 3)
