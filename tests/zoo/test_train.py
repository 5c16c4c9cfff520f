"""Training runs, in process."""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.files import checkpoint
from ppo_plus.files.statistics import read_statistics
from ppo_plus.zoo.enjoy import saved_experiment
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.plot import read_episodes
from ppo_plus.zoo.train import Options, set_up, train

SHORT = load_experiment("CartPole-v1", overrides={"n_timesteps": 512, "n_envs": 2, "n_epochs": 2, "compile": False})


def run(tmp_path, experiment=SHORT, **options):
    made = set_up(experiment, Options(log_folder=str(tmp_path), **{"eval_freq": 256, "eval_episodes": 2, **options}))
    train(made)
    return made


def test_layout_of_the_log_folder(tmp_path, capsys):
    made = run(tmp_path, SHORT.replace(normalize={}), save_freq=256)
    folder = tmp_path / "ppo_plus" / "CartPole-v1_1"
    assert made.folder.path == folder
    models = ["CartPole-v1", "best_model", "rl_model_256_steps", "rl_model_512_steps"]
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        *(f"{model}.zip" for model in models),
        *(f"{model}_vecnormalize.zip" for model in models),
        *(f"{i}.monitor.csv" for i in range(2)),
        "evaluations.npz",
        "learning_curve.png",
        "CartPole-v1/config.yml",
        "CartPole-v1/args.yml",
        "CartPole-v1/command.txt",
        "CartPole-v1/vecnormalize.pkl",
    }
    result, model, curve = capsys.readouterr().out.splitlines()
    assert result.startswith("CartPole-v1: mean return ") and "over 2 episodes after 512 timesteps" in result
    assert str(folder / "CartPole-v1.zip") in model
    assert str(folder / "learning_curve.png") in curve
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps == 512


def test_what_was_asked_for_is_recorded_and_reads_back(tmp_path):
    experiment = SHORT.replace(seed=11, eval_env_kwargs={"sutton_barto_reward": True})
    made = run(tmp_path, experiment)
    assert saved_experiment(made.folder) == experiment
    arguments = yaml.safe_load((made.folder.settings / "args.yml").read_text())
    assert (arguments["seed"], arguments["eval_freq"], arguments["algo"]) == (11, 256, "ppo_plus")


def test_evaluations(tmp_path):
    made = run(tmp_path, eval_episodes=3, n_eval_envs=2)
    with np.load(made.folder.path / "evaluations.npz") as saved:
        assert saved["timesteps"].tolist() == [256, 512]
        assert saved["results"].shape == (2, 3)


def test_environments_stepped_all_at_once_are_evaluated_with_what_they_are_normalized_by(tmp_path):
    made = run(tmp_path, SHORT.replace(vec_env="gymnasium", normalize={}))
    trained, evaluated = made.model.get_vec_normalize_env(), made.eval_env
    np.testing.assert_array_equal(evaluated.obs_rms.mean, trained.obs_rms.mean)
    assert read_episodes(made.folder.path)[0][-1] <= 512


def test_without_evaluations(tmp_path, capsys):
    made = run(tmp_path, eval_freq=-1)
    assert not (made.folder.path / "evaluations.npz").exists()
    assert "training episodes after 512 timesteps" in capsys.readouterr().out


def test_evaluation_is_no_part_of_the_recorded_training(tmp_path):
    timesteps, _ = read_episodes(run(tmp_path).folder.path)
    assert 0 < timesteps[-1] <= 512


def test_same_seed_same_result(tmp_path):
    def returns(seed):
        return read_episodes(run(tmp_path, SHORT.replace(seed=seed)).folder.path)[1].tolist()

    assert returns(3) == returns(3) != returns(4)


def test_options_change_nothing_of_what_is_learned(tmp_path):
    one = run(tmp_path, progress=False, eval_freq=-1)
    other = run(tmp_path, save_freq=64, n_eval_envs=2)
    for a, b in zip(one.model.policy.parameters(), other.model.policy.parameters(), strict=True):
        assert a.equal(b)


def test_normalization_is_saved_and_uses_the_discount_of_the_algorithm(tmp_path):
    experiment = SHORT.replace(normalize={})
    made = run(tmp_path, experiment)
    raw = make_envs(experiment.replace(normalize=None))
    # rl_zoo3 reads the second.
    for loaded in (
        SimpleNamespace(**read_statistics(made.folder.path / "CartPole-v1_vecnormalize.zip")),
        VecNormalize.load(str(made.folder.path / "CartPole-v1" / "vecnormalize.pkl"), raw),
    ):
        assert loaded.gamma == made.model.gamma == 0.98
        assert loaded.obs_rms.count > 500
        assert not np.allclose(loaded.obs_rms.var, 1)


def test_a_saved_model_is_trained_on(tmp_path):
    experiment = SHORT.replace(normalize={})
    first = run(tmp_path, experiment)
    second = set_up(
        experiment.replace(n_timesteps=64),
        Options(log_folder=str(tmp_path), trained_agent=str(first.folder.last_model)),
    )
    for a, b in zip(first.model.policy.parameters(), second.model.policy.parameters(), strict=True):
        assert a.equal(b)
    count = second.model.get_vec_normalize_env().obs_rms.count
    assert count == first.model.get_vec_normalize_env().obs_rms.count
    train(second)
    assert second.model.num_timesteps == 64
    assert second.model.get_vec_normalize_env().obs_rms.count > count


def test_settings_may_name_callbacks(tmp_path):
    stop = "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes"
    made = run(tmp_path, SHORT.with_hyperparams({"callback": [{stop: {"max_episodes": 1}}]}))
    assert 0 < made.model.num_timesteps < 512


@pytest.mark.parametrize("kind", [KeyboardInterrupt, FloatingPointError])
def test_what_was_learned_survives_an_interruption_and_an_error(tmp_path, monkeypatch, kind):
    made = set_up(SHORT, Options(log_folder=str(tmp_path)))

    def fail(*_args, **_kwargs):
        raise kind

    monkeypatch.setattr(made.model, "learn", fail)
    if kind is KeyboardInterrupt:
        train(made)
    else:
        with pytest.raises(kind):
            train(made)
    assert made.folder.last_model.is_file()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, FloatingPointError])
def test_an_interruption_and_an_error_leave_a_checkpoint_of_the_latest_rollout(tmp_path, monkeypatch, kind):
    # The state is taken in each rollout, however long that takes.
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    made = set_up(SHORT.with_hyperparams({"n_steps": 64}), Options(log_folder=str(tmp_path), eval_freq=-1))
    trained = made.model.train

    def fail_later():
        if made.model.num_timesteps > 256:
            raise kind
        trained()

    monkeypatch.setattr(made.model, "train", fail_later)
    with suppress(FloatingPointError):
        train(made)
    found = [checkpoint.read(path)["num_timesteps"] for path in checkpoint.files(made.folder.checkpoints)]
    assert found == [256, 0]


@pytest.mark.parametrize(
    "broken",
    [
        SHORT.replace(env_id="CartPol-v1"),
        SHORT.replace(env_kwargs={"nope": 1}),
        SHORT.replace(eval_env_kwargs={"nope": 1}),
        SHORT.replace(policy="NopePolicy"),
        SHORT.replace(hyperparams={"learning_rate": "lin_x"}),
    ],
)
def test_failed_set_up_leaves_no_folder(tmp_path, broken):
    with pytest.raises(Exception):  # noqa: B017  # each layer below has exceptions of its own
        set_up(broken, Options(log_folder=str(tmp_path)))
    assert list(tmp_path.glob("ppo_plus/*")) == []
