"""Statistics of a ``VecNormalize`` are finite and count no resets, and are the same in tensors."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, FaultyEnv, vec
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from tensor_envs import twins

from ppo_plus import PPO_Plus, as_vec_env
from ppo_plus.envs.checks import row_of
from ppo_plus.envs.normalization import Normalizing, are_finite
from ppo_plus.envs.tensors.env import as_numpy
from ppo_plus.envs.vec_env import GymVectorEnv

NEXT_STEP = AutoresetMode.NEXT_STEP
FLOAT64 = spaces.Box(-np.inf, np.inf, (3,), np.float64)


def faulty(what, at, value):
    return VecNormalize(DummyVecEnv([lambda: FaultyEnv(what, at, value)]))


def model_in(env):
    return PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("what", "at"), [("observation", 0), ("observation", 3), ("reward", 13)])
@pytest.mark.parametrize("stacked", [False, True])
def test_statistics_are_those_of_before(what, at, value, stacked):
    normalize = faulty(what, at, value)
    model = model_in(VecFrameStack(normalize, 2) if stacked else normalize)
    with pytest.raises(FloatingPointError, match=f"(?s)the {what} .* is not finite: .*{value}.* in environment 0"):
        model.learn(64)
    assert are_finite(normalize) and np.isfinite(normalize.returns).all()
    # Those of the rollout's beginning: after the reset, and for step 13 after a rollout.
    assert normalize.obs_rms.count == pytest.approx({0: 0, 3: 1, 13: 9}[at], abs=0.1)


def test_statistics_that_were_not_finite_are_known():
    normalize = VecNormalize(vec(FaultyEnv("final", 0).action_space))
    assert are_finite(normalize)
    normalize.ret_rms.var = np.array(np.inf)
    assert not are_finite(normalize)


@pytest.mark.parametrize("normalized", [False, True])
def test_infinity_in_single_precision_is_reported_as_too_large(normalized):
    class Large(FaultyEnv):
        def observe(self):
            return super().observe().astype(np.float64) * (1e300 if self.n_steps == 3 else 1.0)

    env = DummyVecEnv([lambda: Large("final", 99, observation_space=FLOAT64)])
    with pytest.raises(FloatingPointError, match=r"observation .* is too large for single precision: .*e\+"):
        model_in(VecNormalize(env) if normalized else env).learn(64)


def test_what_becomes_nan_behind_the_statistics_is_found_too():
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2))
    model = PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu")
    env.obs_rms.mean[:] = np.nan
    with pytest.raises(FloatingPointError, match="observation .* not finite"):
        model.learn(16)


def episodes_of_three(mode):
    make = partial(TimeLimit, gym.make("Pendulum-v1").unwrapped, 3)
    return GymVectorEnv(SyncVectorEnv([make], autoreset_mode=mode))


def test_a_vec_normalize_that_counts_resets_is_warned_of():
    with pytest.warns(UserWarning, match="norm_reward=False to it and normalize_values=True"):
        model_in(VecNormalize(episodes_of_three(NEXT_STEP)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for env in (
            VecNormalize(episodes_of_three(AutoresetMode.SAME_STEP)),
            VecNormalize(episodes_of_three(NEXT_STEP), norm_reward=False),
        ):
            model_in(env)


@pytest.mark.parametrize("given", [{"clip_obs": -1}, {"clip_reward": 0}, {"epsilon": -1e-8}, {"gamma": 2}], ids=str)
def test_arguments_out_of_range_raise_an_error(given):
    (name,) = given
    venv = vec(ACTIONS["discrete"])
    with pytest.raises(ValueError, match=f"VecNormalize: {name}={given[name]} must be a number"):
        PPO_Plus("MlpPolicy", VecNormalize(venv, **given))


# --- a step in tensors is normalized like SB3's ``VecNormalize`` does in NumPy ----------------------------------------


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
