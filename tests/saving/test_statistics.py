"""Statistics of VecNormalize come back from our files and from SB3's, without running the pickles in them."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, OBSERVATIONS, vec
from poison import Evil
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import ppo_plus
from ppo_plus import PPO_Plus
from ppo_plus.saving import statistics
from ppo_plus.saving.format import container
from ppo_plus.saving.format.names import Damaged, Refused
from ppo_plus.saving.statistics import KIND, STATISTICS, find_statistics, read_statistics, write_statistics


@pytest.fixture(params=["box", "dict"])
def normalize(request):
    keys = ["vector"] if request.param == "dict" else None
    env = VecNormalize(vec(ACTIONS["box"], OBSERVATIONS[request.param]), norm_obs_keys=keys, gamma=0.9, clip_obs=5.0)
    env.reset()
    for _ in range(10):
        env.step([env.action_space.sample() for _ in range(2)])
    return env


def moments(found):
    each = found["obs_rms"]
    parts = [*(each.values() if isinstance(each, dict) else [each]), found["ret_rms"]]
    return [(part.mean.tolist(), part.var.tolist(), part.count) for part in parts]


def test_statistics_come_back_and_pickled_ones_are_read(normalize, tmp_path):
    expected = moments(vars(normalize))
    normalize.save(str(tmp_path / "old.pkl"))
    write_statistics(normalize, tmp_path / "new.zip")
    for found in (read_statistics(tmp_path / "old.pkl"), read_statistics(tmp_path / "new.zip")):
        assert moments(found) == expected
        assert (found["gamma"], found["clip_obs"], found["norm_obs"]) == (0.9, 5.0, True)
        assert found["observation_space"] == normalize.observation_space


def test_poisoned_statistics_run_nothing(normalize, tmp_path):
    normalize.obs_rms = Evil(tmp_path / "ran")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(normalize))
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    for name in ("a.pkl", "b.pkl"):
        with pytest.raises(Refused, match=name):
            read_statistics(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [3, {}, {"gamma": 0.9}, dict.fromkeys(STATISTICS, 1)])
def test_a_file_without_statistics_is_damaged(value, tmp_path):
    container.write(tmp_path / "a.zip", KIND, value)
    with pytest.raises(Damaged, match=r"a\.zip is not a valid VecNormalize"):
        read_statistics(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["epsilon", "normalize_observations", "return_moments"])
def test_statistics_of_sb3_without_an_entry_are_damaged(name, tmp_path):
    saved = VecNormalize(environments())
    delattr(saved, STATISTICS[name])
    saved.save(str(tmp_path / "a.pkl"))
    with pytest.raises(Damaged, match=f"KeyError: '{name}'"):
        ppo_plus.load_statistics(tmp_path / "a.pkl", environments())


def environments(n=2):
    return DummyVecEnv([lambda: gym.make("CartPole-v1")] * n)


@pytest.mark.parametrize(
    ("files", "expected"),
    {
        "a_vecnormalize.zip a_vecnormalize.pkl": "a_vecnormalize.zip",
        "b_vecnormalize.zip vec_normalize.pkl": None,
        "vecnormalize-a.pkl b_vecnormalize.pkl": "vecnormalize-a.pkl",
        "b_vecnormalize.pkl": None,
        "VecNormalize.pkl": "VecNormalize.pkl",
        "best_vec_normalize_stats.pkl": "best_vec_normalize_stats.pkl",
        "env/vecnormalize.pkl": "env/vecnormalize.pkl",
        "env/vecnormalize.pkl vecnormalize.pkl": "vecnormalize.pkl",
        "rl_model_vecnormalize_64_steps.pkl env/vecnormalize.pkl": "env/vecnormalize.pkl",
        "other.pkl": None,
    }.items(),
)
def test_statistics_are_found_under_the_names_that_people_use(files, expected, tmp_path):
    for name in ["a.zip", "b.zip", *files.split()]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = find_statistics(tmp_path / "a.zip", tmp_path / "env")
    assert found == (expected and tmp_path / expected)


def test_statistics_that_may_be_several_are_named(tmp_path):
    files = "vec_normalize.pkl vecnormalize.pkl rl_model_vecnormalize_64_steps.pkl rl_model_64_steps.zip"
    for name in files.split():
        (tmp_path / name).touch()
    assert find_statistics(tmp_path / "rl_model_64_steps.zip").name == "rl_model_vecnormalize_64_steps.pkl"
    with pytest.raises(ValueError, match=r"\['vec_normalize.pkl', 'vecnormalize.pkl'\].*absorb_normalization\('.*'\)"):
        find_statistics(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["model_vecnormalize.zip", "vecnormalize.pkl"])
def test_load_statistics_is_sb3s_load_for_both_formats(name, tmp_path):
    saved = VecNormalize(environments(), gamma=0.9, clip_obs=5.0, norm_reward=False, training=False)
    saved.obs_rms.update(np.random.default_rng(0).normal(size=(50, 4)))
    if name.endswith(".pkl"):
        saved.save(str(tmp_path / name))
    else:
        write_statistics(saved, tmp_path / name)
    loaded = ppo_plus.load_statistics(str(tmp_path / name), environments(3))
    assert isinstance(loaded, VecNormalize) and loaded.num_envs == 3
    assert (loaded.gamma, loaded.clip_obs, loaded.norm_reward, loaded.training) == (0.9, 5.0, False, False)
    obs = np.random.default_rng(1).normal(size=(3, 4))
    np.testing.assert_array_equal(loaded.normalize_obs(obs), saved.normalize_obs(obs))


def test_sb3s_statistics_of_rewards_alone_are_read(tmp_path):
    saved = VecNormalize(environments(), norm_obs=False, gamma=0.9)
    saved.ret_rms.update(np.array([1.0, 3.0]))
    saved.save(str(tmp_path / "vecnormalize.pkl"))
    loaded = ppo_plus.load_statistics(tmp_path / "vecnormalize.pkl", environments())
    assert (loaded.norm_obs, loaded.gamma, loaded.ret_rms.var) == (False, 0.9, saved.ret_rms.var)


def test_statistics_are_loaded_into_environments_that_they_fit(tmp_path):
    write_statistics(VecNormalize(environments()), tmp_path / "a.zip")
    for venv in ("Pendulum-v1", VecNormalize(environments())):
        with pytest.raises(TypeError, match="venv=.* must be a vector environment that is not in a VecNormalize"):
            ppo_plus.load_statistics(tmp_path / "a.zip", venv)
    with pytest.raises(Refused, match="it has statistics of observations, and the environment has norm_obs=False"):
        rewards_alone, path = VecNormalize(environments(), norm_obs=False), tmp_path / "a.zip"
        statistics.put_statistics(rewards_alone, read_statistics(path), path)
    with pytest.raises(ppo_plus.Refused, match="the statistics are of observations"):
        ppo_plus.load_statistics(tmp_path / "a.zip", DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    PPO_Plus("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "model")
    with pytest.raises(Refused, match="is a ppo_plus model, not a ppo_plus statistics"):
        ppo_plus.load_statistics(tmp_path / "model.zip", environments())
