"""Folders of runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ppo_plus.zoo.runs import RunFolder, find_folder, new_folder


def test_folders_are_numbered_and_their_names_safe(tmp_path):
    assert new_folder(tmp_path, "Foo-v0").path == tmp_path / "ppo_plus" / "Foo-v0_1"
    assert new_folder(tmp_path, "Foo-v0").path.name == "Foo-v0_2"
    assert new_folder(tmp_path, "ALE/Pong-v5").path.name == "ALE-Pong-v5_1"
    assert new_folder(tmp_path, "module:Foo-v0").path.name == "module-Foo-v0_1"
    for name in ("Foo-v0_7", "Foo-v0_x", "Foo-v0_more_9"):
        (tmp_path / "ppo_plus" / name).mkdir()
    assert new_folder(tmp_path, "Foo-v0").path.name == "Foo-v0_8"


def test_runs_that_start_at_once_get_separate_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(tmp_path, "Foo-v0").path, range(40)))
    assert len(set(folders)) == 40


def test_find(tmp_path):
    for _ in range(12):
        new_folder(tmp_path, "Foo-v0")
    with pytest.raises(FileNotFoundError, match="no run 77 of Foo-v0 .*: choose --exp-id from 1, 2, 3, 4"):
        find_folder(tmp_path, "Foo-v0", 77)
    assert find_folder(tmp_path, "Foo-v0").path.name == "Foo-v0_12"
    assert find_folder(tmp_path, "Foo-v0", 1).path.name == "Foo-v0_1"
    assert find_folder(tmp_path, "Foo-v0", -1).path == tmp_path
    with pytest.raises(FileNotFoundError, match=f"no run of Bar-v0 .* train --env Bar-v0 -f {tmp_path}"):
        find_folder(tmp_path, "Bar-v0")


def test_runs_of_rl_zoo3(tmp_path):
    path = tmp_path / "ppo" / "Foo-v0_4"
    path.mkdir(parents=True)
    assert find_folder(tmp_path, "Foo-v0", algos=("ppo", "ppo_plus")).path == path
    own = new_folder(tmp_path, "Bar-v0").path
    assert find_folder(tmp_path, "Bar-v0", algos=("ppo", "ppo_plus")).path == own


def test_the_folder_of_a_run_is_found_by_itself(tmp_path):
    path = new_folder(tmp_path, "Foo-v0").path
    (path / "Foo-v0").mkdir()
    (path / "Foo-v0" / "args.yml").touch()
    assert find_folder(path, "Foo-v0").path == path
    for other in (("Bar-v0",), ("Foo-v0", 1)):
        with pytest.raises(FileNotFoundError):
            find_folder(path, *other)


def test_models(tmp_path):
    folder = RunFolder(tmp_path, "ALE/Pong-v5")
    assert folder.last_model == tmp_path / "ALE-Pong-v5.zip"
    assert folder.best_model == tmp_path / "best_model.zip"
    with pytest.raises(FileNotFoundError, match="no models of earlier timesteps: train with --save-freq"):
        folder.saved_model()
    for n in (9, 10, 100):
        (tmp_path / f"rl_model_{n}_steps.zip").touch()
    assert folder.saved_model() == tmp_path / "rl_model_100_steps.zip"
    assert folder.saved_model(10) == tmp_path / "rl_model_10_steps.zip"
    with pytest.raises(FileNotFoundError, match="no model after 20 timesteps: choose from 9, 10, 100"):
        folder.saved_model(20)
