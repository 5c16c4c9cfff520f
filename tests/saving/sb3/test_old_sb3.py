"""Models that old versions of SB3 saved act as they did there."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, IMAGE, VECTOR, vec
from gymnasium import spaces
from parametrization import sample
from stable_baselines3 import PPO
from stable_baselines3.common.save_util import load_from_zip_file, save_to_zip_file

from ppo_plus import PPO_Plus, linear
from ppo_plus.saving.statistics import read_statistics

DATA = Path(__file__).parents[2] / "data" / "old_sb3"
DICT = spaces.Dict(image=IMAGE, vector=VECTOR)
MODELS = [each.stem for each in sorted(DATA.glob("*.zip"))]


@pytest.mark.parametrize("trust_pickle", sample([False, True], 2), ids=["read", "trusted"])
@pytest.mark.parametrize("name", MODELS)
def test_an_old_model_acts_as_it_did(name, trust_pickle):
    n = 4 if "CartPole" in name else 3
    obs = np.random.RandomState(0).uniform(-0.5, 0.5, (16, n)).astype("float32")
    model = PPO_Plus.from_sb3(DATA / f"{name}.zip", device="cpu", trust_pickle=trust_pickle)
    if name.endswith("lstm"):
        actions, state, start = [], None, np.ones(1, bool)
        for row in obs:
            action, state = model.predict(row, state, start, deterministic=True)
            actions.append(action)
            start = np.zeros(1, bool)
    else:
        actions, _ = model.predict(obs, deterministic=True)
    np.testing.assert_allclose(actions, np.load(DATA / f"{name}.npy"), rtol=0, atol=1e-5)
    assert name.endswith("sched") or model.clip_range(0.5) == 0.2


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith("sched")])
def test_learn_suggests_a_schedule_for_a_function_of_the_users(name):
    model = PPO_Plus.from_sb3(DATA / f"{name}.zip", env="CartPole-v1", device="cpu", n_steps=64)
    with pytest.raises(ValueError, match=r"learning_rate: the file.*linear_schedule.*ppo_plus.linear\(0.001\)"):
        model.learn(64)
    model.learning_rate, model.clip_range = linear(1e-3), linear(0.2)
    assert model.learn(64)._n_updates > 0


@pytest.mark.parametrize("path", sorted(DATA.glob("*.pkl")), ids=lambda each: each.stem)
def test_old_statistics_are_read(path):
    assert read_statistics(path)["obs_rms"].mean.shape == (3,)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("const", "linear", "lstm"))])
def test_an_old_model_continues_in_an_environment_of_today(name):
    """Bounds of 3.4e38 are infinite in Gymnasium 1.0, and fit."""
    model = PPO_Plus.from_sb3(DATA / f"{name}.zip", env="CartPole-v1", device="cpu", n_steps=64)
    assert np.isinf(model.env.observation_space.high).any()
    assert model.learn(64)._n_updates > 0
    model.set_env(gym.make("CartPole-v1"))


@pytest.mark.parametrize(("policy", "space"), [("CnnPolicy", IMAGE), ("MultiInputPolicy", DICT)])
def test_a_features_extractor_under_one_name_is_that_of_actor_and_critic(policy, space, tmp_path):
    """As SB3 before 1.7 saved it."""
    env = vec(ACTIONS["discrete"], space)
    model = PPO(policy, env, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(32)
    model.save(tmp_path / "model")
    data, parameters, _ = load_from_zip_file(tmp_path / "model", device="cpu")
    weights = parameters["policy"]
    parameters["policy"] = {name: each for name, each in weights.items() if name[:3] not in ("pi_", "vf_")}
    assert len(parameters["policy"]) < len(weights)
    save_to_zip_file(tmp_path / "old", data, parameters)
    ours, other = PPO_Plus.load(tmp_path / "old", device="cpu"), PPO_Plus(policy, env, device="cpu")
    other.set_parameters(tmp_path / "old")
    obs = env.reset()
    expected = model.predict(obs, deterministic=True)[0]
    for each in (ours, other):
        assert np.array_equal(each.predict(obs, deterministic=True)[0], expected)
        now = each.get_parameters()["policy"]
        assert now.keys() == weights.keys() and all(now[name].equal(weights[name]) for name in weights)
    assert len(ours.policy.optimizer.state) == len(model.policy.optimizer.state)
