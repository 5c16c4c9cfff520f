"""Evaluations after updates."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from envs import ACTIONS, MaskedEnv, vec
from models import weights
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize
from training import LogDumps

from ppo_plus import PPO_Plus
from ppo_plus.callbacks import EvalAfterUpdates, save_with_statistics
from ppo_plus.saving.statistics import read_statistics
from ppo_plus.zoo.experiment import load_experiment, make_envs, make_model
from ppo_plus.zoo.results import read_evaluations

#: A rollout is 64 timesteps.
EXPERIMENT = load_experiment(
    "CartPole-v1", overrides={"n_envs": 2, "n_steps": 32, "normalize": True, "compile": False, "n_epochs": 2}
)


class Snapshot(BaseCallback):
    """What was evaluated: the weights, and the statistics that the evaluation environments used."""

    def __init__(self, eval_env):
        super().__init__()
        self.eval_env = eval_env
        self.weights, self.means, self.updates = [], [], []

    def _on_step(self):
        self.weights.append(weights(self.model))
        self.means.append(self.eval_env.obs_rms.mean.copy())
        self.updates.append(self.model._n_updates)
        return True


def learn(n_timesteps, eval_freq, experiment=EXPERIMENT, **kwargs):
    env, eval_env = make_envs(experiment), make_envs(experiment, evaluation=True)
    model = make_model(experiment, env)
    snapshot = Snapshot(eval_env) if experiment.normalize is not None else None
    callback = EvalAfterUpdates(eval_env, eval_freq, n_eval_episodes=1, callback_after_eval=snapshot, **kwargs)
    model.learn(n_timesteps, callback=callback)
    return model, callback, snapshot


def test_evaluations_follow_updates_including_the_last_one(tmp_path):
    model, callback, snapshot = learn(300, 100, log_path=str(tmp_path))
    # Rollouts end at 64, 128, …, 320: the first after each multiple of 100, and the last.
    assert callback.evaluations_timesteps == [128, 256, 320]
    assert snapshot.updates == [2 * 2, 4 * 2, 5 * 2]
    th.testing.assert_close(snapshot.weights[-1], weights(model), rtol=0, atol=0)
    assert not th.equal(snapshot.weights[0], snapshot.weights[1])


class Falling(gym.Wrapper):
    """An episode is a success where the pole leans to the right."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": bool(obs[2] > 0)}


@pytest.mark.slow
def test_evaluations_are_recorded_as_sb3_records_them(tmp_path, capsys):
    model, log = make_model(EXPERIMENT, make_envs(EXPERIMENT).venv), LogDumps()

    def callback(cls, folder, **kwargs):
        env = make_vec_env("CartPole-v1", 2, seed=3, wrapper_class=Falling)
        return cls(env, n_eval_episodes=5, log_path=folder, best_model_save_path=folder, verbose=1, **kwargs)

    ours = callback(EvalAfterUpdates, tmp_path / "ours")
    theirs = callback(EvalCallback, tmp_path / "theirs", eval_freq=1)
    model.learn(64, log_interval=None, callback=[log, ours])
    printed = capsys.readouterr().err
    theirs.init_callback(model)
    theirs.on_training_start({}, {})
    theirs.on_step()
    mean, best = ours.last_mean_reward, "over 5 episodes (new best)"
    assert f"evaluation after 64 timesteps: mean return {mean:.2f} +/- " in printed and best in printed
    names = ["eval/mean_reward", "eval/mean_ep_length", "eval/success_rate", "time/total_timesteps"]
    assert [log.dumps[-2][name] for name in names] == [log.dumps[-1][name] for name in names]
    assert ours.best_mean_reward == theirs.best_mean_reward == ours.last_mean_reward
    with np.load(tmp_path / "ours/evaluations.npz") as saved, np.load(tmp_path / "theirs/evaluations.npz") as expected:
        assert saved.files == expected.files and len(saved.files) == 4
        assert all(np.array_equal(saved[name], expected[name]) for name in expected.files)
    assert (tmp_path / "ours/best_model.zip").exists()


class Reporting(Falling):
    """Reports success where there is some, once that is switched on."""

    reports = False

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {key: value for key, value in info.items() if value and self.reports}


def test_evaluations_may_have_other_numbers_of_successes_and_episodes(tmp_path):
    env = make_vec_env("CartPole-v1", 1, seed=3, wrapper_class=Reporting)
    callback = EvalAfterUpdates(env, 64, n_eval_episodes=2, log_path=str(tmp_path))
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT).venv).learn(64, callback=callback)
    env.env_method("__setattr__", "reports", True)
    callback.n_eval_episodes = 9
    model.learn(64, callback=callback)
    with np.load(tmp_path / "evaluations.npz") as saved:
        results, successes = saved["results"], saved["successes"]
    assert np.isnan(results).sum() == 7 and np.isnan(successes[0]).all()
    assert np.nanmin(successes) == 1 and np.isnan(successes[1]).any()
    assert np.isfinite(read_evaluations(tmp_path)).all()


def test_a_run_without_an_update_has_no_evaluation(tmp_path):
    class Stop(BaseCallback):
        def _on_step(self):
            return False

    model = make_model(EXPERIMENT, make_envs(EXPERIMENT))
    callback = EvalAfterUpdates(make_envs(EXPERIMENT, evaluation=True), 1, log_path=str(tmp_path))
    model.learn(300, callback=[Stop(), callback])
    assert callback.evaluations_timesteps == [] and not (tmp_path / "evaluations.npz").exists()


def test_a_second_call_of_learn_counts_from_zero(tmp_path):
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT))
    callback = EvalAfterUpdates(make_envs(EXPERIMENT, evaluation=True), 100, n_eval_episodes=1, log_path=str(tmp_path))
    model.learn(128, callback=callback).learn(128, callback=callback)
    assert callback.evaluations_timesteps == [128, 128]


def test_evaluation_changes_nothing_of_the_training():
    with_evaluations, _, _ = learn(300, 64)
    without = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(300)
    for one, other in zip(with_evaluations.policy.parameters(), without.policy.parameters(), strict=True):
        th.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_best_model_has_its_own_statistics(tmp_path):
    model, callback, snapshot = learn(256, 64, log_path=str(tmp_path), best_model_save_path=str(tmp_path))
    best = int(np.argmax([np.mean(rewards) for rewards in callback.evaluations_results]))
    saved = read_statistics(tmp_path / "best_model_vecnormalize.zip")
    np.testing.assert_array_equal(saved["obs_rms"].mean, snapshot.means[best])
    assert (tmp_path / "best_model.zip").is_file() and (tmp_path / "evaluations.npz").is_file()


def test_a_callback_after_evaluation_can_stop_training(tmp_path):
    experiment = EXPERIMENT.replace(normalize=None)
    stop = StopTrainingOnRewardThreshold(reward_threshold=0)
    model, _, _ = learn(6400, 64, experiment, callback_on_new_best=stop)
    # It stops at the first step after the evaluation.
    assert model.num_timesteps == 64 + 2


def test_a_callback_of_new_bests_that_returns_nothing_ends_training():
    class Nothing(BaseCallback):
        def _on_step(self):
            pass

    model, _, _ = learn(6400, 64, EXPERIMENT.replace(normalize=None), callback_on_new_best=Nothing())
    assert model.num_timesteps == 64 + 2


@pytest.mark.parametrize("kind", ["id", "bare", "gymnasium", "other order"])
def test_evaluation_environments_are_wrapped_as_in_training(kind, recwarn):
    eval_env = {
        "id": lambda: "CartPole-v1",
        "bare": lambda: gym.make("CartPole-v1"),
        "gymnasium": lambda: gym.make_vec("CartPole-v1", 2),
        "other order": lambda: VecNormalize(VecMonitor(make_vec_env("CartPole-v1", 2))),
    }[kind]()
    callback = EvalAfterUpdates(eval_env, 64, n_eval_episodes=2)
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(128, callback)
    assert callback.evaluations_timesteps == [64, 128]
    assert not [warning for warning in recwarn if "not of the same type" in str(warning.message)]
    # The same policy in the same statistics; a separate environment has other episodes.
    if kind == "other order":
        assert np.array_equal(callback.eval_env.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)


def test_an_unfit_evaluation_environment_is_found_at_once():
    with pytest.raises(ValueError, match="n_eval_episodes=0 must be at least 1"):
        EvalAfterUpdates("CartPole-v1", n_eval_episodes=0)
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT))
    with pytest.raises(ValueError, match="env does not fit the model: observation spaces do not match"):
        model.learn(128, EvalAfterUpdates("Pendulum-v1", 64))
    assert model.num_timesteps == 0


def test_a_model_is_not_saved_without_the_statistics_that_it_needs(tmp_path):
    model, *_ = learn(64, 64)
    model.get_vec_normalize_env().obs_rms.mean[:] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        save_with_statistics(model, tmp_path / "model.zip")
    assert not [*tmp_path.iterdir()]


def test_evaluation_without_masks_gives_a_warning():
    model = PPO_Plus("MlpPolicy", vec(ACTIONS["discrete"], env_class=MaskedEnv), n_steps=8, batch_size=8, device="cpu")
    env = vec(ACTIONS["discrete"], env_class=MaskedEnv)
    for callback in (EvalAfterUpdates(env, 8, n_eval_episodes=1), MaskableEvalCallback(env, eval_freq=8)):
        model.learn(16, callback)
    # The environment raises an error for a forbidden action.
    with pytest.warns(UserWarning, match="predict was called without action_masks"), pytest.raises(AssertionError):
        model.learn(16, EvalCallback(env, eval_freq=8))


def test_evaluating_in_the_environments_of_training_gives_a_warning():
    env = make_vec_env("CartPole-v1")
    model = PPO_Plus("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu")
    with pytest.warns(UserWarning, match="EvalCallback resets the environments that are trained in"):
        model.learn(16, EvalCallback(env, eval_freq=8, n_eval_episodes=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(32, [EvalCallback(make_vec_env("CartPole-v1"), eval_freq=8), EvalAfterUpdates(env, 8)])


@pytest.mark.parametrize("eval_freq", [0, -1])
def test_without_a_frequency_nothing_is_evaluated(eval_freq):
    callback = EvalAfterUpdates("CartPole-v1", eval_freq)
    PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16).learn(32, callback)
    assert callback.n_calls and not callback.evaluations_timesteps
