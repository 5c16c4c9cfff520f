"""What SB3's documentation shows of PPO runs with the import changed; scaled down, not simplified."""

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ppo_plus import PPO_Plus as PPO

SMALL = dict(n_steps=64, n_epochs=2, device="cpu")


def test_train_save_load_and_play(tmp_path):
    env = make_vec_env("CartPole-v1", n_envs=4)
    model = PPO("MlpPolicy", env, verbose=1, **SMALL)
    model.learn(total_timesteps=300)
    model.save(tmp_path / "ppo_cartpole")
    del model
    model = PPO.load(tmp_path / "ppo_cartpole")
    obs = env.reset()
    for _ in range(20):
        action, _states = model.predict(obs)
        obs, rewards, dones, infos = env.step(action)
    assert rewards.shape == (4,)


def test_normalized_environment_saved_and_loaded(tmp_path):
    vec_env = VecNormalize(
        DummyVecEnv([lambda: gym.make("Pendulum-v1")]), norm_obs=True, norm_reward=True, clip_obs=10.0
    )
    model = PPO("MlpPolicy", vec_env, **SMALL).learn(128)
    model.save(tmp_path / "model")
    vec_env.save(str(tmp_path / "vec_normalize.pkl"))
    restored = VecNormalize.load(str(tmp_path / "vec_normalize.pkl"), DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    restored.training = restored.norm_reward = False
    model = PPO.load(tmp_path / "model", env=restored)
    assert model.get_vec_normalize_env() is restored
    obs = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(restored.normalize_obs(obs), vec_env.normalize_obs(obs))
    mean, std = evaluate_policy(model, restored, n_eval_episodes=1, warn=False)
    assert np.isfinite(mean) and std == 0.0
    model.learn(64)
