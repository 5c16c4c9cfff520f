"""Training runs, in process."""

from dataclasses import replace

import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.zoo.hyperparams import resolve
from ppo_plus.zoo.plot import read_episodes
from ppo_plus.zoo.train import make_env, new_folder, set_up, train

SHORT = replace(resolve("CartPole-v1"), n_timesteps=512)


def test_leaves_model_curve_and_episodes(tmp_path, capsys):
    run = set_up(SHORT, log_folder=tmp_path)
    train(run)
    assert run.folder == tmp_path / "ppo_plus" / "CartPole-v1_1"
    files = {path.name for path in run.folder.iterdir()}
    assert files == {"model.zip", "learning_curve.png", *(f"{i}.monitor.csv" for i in range(8))}
    result, model, curve = capsys.readouterr().out.splitlines()
    assert result.startswith("CartPole-v1: mean return ") and "over 20 episodes after 512 timesteps" in result
    assert str(run.folder / "model.zip") in model
    assert str(run.folder / "learning_curve.png") in curve
    assert PPO_Plus.load(run.folder / "model.zip").num_timesteps == 512


def test_evaluation_is_no_part_of_the_recorded_training(tmp_path):
    run = set_up(SHORT, log_folder=tmp_path)
    train(run)
    timesteps, _ = read_episodes(run.folder)
    assert 0 < timesteps[-1] <= 512


def test_same_seed_same_result(tmp_path):
    def returns(seed):
        run = set_up(SHORT, seed=seed, log_folder=tmp_path)
        train(run)
        return read_episodes(run.folder)[1].tolist()

    assert returns(3) == returns(3) != returns(4)


def test_normalization_is_saved_and_uses_the_discount_of_the_algorithm(tmp_path):
    experiment = replace(SHORT, normalize={})
    run = set_up(experiment, log_folder=tmp_path)
    train(run)
    raw = make_env(replace(experiment, normalize=None), 0, tmp_path)
    loaded = VecNormalize.load(str(run.folder / "vecnormalize.pkl"), raw)
    assert loaded.gamma == run.model.gamma == 0.98
    assert loaded.obs_rms.count > 500
    assert not np.allclose(loaded.obs_rms.var, 1)


def test_normalize_arguments_reach_the_environment(tmp_path):
    env = make_env(replace(SHORT, normalize={"norm_reward": False, "gamma": 0.5}), 0, tmp_path)
    assert (env.norm_obs, env.norm_reward, env.gamma) == (True, False, 0.5)


def test_policy_kwargs_and_env_kwargs_arrive(tmp_path):
    experiment = replace(SHORT, policy_kwargs={"net_arch": [7]}, env_kwargs={"sutton_barto_reward": True})
    run = set_up(experiment, log_folder=tmp_path)
    assert run.model.policy.action_net.in_features == 7
    assert run.model.get_env().get_attr("unwrapped")[0]._sutton_barto_reward


def test_ctrl_c_keeps_what_was_learned(tmp_path, monkeypatch):
    run = set_up(SHORT, log_folder=tmp_path)

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(run.model, "learn", interrupt)
    train(run)
    assert (run.folder / "model.zip").is_file()


@pytest.mark.parametrize(
    "broken",
    [
        replace(SHORT, env_id="CartPol-v1"),
        replace(SHORT, env_kwargs={"nope": 1}),
        replace(SHORT, policy="NopePolicy"),
        replace(SHORT, hyperparams={"learning_rate": "lin_x"}),
    ],
)
def test_failed_set_up_leaves_no_folder(tmp_path, broken):
    with pytest.raises(Exception):  # noqa: B017  # each layer below has exceptions of its own
        set_up(broken, log_folder=tmp_path)
    assert list(tmp_path.glob("ppo_plus/*")) == []


def test_folders_are_numbered_and_their_names_safe(tmp_path):
    assert new_folder(tmp_path, "Foo-v0").name == "Foo-v0_1"
    assert new_folder(tmp_path, "Foo-v0").name == "Foo-v0_2"
    assert new_folder(tmp_path, "ALE/Pong-v5") == tmp_path / "ALE-Pong-v5_1"
    assert new_folder(tmp_path, "module:Foo-v0") == tmp_path / "module-Foo-v0_1"
