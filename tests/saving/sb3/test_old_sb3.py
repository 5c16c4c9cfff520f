"""Models that old versions of SB3 saved act as they did there."""

from pathlib import Path

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
