"""Environments in tensors with SB3's interface."""

import numpy as np
import pytest
import torch as th
from envs import ACTIONS
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, sync_envs_normalization
from tensor_envs import TensorTwin, twins

from ppo_plus import Cost, PPO_Plus, RolloutBuffer, TensorEnv, as_vec_env
from ppo_plus.envs.tensors.env import Transition
from ppo_plus.envs.tensors.vec_env import TensorVecEnv

SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


@pytest.mark.parametrize("kind", ACTIONS)
def test_sb3s_interface_is_that_of_the_same_task_in_numpy(kind):
    numpy, tensors = twins(ACTIONS[kind])
    tensors = as_vec_env(tensors)
    ACTIONS[kind].seed(0)
    for env in (numpy, tensors):
        env.seed(5)
    np.testing.assert_array_equal(numpy.reset(), tensors.reset())
    structured = isinstance(ACTIONS[kind], (spaces.Dict, spaces.Tuple))
    for _ in range(12):
        actions = [ACTIONS[kind].sample() for _ in range(3)]
        given = actions if structured else np.stack(actions)
        steps = [env.step(given) for env in (numpy, tensors)]
        for one, other in zip(steps[0][:3], steps[1][:3], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        for done, one, other in zip(steps[0][2], steps[0][3], steps[1][3], strict=True):
            if done:
                assert one["TimeLimit.truncated"] == other["TimeLimit.truncated"]
                assert one["episode"]["l"] == other["episode"]["l"]
                assert one["episode"]["r"] == pytest.approx(other["episode"]["r"], abs=1e-5)
                np.testing.assert_array_equal(one["terminal_observation"], other["terminal_observation"])
            else:
                assert other == {}


def test_what_a_step_returned_stays():
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"]))
    first = env.reset()
    before = first.copy()
    env.step(np.zeros(3))
    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("given", [(th.zeros(3, 3), {}), np.zeros((3, 3))])
def test_observations_of_a_reset_are_tensors_alone(monkeypatch, given):
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"]))
    monkeypatch.setattr(env.env, "reset", lambda seed=None: given)
    with pytest.raises(TypeError, match=f"must be tensors, not {type(given).__name__}; reset.* without an info"):
        env.reset()


class Camera(TensorEnv):
    """Nested observations with an image whose channels come last."""

    def __init__(self):
        image = spaces.Box(0, 255, (36, 40, 3), np.uint8)
        space = spaces.Dict(sensor=spaces.Dict(rgb=image), state=spaces.Box(-1, 1, (2,), np.float64))
        super().__init__(2, space, spaces.Discrete(2))

    def reset(self, seed=None):
        image = th.arange(36 * 40 * 3, dtype=th.uint8).reshape(1, 36, 40, 3).repeat(2, 1, 1, 1)
        return {"sensor": {"rgb": image}, "state": th.zeros(2, 2, dtype=th.float64)}

    def step(self, actions):
        never = th.zeros(2, dtype=th.bool)
        return Transition(self.reset(), th.ones(2), never, never)


def test_nested_observations_are_flattened_with_channels_first():
    model = PPO_Plus("MultiInputPolicy", Camera(), **SMALL).learn(16)
    stored = model.rollout_buffer.observations
    assert stored["sensor/rgb"].shape == (8, 2, 3, 36, 40) and stored["sensor/rgb"].dtype == np.uint8
    assert stored["sensor/rgb"][0, 0, 1, 0, 0] == 1
    assert stored["state"].dtype == np.float32


class Pair(Camera):
    def __init__(self):
        TensorEnv.__init__(self, 2, spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]), spaces.Discrete(2))

    def reset(self, seed=None):
        return th.zeros(2, 2), th.ones(2, dtype=th.long)


def test_tuples_are_trained_on_without_numpy(recwarn):
    model = PPO_Plus("MultiInputPolicy", Pair(), **SMALL).learn(16)
    assert isinstance(model.env, TensorVecEnv) and not recwarn.list
    assert model.rollout_buffer.observations["1"].tolist() == [[1, 1]] * 8


@pytest.mark.parametrize("shape", [(2, 8, 8, 3), (8, 8, 3)])
def test_pictures_are_those_of_the_simulator(shape, monkeypatch):
    """A picture for each environment, or one of all."""
    monkeypatch.setattr(TensorTwin, "render", lambda self: th.zeros(shape, dtype=th.uint8), raising=False)
    env = as_vec_env(TensorTwin(2, ACTIONS["discrete"]))
    assert [each.shape for each in env.get_images()] == [(8, 8, 3)] * (2 if len(shape) == 4 else 1)
    env.render("human")


def test_evaluation_and_callbacks_work():
    env = as_vec_env(TensorTwin(3, ACTIONS["discrete"], limit=4, falls=False))
    other = VecNormalize(as_vec_env(TensorTwin(2, ACTIONS["discrete"])), training=False)
    model = PPO_Plus("MlpPolicy", VecNormalize(env), **SMALL)
    model.learn(96, EvalCallback(other, eval_freq=8, n_eval_episodes=2, verbose=0))
    assert other.obs_rms.count > 24
    assert evaluate_policy(model, model.get_env(), 3, return_episode_rewards=True)[1] == [4, 4, 4]
    assert np.isfinite(model.evaluate(3)).all()
    # A simulator as it is, and one action for one observation.
    assert np.isfinite(model.evaluate(3, TensorTwin(2, ACTIONS["discrete"]))).all()
    assert model.action_space.contains(model.predict(np.zeros(3, np.float32))[0].item())
    sync_envs_normalization(model.env, other)
    np.testing.assert_array_equal(other.obs_rms.mean, model.env.obs_rms.mean)


class Costly(TensorTwin):
    def step(self, actions):
        costs = th.arange(self.num_envs) + 1.0
        return super().step(actions)._replace(infos={"terms": {"cost": costs}, "note": "abc", "episode": costs})


def test_evaluations_sum_streams_and_callbacks_see_infos():
    seen = []
    env = Costly(3, ACTIONS["discrete"], limit=4, falls=False)
    model = PPO_Plus("MlpPolicy", env, streams=[Cost(("terms", "cost"), limit=1.0, name="cost")], **SMALL)
    model.learn(24, lambda locals_, _: seen.append(locals_["infos"][2]) or True)
    assert seen[0] == {"terms": {"cost": 3.0}, "note": "abc"} and seen[3]["episode"]["l"] == 4
    assert [episode["cost"] for episode in model.evaluate(3, return_episodes=True)] == [4.0, 8.0, 12.0]


def test_a_saved_model_continues(tmp_path):
    env = TensorTwin(3, ACTIONS["box"])
    model = PPO_Plus("MlpLstmPolicy", env, use_sde=True, sequence_length=4, **SMALL).learn(48)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", env=env, device="cpu", force_reset=False)
    for name, weight in model.policy.state_dict().items():
        assert th.equal(weight, loaded.policy.state_dict()[name])
    loaded.learn(48, reset_num_timesteps=False)
    assert loaded.num_timesteps == 96
    assert PPO_Plus.load(tmp_path / "model", device="cpu").predict(np.zeros(3, np.float32))[0].shape == (2,)


def test_resuming_starts_new_episodes_and_warns(tmp_path):
    model = PPO_Plus("MlpPolicy", VecNormalize(as_vec_env(TensorTwin(3, ACTIONS["box"]))), **SMALL).learn(48)
    model.save_checkpoint(tmp_path)
    again = VecNormalize(as_vec_env(TensorTwin(3, ACTIONS["box"])))
    with pytest.warns(UserWarning, match="new episodes start"):
        resumed = PPO_Plus.resume(tmp_path, again, device="cpu")
    np.testing.assert_array_equal(resumed.env.obs_rms.mean, model.env.obs_rms.mean)
    resumed.learn(48, reset_num_timesteps=False)


def test_a_wrapper_that_works_in_numpy_is_named():
    with pytest.warns(UserWarning, match="VecFrameStack works in NumPy"):
        model = PPO_Plus("MlpPolicy", VecFrameStack(as_vec_env(TensorTwin(3, ACTIONS["box"])), 2), **SMALL)
    model.learn(24)
    assert model.rollout_buffer.observations.shape == (8, 3, 6)


def test_a_custom_buffer_may_change_what_is_added():
    class Doubling(RolloutBuffer):
        def add(self, obs, action, reward, *args, **kwargs):
            super().add(obs, action, 2 * reward, *args, **kwargs)

    rewards = []
    for buffer_class in (RolloutBuffer, Doubling):
        env = TensorTwin(3, ACTIONS["box"])
        model = PPO_Plus("MlpPolicy", env, rollout_buffer_class=buffer_class, gamma=0.0, **SMALL).learn(24)
        rewards.append(model.rollout_buffer.rewards)
    np.testing.assert_array_equal(rewards[1], 2 * rewards[0])
    assert rewards[0].any()


def test_what_does_not_fit_its_space_is_an_error():
    env = TensorTwin(3, ACTIONS["box"])
    env.observation_space = spaces.Box(-1, 1, (4,))
    with pytest.raises(ValueError, match="shape"):
        PPO_Plus("MlpPolicy", env, **SMALL).learn(24)
    env = TensorTwin(3, ACTIONS["box"])
    env.rewards = th.zeros(3, 1).expand(3, 2)
    env.step = lambda actions: Transition(env.observe(), th.zeros(6), *[th.zeros(3, dtype=th.bool)] * 2)
    with pytest.raises(ValueError, match="one number for each"):
        PPO_Plus("MlpPolicy", env, **SMALL).learn(24)


@pytest.mark.parametrize("shape", [(2, 3), (3, 1)])  # only what has ended; one number for all
def test_final_observations_of_another_shape_are_an_error(shape):
    env = TensorTwin(3, ACTIONS["box"])
    step = env.step
    env.step = lambda actions: step(actions)._replace(final_obs=th.ones(shape))
    with pytest.raises(ValueError, match="final_obs of shape"):
        PPO_Plus("MlpPolicy", env, **SMALL).learn(24)
