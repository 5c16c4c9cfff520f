"""A step in tensors is normalized like SB3's ``VecNormalize`` does in NumPy."""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS
from stable_baselines3.common.vec_env import VecNormalize
from tensor_envs import twins

from ppo_plus import as_vec_env
from ppo_plus.envs.checks import row_of
from ppo_plus.envs.tensors.env import as_numpy
from ppo_plus.envs.tensors.normalize import Normalizing


def pair(is_dict=False, **kwargs):
    """The same environments in NumPy and in tensors, each in a ``VecNormalize``."""
    keys = {"norm_obs_keys": ["vector"]} if is_dict else {}
    numpy, tensors = twins(ACTIONS["discrete"], 3, is_dict=is_dict)
    found = [VecNormalize(as_vec_env(env), gamma=0.9, **keys, **kwargs) for env in (numpy, tensors)]
    for env in found:
        env.seed(0)
        env.reset()
    return found


def assert_close(expected, found):
    for key in expected if isinstance(expected, dict) else [...]:
        np.testing.assert_allclose(expected[key], np.asarray(found[key]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kwargs", [{}, {"norm_reward": False}, {"norm_obs": False}, {"training": False}], ids=str)
@pytest.mark.parametrize("is_dict", [False, True])
def test_steps_and_statistics_are_sb3s(is_dict, kwargs):
    theirs, ours = pair(is_dict, **kwargs)
    normalizing = Normalizing(ours, th.device("cpu"))
    n_ends = 0
    for action in [0, 1, 2] * 4:
        obs, rewards, dones, infos = theirs.step(np.full(3, action))
        step = normalizing(ours.venv.step_tensors(th.full((3,), action)))
        assert_close(obs, step.obs)
        assert_close(rewards, step.rewards)
        for i in np.flatnonzero(dones):
            assert_close(infos[i]["terminal_observation"], row_of(as_numpy(step.final_obs), i))
            n_ends += 1
    assert n_ends > 3
    normalizing.write([tensor.numpy() for tensor in normalizing.tensors()])
    assert ours.ret_rms.count == theirs.ret_rms.count
    np.testing.assert_allclose(ours.ret_rms.var, theirs.ret_rms.var, rtol=1e-5)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-5)


def test_numbers_that_are_not_finite_are_noticed():
    _, env = pair()
    normalizing = Normalizing(env, th.device("cpu"))
    step = env.venv.step_tensors(th.zeros(3, dtype=th.long))
    normalizing(step)
    assert normalizing.watch.isfinite().all()
    normalizing(step._replace(rewards=th.tensor([0.0, np.inf, 0.0])))
    assert normalizing.watch.isfinite().tolist() == [True, False, True]
