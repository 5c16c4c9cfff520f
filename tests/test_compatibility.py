"""What version 0.1 saved is loaded by the present one: the models and the run in ``data/v0.1``."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ppo_plus import AdaptivePenalty, ColoredNoise, PPO_Plus, StateDependentNoise
from ppo_plus.zoo.cli import main

DATA = Path(__file__).parent / "data" / "v0.1"
EXPECTED = json.loads((DATA / "expected.json").read_text())
ENVS = {"discrete": "CartPole-v1", "lstm": "CartPole-v1", "gru_normalized": "MountainCarContinuous-v0"}


def arrays(observation):
    if isinstance(observation, dict):
        return {key: np.array(value, dtype=np.float32) for key, value in observation.items()}
    return np.array(observation, dtype=np.float32)


@pytest.mark.parametrize("name", EXPECTED)
def test_saved_models_act_as_they_did_and_go_on_learning(name):
    expected = EXPECTED[name]
    env_id = ENVS.get(name, "Pendulum-v1")
    n_envs = 1 if env_id == "Pendulum-v1" else 2
    env = DummyVecEnv([lambda: gym.make(env_id)] * n_envs)
    model = PPO_Plus.load(DATA / name, env=env, device="cpu")
    actions = [model.predict(arrays(obs), deterministic=True)[0] for obs in expected["observations"]]
    np.testing.assert_allclose(actions, expected["actions"], atol=1e-5)
    assert (model.num_timesteps, model._n_updates) == (expected["num_timesteps"], expected["n_updates"])

    model.learn(n_envs * 16, reset_num_timesteps=False)
    assert model.num_timesteps == expected["num_timesteps"] + n_envs * 16
    assert model._n_updates == expected["n_updates"] + 2


def test_strategies_and_schedules_come_along():
    gsde, colored = (PPO_Plus.load(DATA / name, device="cpu") for name in ("gsde", "colored_penalty"))
    assert (gsde.kl_control, gsde.sde_sample_freq) == ("adaptive_lr", "episode")
    assert gsde.policy.exploration == StateDependentNoise()
    assert colored.policy.exploration == ColoredNoise(0.5, 8)
    assert colored.kl_control == AdaptivePenalty(band=1.4)
    assert colored.clip_range is None
    discrete = PPO_Plus.load(DATA / "discrete", device="cpu")
    assert [discrete.clip_range(1.0), discrete.clip_range(0.0)] == pytest.approx([0.2, 0.1])
    assert discrete.learning_rate(0.5) == pytest.approx(1.5e-4)


def test_saved_statistics_normalize():
    env = VecNormalize.load(
        str(DATA / "gru_normalized_statistics.pkl"), DummyVecEnv([lambda: gym.make("MountainCarContinuous-v0")])
    )
    assert env.obs_rms.count > 64
    assert np.isfinite(env.normalize_obs(env.reset())).all()


def test_a_run_plays_on(capsys):
    main(["enjoy", "--env", "CartPole-v1", "-f", str(DATA / "run"), "--exp-id", "1", "-n", "50", "--no-render"])
    assert "return" in capsys.readouterr().out
