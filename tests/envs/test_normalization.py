"""Statistics of a ``VecNormalize`` are finite and count no resets."""

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, FaultyEnv, vec
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.envs.normalization import are_finite
from ppo_plus.envs.vec_env import GymVectorEnv

NEXT_STEP = AutoresetMode.NEXT_STEP
FLOAT64 = spaces.Box(-np.inf, np.inf, (3,), np.float64)


def faulty(what, at, value):
    return VecNormalize(DummyVecEnv([lambda: FaultyEnv(what, at, value)]))


def model_in(env):
    return PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")


@pytest.mark.parametrize(
    ("what", "at", "value"), [("observation", 0, np.nan), ("observation", 3, -np.inf), ("reward", 13, np.inf)]
)
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


def short():
    return TimeLimit(gym.make("Pendulum-v1").unwrapped, 3)


def episodes_of_three(mode):
    return GymVectorEnv(SyncVectorEnv([short], autoreset_mode=mode))


def test_returns_of_transitions_count_and_not_those_of_resets():
    resets, none = VecNormalize(episodes_of_three(NEXT_STEP)), VecNormalize(episodes_of_three(AutoresetMode.SAME_STEP))
    model_in(resets).learn(16)
    model_in(none).learn(16)
    assert resets.ret_rms.count == pytest.approx(12, abs=1e-3) and none.ret_rms.count == pytest.approx(16, abs=1e-3)
    assert resets.ret_rms.mean < -2.0 and "update" not in vars(resets.ret_rms)


@pytest.mark.parametrize("value", [None, False, 3])
def test_attributes_and_infos_of_an_environment_count_as_nothing_of_ours(value):
    """``stepped`` says of our vector environments which rows are transitions, and infos which only reset."""

    class Named(gym.Wrapper):
        def __init__(self):
            super().__init__(short())
            self.stepped = self.observed = value

        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, info | {"autoreset": True, "game": value}

    plain, named = (VecNormalize(DummyVecEnv([make])) for make in (short, Named))
    ours, theirs = model_in(named).learn(16), model_in(plain).learn(16)
    assert named.ret_rms.count == plain.ret_rms.count and ours.rollout_buffer.valid is None
    assert np.array_equal(ours.rollout_buffer.advantages, theirs.rollout_buffer.advantages)


@pytest.mark.parametrize("given", [{"clip_obs": -1}, {"clip_reward": 0}, {"epsilon": -1e-8}, {"gamma": 2}], ids=str)
def test_arguments_out_of_range_raise_an_error(given):
    (name,) = given
    venv = vec(ACTIONS["discrete"])
    with pytest.raises(ValueError, match=f"VecNormalize: {name}={given[name]} must be a number"):
        PPO_Plus("MlpPolicy", VecNormalize(venv, **given))
