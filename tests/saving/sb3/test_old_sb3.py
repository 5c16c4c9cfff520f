"""Models that old versions of SB3 saved act as they did there."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from ppo_plus import PPO_Plus
from ppo_plus.saving.statistics import read_statistics

DATA = Path(__file__).parents[2] / "data" / "old_sb3"
MODELS = [each.stem for each in sorted(DATA.glob("*.zip")) if each.stem.split("_")[-1] in ("const", "linear", "gsde")]


@pytest.mark.parametrize("name", MODELS)
def test_an_old_model_acts_as_it_did(name):
    n = 4 if "CartPole" in name else 3
    obs = np.random.RandomState(0).uniform(-0.5, 0.5, (16, n)).astype("float32")
    model = PPO_Plus.from_sb3(DATA / f"{name}.zip", device="cpu")
    np.testing.assert_allclose(
        model.predict(obs, deterministic=True)[0], np.load(DATA / f"{name}.npy"), rtol=0, atol=1e-5
    )
    assert model.clip_range(0.5) == 0.2


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pkl")), ids=lambda each: each.stem)
def test_old_statistics_are_read(path):
    assert read_statistics(path)["obs_rms"].mean.shape == (3,)


@pytest.mark.parametrize("name", [name for name in MODELS if "CartPole" in name])
def test_an_old_model_continues_in_an_environment_of_today(name):
    """Bounds of 3.4e38 are infinite in Gymnasium 1.0."""
    model = PPO_Plus.from_sb3(DATA / f"{name}.zip", env="CartPole-v1", device="cpu", n_steps=64)
    assert np.isinf(model.observation_space.high).any()
    assert model.learn(64)._n_updates > 0
    model.set_env(gym.make("CartPole-v1"))
