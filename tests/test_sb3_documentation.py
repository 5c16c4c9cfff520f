"""What SB3's documentation shows of PPO runs with the import changed; scaled down, not simplified."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from networks import TowerPolicy, TwoTowers
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from torch import nn

from ppo_plus import PPO_Plus as PPO
from ppo_plus import register

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


def test_one_line_with_an_id():
    assert PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(100).num_timesteps == 128


def test_model_get_env_plays_deterministically():
    model = PPO("MlpPolicy", gym.make("Pendulum-v1", render_mode="rgb_array"), **SMALL).learn(64)
    vec_env = model.get_env()
    obs = vec_env.reset()
    action, _ = model.predict(obs, deterministic=True)
    obs, *_ = vec_env.step(action)
    assert vec_env.render("rgb_array").ndim == 3


@pytest.mark.slow
def test_subprocess_environments():
    env = make_vec_env("CartPole-v1", n_envs=2, vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method="spawn"))
    try:
        assert PPO("MlpPolicy", env, **SMALL).learn(128).num_timesteps == 128
    finally:
        env.close()


def test_dict_observations():
    env = SimpleMultiObsEnv(random_start=False)
    model = PPO("MultiInputPolicy", env, **SMALL).learn(64)
    obs, _ = env.reset()
    assert env.action_space.contains(int(model.predict(obs)[0]))


class StopAfter(BaseCallback):
    """Uses what the documentation says a callback has."""

    def __init__(self, n_calls: int):
        super().__init__()
        self.n_stop = n_calls
        self.events: list[str] = []

    def _on_training_start(self):
        self.events.append("training_start")

    def _on_rollout_start(self):
        self.events.append("rollout_start")

    def _on_step(self):
        assert self.training_env is self.model.get_env()
        assert self.locals["infos"] and self.locals["rewards"].shape == (1,)
        self.logger.record("own/value", self.num_timesteps)
        return self.n_calls < self.n_stop

    def _on_rollout_end(self):
        self.events.append("rollout_end")

    def _on_training_end(self):
        self.events.append("training_end")


def test_a_custom_callback_stops_training():
    callback = StopAfter(100)
    model = PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(1_000, callback=callback)
    assert model.num_timesteps == 100
    assert callback.events == ["training_start", "rollout_start", "rollout_end", "rollout_start", "training_end"]


def test_callbacks_of_the_documentation_together(tmp_path):
    evaluation = EvalCallback(
        make_vec_env("Pendulum-v1", 1),
        callback_on_new_best=StopTrainingOnRewardThreshold(reward_threshold=1e9, verbose=1),
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path / "results"),
        eval_freq=64,
        n_eval_episodes=1,
    )
    checkpoints = CheckpointCallback(save_freq=64, save_path=str(tmp_path / "checkpoints"))
    every = EveryNTimesteps(n_steps=64, callback=StopTrainingOnMaxEpisodes(max_episodes=50))
    model = PPO("MlpPolicy", "Pendulum-v1", **SMALL)
    model.learn(128, callback=CallbackList([checkpoints, evaluation, every]))
    assert (tmp_path / "best" / "best_model.zip").exists()
    assert len(list((tmp_path / "checkpoints").glob("*.zip"))) == 2
    assert np.load(tmp_path / "results" / "evaluations.npz")["timesteps"].tolist() == [64, 128]


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
    mean, std = evaluate_policy(model, restored, n_eval_episodes=1, warn=False)
    assert np.isfinite(mean) and std == 0.0


def test_network_architecture_and_activation():
    policy_kwargs = dict(activation_fn=th.nn.ReLU, net_arch=dict(pi=[32, 32], vf=[16]))
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs=policy_kwargs, **SMALL).learn(64)
    assert [layer.out_features for layer in model.policy.mlp_extractor.value_net if isinstance(layer, nn.Linear)] == [
        16
    ]


class SmallCNN(BaseFeaturesExtractor):
    """A features extractor for images, as the custom-policy page builds one."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 32):
        super().__init__(observation_space, features_dim)
        channels = observation_space.shape[0]
        self.cnn = nn.Sequential(nn.Conv2d(channels, 8, kernel_size=8, stride=4), nn.ReLU(), nn.Flatten())
        with th.no_grad():
            n_flatten = self.cnn(th.as_tensor(observation_space.sample()[None]).float()).shape[1]
        self.linear = nn.Sequential(nn.Linear(n_flatten, features_dim), nn.ReLU())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.linear(self.cnn(observations))


class Pixels(gym.Env):
    """Random channel-last images."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action):
        return self._image(), float(action), bool(self.np_random.random() < 0.05), False, {}

    def _image(self):
        return self.np_random.integers(0, 256, (36, 36, 3), dtype=np.uint8)


@pytest.mark.parametrize("extractor", [None, SmallCNN])
def test_images(extractor):
    policy_kwargs = (
        {}
        if extractor is None
        else dict(features_extractor_class=extractor, features_extractor_kwargs=dict(features_dim=16))
    )
    model = PPO("CnnPolicy", Pixels(), policy_kwargs=policy_kwargs, **SMALL).learn(64)
    assert model.predict(Pixels().reset()[0])[0].shape == ()


def test_policy_class_written_for_sb3(tmp_path):
    model = PPO(TowerPolicy, "CartPole-v1", **SMALL).learn(64)
    assert isinstance(model.policy, TowerPolicy)
    assert isinstance(model.policy.mlp_extractor, TwoTowers)
    obs = np.zeros((3, 4), dtype=np.float32)
    model.save(tmp_path / "model")
    # The one line more than with SB3: files name only classes that they may.
    register(TowerPolicy)
    loaded = PPO.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_custom_logger(tmp_path):
    model = PPO("MlpPolicy", "CartPole-v1", **SMALL)
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))
    model.learn(128)
    header = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    assert {"train/approx_kl", "train/loss", "rollout/ep_rew_mean", "time/fps"} <= set(header)


def test_parameters_by_hand():
    """The evolution-strategy example: read, perturb and set the policy's parameters."""
    model = PPO("MlpPolicy", "CartPole-v1", **SMALL)
    mean = {key: value for key, value in model.policy.state_dict().items() if "policy" in key or "action" in key}
    perturbed = {key: value + th.randn_like(value) for key, value in mean.items()}
    model.policy.load_state_dict(perturbed, strict=False)
    assert all(th.equal(model.policy.state_dict()[key], value) for key, value in perturbed.items())
