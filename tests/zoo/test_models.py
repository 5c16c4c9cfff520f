"""Models and their normalization statistics."""

import pickle

import numpy as np
import pytest
import torch as th

from ppo_plus.process import torch_threads
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.models import (
    load_model,
    load_statistics,
    make_callbacks,
    make_model,
    save_model,
    statistics_path,
)

EXPERIMENT = load_experiment("CartPole-v1", seed=5, overrides={"n_envs": 2, "normalize": True, "compile": False})


def test_hyperparameters_arrive():
    experiment = EXPERIMENT.with_hyperparams(
        {"policy_kwargs": {"net_arch": [7]}, "n_steps": 16, "learning_rate": "cos_1e-2"}
    )
    model = make_model(experiment, make_envs(experiment), verbose=0)
    assert model.policy.action_net.in_features == 7
    assert (model.n_steps, model.gamma, model.seed) == (16, 0.98, 5)
    assert model.learning_rate(0.5) == pytest.approx(0.005)


def test_weights_do_not_depend_on_the_number_of_threads():
    weights = []
    for number in (1, 2):
        with torch_threads(number):
            model = make_model(EXPERIMENT, make_envs(EXPERIMENT))
            assert th.get_num_threads() == number
        weights.append(th.nn.utils.parameters_to_vector(model.policy.parameters()))
    assert th.equal(*weights)


def test_the_experiment_is_left_alone():
    experiment = EXPERIMENT.with_hyperparams({"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}})
    before = repr(experiment)
    make_model(experiment, make_envs(experiment)).learn(64)
    assert repr(experiment) == before


def test_a_model_goes_with_its_statistics(tmp_path):
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(64)
    path = tmp_path / "best_model.zip"
    save_model(model, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best_model.zip", "best_model_vecnormalize.zip"]
    loaded = load_model(path, EXPERIMENT.with_hyperparams({"gamma": 0.5}), make_envs(EXPERIMENT))
    statistics = loaded.get_vec_normalize_env()
    np.testing.assert_array_equal(statistics.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    assert statistics.ret_rms.count == model.get_vec_normalize_env().ret_rms.count
    assert statistics.training and loaded.gamma == 0.5
    obs = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert loaded.learn(64).num_timesteps == 64
    raw = EXPERIMENT.replace(normalize=None)
    with pytest.raises(ValueError, match="best_model.zip was trained in a VecNormalize.* add -params normalize:True"):
        load_model(path, raw, make_envs(raw))


def test_without_normalization_there_are_no_statistics(tmp_path):
    experiment = EXPERIMENT.replace(normalize=None)
    model = make_model(experiment, make_envs(experiment))
    save_model(model, tmp_path / "m.zip")
    assert [file.name for file in tmp_path.iterdir()] == ["m.zip"]
    load_statistics(tmp_path / "m.zip", model.get_env())


def test_missing_statistics_are_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="m_vecnormalize.zip"):
        load_statistics(tmp_path / "m.zip", make_envs(EXPERIMENT))


def test_path_of_statistics(tmp_path):
    assert statistics_path(tmp_path / "rl_model_10_steps.zip") == tmp_path / "rl_model_10_steps_vecnormalize.zip"
    assert statistics_path(tmp_path / "a.b") == tmp_path / "a.b_vecnormalize.zip"


def test_callbacks_are_new_instances():
    name = "stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes"
    experiment = EXPERIMENT.with_hyperparams({"callback": [{name: {"max_episodes": 3}}]})
    (one,), (other,) = make_callbacks(experiment), make_callbacks(experiment)
    assert one is not other and one.max_episodes == 3
    assert make_callbacks(EXPERIMENT) == []


def test_statistics_that_are_not_finite_are_errors(tmp_path):
    model = make_model(EXPERIMENT, make_envs(EXPERIMENT)).learn(64)
    path, statistics = tmp_path / "model.zip", model.get_vec_normalize_env()
    statistics.obs_rms.var[1] = np.nan
    with pytest.raises(ValueError, match="statistics of VecNormalize for .*model_vecnormalize.zip are not finite"):
        save_model(model, path)
    statistics.save(str(statistics_path(path)))
    with pytest.raises(ValueError, match=r"statistics of VecNormalize for .*model_vecnormalize\.zip are not finite"):
        load_statistics(path, make_envs(EXPERIMENT))


@pytest.mark.parametrize("contents", [b"", b"no pickle", pickle.dumps(EXPERIMENT.settings())[:20], pickle.dumps([1])])
def test_damaged_statistics_are_called_so(tmp_path, contents):
    path = tmp_path / "model.zip"
    statistics_path(path).write_bytes(contents)
    with pytest.raises(ValueError, match=r"_vecnormalize\.zip is not a valid VecNormalize \(damaged or truncated\?\)"):
        load_statistics(path, make_envs(EXPERIMENT))
