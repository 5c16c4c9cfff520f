"""The files in ``tests/data/golden`` are read as they were written, and training resumes from them."""

import json
import re
import shutil
import zipfile

import golden
import numpy as np
import pytest
import safetensors.torch
from poison import forbid_pickles

import ppo_plus
from ppo_plus import PPO_Plus
from ppo_plus.saving.format import names
from ppo_plus.saving.format.container import ARRAYS, DESCRIPTION, VERSION
from ppo_plus.saving.model import STATE
from ppo_plus.saving.statistics import read_statistics

FILES = sorted(golden.FOLDER.glob("*.zip"))
#: What the files must give.
EXPECTED = json.loads((golden.FOLDER / "expected.json").read_text())


@pytest.fixture(autouse=True)
def no_pickle_and_nothing_registered(monkeypatch):
    golden.make_model("box")  # torch loads modules late, and uses pickles for it
    forbid_pickles(monkeypatch)
    monkeypatch.setattr(names, "_registered", {})


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(DESCRIPTION)), safetensors.torch.load(archive.read(ARRAYS))


def assert_close(found, expected, atol=1e-4):
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-4, atol=atol)


@pytest.mark.parametrize("name", golden.MODELS)
def test_a_model_is_what_was_saved(name, recwarn):
    loaded, expected = golden.load(name, force_reset=False), EXPECTED[name]
    assert golden.digest(loaded) == expected["digest"] and golden.counts(loaded) == expected["counts"]
    assert golden.weights(loaded) == expected["weights"]
    assert_close(golden.predictions(loaded), expected["predictions"], atol=1e-5)
    assert not recwarn.list


@pytest.mark.parametrize("name", golden.MODELS)
def test_a_model_saved_again_is_the_same_file(name, tmp_path):
    golden.load(name, force_reset=False).save(tmp_path / "again.zip")
    (head, arrays), (again, again_arrays) = contents(golden.FOLDER / f"{name}.zip"), contents(tmp_path / "again.zip")
    for each in (again, head):
        del each["value"]["state"]["planned_gradient_steps"]  # a loaded model counts again
    assert again["value"] == head["value"] and again_arrays.keys() == arrays.keys()
    assert all(arrays[key].equal(each) for key, each in again_arrays.items())


@pytest.mark.parametrize("name", golden.MODELS)
def test_a_model_is_trained_on(name):
    first, second = (golden.weights(golden.train_on(golden.load(name))) for _ in range(2))
    assert first == second != EXPECTED[name]["weights"]
    assert_close(first, EXPECTED[name]["trained_on"])


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoint."""
    shutil.copy(golden.FOLDER / EXPECTED["checkpoint"]["file"], tmp_path)
    return tmp_path


def resumed(folder):
    return PPO_Plus.resume(folder, golden.checkpointed_model().get_env(), device="cpu")


def test_a_checkpoint_resumes_as_if_nothing_had_been(folder, recwarn):
    expected = EXPECTED["checkpoint"]
    whole = resumed(folder)
    assert whole.num_timesteps == 128
    _, counter, evaluation, _ = golden.train(whole, folder / "whole")
    cut = resumed(folder)
    golden.train(cut, folder, after=100)
    assert 128 < cut.num_timesteps < golden.TOTAL
    cut = resumed(folder)
    _, resumed_counter, resumed_evaluation, _ = golden.train(cut, folder)
    assert golden.facts(cut) == golden.facts(whole)
    assert resumed_counter.total == counter.total
    assert resumed_evaluation.evaluations_results == evaluation.evaluations_results
    assert resumed_evaluation.best_mean_reward == evaluation.best_mean_reward
    assert golden.counts(whole)[:4] == expected["counts"][:4]
    assert_close(golden.counts(whole)[4], expected["counts"][4], atol=1e-3)
    assert_close(golden.weights(whole), expected["weights"])
    assert counter.total == pytest.approx(expected["total"], abs=1e-2)
    assert evaluation.last_mean_reward == pytest.approx(expected["evaluations"], abs=1e-2)
    for name, each in golden.moments(vars(whole.get_env())).items():
        for found, wanted in zip(each, expected["statistics"][name], strict=True):
            assert_close(found, wanted, atol=1e-3)
    assert not [each for each in recwarn if "new episodes" in str(each.message)]


def test_statistics_are_what_was_saved():
    found = read_statistics(golden.FOLDER / "statistics.zip")
    assert golden.moments(found) == EXPECTED["statistics"]
    assert (found["gamma"], found["clip_obs"], found["norm_obs"]) == (0.99, 10.0, True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_do_not_name_modules_of_the_package(path):
    head, arrays = contents(path)
    assert head["version"] == VERSION
    text = json.dumps([head["value"], list(arrays)])
    assert not re.findall(r"ppo_plus\.[\w.]+", text)
    assert not re.findall(r"torch\.nn\.modules|gymnasium\.spaces\.\w+:", text)


@pytest.mark.parametrize("name", [name for name in golden.MODELS if name != "custom"])
def test_plain_models_are_saved_by_schema_names_only(name):
    value = contents(golden.FOLDER / f"{name}.zip")[0]["value"]
    assert value["attributes"] == {} and value["missing"] == {} and value["state"].keys() == STATE.keys()


def test_every_public_class_is_written_by_its_public_name():
    classes = {name: getattr(ppo_plus, name) for name in ppo_plus.MODULES if isinstance(getattr(ppo_plus, name), type)}
    assert [name for name, each in classes.items() if not names.name_of(each).startswith("ppo_plus:")] == []
    assert all(names.name_of(names._look_up(f"ppo_plus:{name}")) == f"ppo_plus:{name}" for name in names.ALIASES)
