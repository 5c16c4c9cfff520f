"""Models on the Hugging Face Hub: real ``huggingface_hub`` against a stand-in of the hub."""

import pickle
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy
from hub import serving
from parametrization import EXHAUSTIVE, SLOW, sample
from poison import Evil
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.zoo.cli import main

pytest.importorskip("huggingface_hub", reason="needs the extra hub")
REPO = "someone/cartpole"
ARGUMENTS = "train --env CartPole-v1 -n 64 --eval-freq 64 --eval-episodes 2 --seed 3 --no-progress"


NEWER = """import gymnasium as gym
gym.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=3)
"""


def forget():
    """Let the next import of the library read its environment variables."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        variables = {"HOME": str(tmp_path / "cache"), "TOKEN": "hf_right", "HUB_DISABLE_PROGRESS_BARS": "1"}
        for name, value in {"ENDPOINT": server.address, **variables}.items():
            monkeypatch.setenv(f"HF_{name}", value)
        forget()
        yield server
    forget()


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """A function: copy a run, which normalizes or not, into the current folder, as its run of this number."""
    folders = {}
    for normalizes in (True, False):
        folders[normalizes] = tmp_path_factory.mktemp("run")
        settings = ["-f", str(folders[normalizes]), "-params", "n_steps:64", "n_envs:1", f"normalize:{normalizes}"]
        main([*ARGUMENTS.split(), *settings])

    def copy(normalizes=False, number=1):
        shutil.copytree(folders[normalizes] / "ppo_plus/CartPole-v1_1", f"logs/ppo_plus/CartPole-v1_{number}")

    return copy


def observations(env_id="CartPole-v1"):
    return np.array([gym.make(env_id).reset(seed=seed)[0] for seed in range(20)])


def test_pushed_and_loaded(hub, train, capsys):
    train(True)
    run = "logs/ppo_plus/CartPole-v1_1"
    main(["push", run, REPO])
    assert f"{hub.address}/{REPO}/commit/" in capsys.readouterr().out
    files = hub.repositories[REPO]
    mine = {"CartPole-v1.zip", "best_model.zip", "CartPole-v1_vecnormalize.zip", "best_model_vecnormalize.zip"}
    settings = {f"CartPole-v1/{name}" for name in ("args.yml", "config.yml", "command.txt")}
    shown = {"README.md", "model.json", "model.safetensors", "evaluations.npz", "learning_curve.png"}
    assert files.keys() == mine | settings | shown
    assert (64, 4) in {array.shape for array in safetensors.numpy.load(files["model.safetensors"]).values()}

    from huggingface_hub import ModelCard

    card = ModelCard.load(REPO)
    (result,) = card.data.eval_results
    returns = np.load(f"{run}/evaluations.npz")["results"][-1]
    assert result.metric_value == f"{returns.mean():.2f} +/- {returns.std():.2f}"
    assert (result.dataset_name, result.metric_type) == ("CartPole-v1", "mean_reward")
    assert card.data.library_name == "ppo_plus" and "normalize: true" in card.text and "torch" in card.text
    assert files["CartPole-v1/command.txt"].decode().strip() in card.text

    loaded = PPO_Plus.from_hub(REPO, device="cpu")
    env = VecNormalize.load(f"{run}/CartPole-v1/vecnormalize.pkl", DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    there, _ = PPO_Plus.load(f"{run}/CartPole-v1.zip", device="cpu").predict(
        env.normalize_obs(observations()), deterministic=True
    )
    assert loaded.predict(observations(), deterministic=True)[0].tolist() == there.tolist()
    main(["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "60"])
    here = capsys.readouterr().out
    main(["enjoy", "--repo", REPO, "--no-render", "-n", "60"])
    assert capsys.readouterr().out == here and "episode 1: return" in here
    main(["enjoy", "--repo", REPO, "--no-render", "-n", "9", "--load-best"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        best = PPO_Plus.from_hub(REPO, "CartPole-v1", "best_model.zip", device="cpu")
    assert best.learn(64).num_timesteps == 64


@pytest.mark.parametrize("normalizes", [True, False])
def test_a_model_is_pushed_in_python(hub, normalizes):
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    env = VecNormalize(env) if normalizes else env
    model = PPO_Plus("MlpPolicy", env, n_steps=64, learning_rate=1e-3, tensorboard_log="logs", device="cpu").learn(64)
    assert model.push_to_hub(REPO, "CartPole-v1", n_eval_episodes=2).startswith(f"{hub.address}/{REPO}/commit/")
    files = hub.repositories[REPO]
    card = files["README.md"].decode()
    assert "learning_rate: 0.001\nn_steps: 64\n```" in card and "over 2 episodes, after 64 timesteps" in card
    assert "type: mean_reward" in card
    assert ("CartPole-v1_vecnormalize.zip" in files) == normalizes
    loaded = PPO_Plus.from_hub(REPO, device="cpu")
    seen = env.normalize_obs(observations()) if normalizes else observations()
    expected = model.predict(seen, deterministic=True)[0]
    assert loaded.predict(observations(), deterministic=True)[0].tolist() == expected.tolist()
    loaded.push_to_hub(REPO, "CartPole-v1")
    assert "mean_reward" not in hub.repositories[REPO]["README.md"].decode()


@pytest.mark.slow
def test_another_push_replaces_all_files_of_the_first(hub, train):
    train(True)
    main(["push", "logs/ppo_plus/CartPole-v1_1", REPO])
    hub.repositories[REPO]["notes.md"] = b"mine"
    main(["enjoy", "--repo", REPO, "--no-render", "-n", "9"])
    train(number=2)
    main(["record", "--env", "CartPole-v1", "-n", "3"])
    Path("runs").mkdir()
    Path("runs", "events.out.tfevents").write_bytes(b"curves")
    main(["push", "logs/ppo_plus/CartPole-v1_2", REPO, "-tb", "runs"])
    files = hub.repositories[REPO]
    assert files["runs/events.out.tfevents"] == b"curves" and "CartPole-v1.zip" in files
    assert not any("vecnormalize" in name for name in files) and "notes.md" not in files
    assert files["CartPole-v1.gif"][:3] == b"GIF" and b"![Episodes](CartPole-v1.gif)" in files["README.md"]
    main(["record", "--repo", REPO, "-n", "3"])
    assert Path("CartPole-v1.gif").is_file()
    assert PPO_Plus.from_hub(REPO, "CartPole-v1", n_steps=32, batch_size=32).learn(32).n_steps == 32


def test_a_file_that_is_missing_here_is_named_before_the_hub_is_asked(hub, train, check_one_line_error):
    train()
    Path("logs/ppo_plus/CartPole-v1_1/CartPole-v1/command.txt").unlink()
    check_one_line_error(["push", "logs/ppo_plus/CartPole-v1_1", REPO], "command.txt")
    check_one_line_error(["push", "logs/ppo_plus/CartPole-v1_1", REPO, "-tb", "none"], "-tb none: there is no such")


def from_sb3(repository, normalize=False, name="ppo-CartPole-v1"):
    """Files as rl_zoo3 uploads them: a model of SB3, its statistics, and the settings."""
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    env = VecNormalize(env) if normalize else env
    model = PPO("MlpPolicy", env, n_steps=64, n_epochs=1, seed=0, learning_rate=lambda left: 1e-3 * left).learn(64)
    model.save(name)
    with zipfile.ZipFile("train_eval_metrics.zip", "w") as archive:
        archive.writestr("evaluations.npz", b"")
    repository["train_eval_metrics.zip"] = open("train_eval_metrics.zip", "rb").read()
    repository[f"{name}.zip"] = open(f"{name}.zip", "rb").read()
    repository["args.yml"] = (
        b"!!python/object/apply:collections.OrderedDict\n- - - algo\n    - ppo\n  - - env\n    - CartPole-v1\n"
    )
    pairs = "- - - policy\n    - MlpPolicy\n  - - n_timesteps\n    - 64\n"
    pairs += "  - - normalize\n    - true\n" if normalize else ""
    repository["config.yml"] = f"!!python/object/apply:collections.OrderedDict\n{pairs}".encode()
    if normalize:
        env.save("vec_normalize.pkl")
        repository["vec_normalize.pkl"] = open("vec_normalize.pkl", "rb").read()
    return model, env


@pytest.mark.parametrize("normalize", [pytest.param(True, marks=SLOW), pytest.param(False, marks=EXHAUSTIVE)])
def test_models_of_sb3_and_rl_zoo3_are_read(hub, normalize, capsys):
    model, env = from_sb3(hub.repositories.setdefault("sb3/ppo-CartPole-v1", {}), normalize)
    Path("newer.py").write_text(NEWER)
    loaded = PPO_Plus.from_hub("sb3/ppo-CartPole-v1", device="cpu")
    obs = observations()
    expected, _ = model.predict(env.normalize_obs(obs) if normalize else obs, deterministic=True)
    assert loaded.predict(obs, deterministic=True)[0].tolist() == expected.tolist()
    main("enjoy --repo sb3/ppo-CartPole-v1 --no-render -n 600".split())
    assert "mean return" in capsys.readouterr().out
    main("enjoy --repo sb3/ppo-CartPole-v1 --no-render -n 600 --env Mine-v0 --gym-packages newer".split())
    assert "length 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", sample(["ppo-CartPole-v1_vecnormalize.pkl", "vecnormalize.pkl", "CartPole-v1/vecnormalize.pkl"], 3, SLOW)
)
def test_statistics_are_found_under_other_names_and_missed_aloud(hub, name, recwarn, capsys):
    repository = hub.repositories.setdefault(REPO, {})
    model, env = from_sb3(repository, normalize=True)
    statistics = repository.pop("vec_normalize.pkl")
    expected, _ = model.predict(env.normalize_obs(observations()), deterministic=True)
    # Another program has downloaded the model alone.
    with pytest.warns(UserWarning, match=f"repo='{REPO}' has no statistics of ppo-CartPole-v1.zip, which may have"):
        PPO_Plus.from_hub(REPO)
    repository[name] = statistics
    recwarn.clear()
    loaded = PPO_Plus.from_hub(REPO, device="cpu")
    assert not recwarn
    assert loaded.predict(observations(), deterministic=True)[0].tolist() == expected.tolist()
    main(["enjoy", "--repo", REPO, "--no-render", "-n", "600"])
    assert "mean return" in capsys.readouterr().out


def test_a_model_in_a_folder_is_named_with_it(hub):
    repository = hub.repositories.setdefault(REPO, {})
    model, env = from_sb3(repository, normalize=True)
    for name in [*repository]:
        repository[f"models/1/{name}" if name.endswith(".zip") else name] = repository.pop(name)
    with pytest.raises(ValueError, match=r"has the files \['models/1/ppo-CartPole-v1.zip'\].* filename="):
        PPO_Plus.from_hub(REPO)
    loaded = PPO_Plus.from_hub(REPO, filename="models/1/ppo-CartPole-v1.zip", device="cpu")
    expected, _ = model.predict(env.normalize_obs(observations()), deterministic=True)
    assert loaded.predict(observations(), deterministic=True)[0].tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("filename", ["../x.zip", "/x.zip"])
def test_a_filename_is_that_of_a_file(hub, filename):
    from_sb3(hub.repositories.setdefault(REPO, {}))
    with pytest.raises(ValueError, match=r"has the files \['ppo-CartPole-v1.zip'\]: load one"):
        PPO_Plus.from_hub(REPO, filename=filename)


def test_pickles_are_not_run(hub, tmp_path, check_one_line_error):
    repository = hub.repositories.setdefault(REPO, {})
    from_sb3(repository, normalize=True)
    repository["vec_normalize.pkl"] = pickle.dumps(Evil(tmp_path / "ran"))
    with pytest.raises(ValueError, match=r"vec_normalize.pkl is not a valid VecNormalize"):
        PPO_Plus.from_hub(REPO)
    check_one_line_error(["enjoy", "--repo", REPO, "--no-render"], "is not a valid VecNormalize")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_several_models_are_named(hub):
    repository = hub.repositories.setdefault(REPO, {})
    from_sb3(repository)
    from_sb3(repository, name="other")
    with pytest.raises(ValueError, match=r"has the files \['other.zip', 'ppo-CartPole-v1.zip'\].* filename="):
        PPO_Plus.from_hub(REPO)
    assert PPO_Plus.from_hub(REPO, filename="other.zip").num_timesteps == 64
    for name in ("rl_model_64_steps.zip", "checkpoints/64.zip"):
        repository[name] = repository["other.zip"]
        assert PPO_Plus.from_hub(REPO, filename=name).num_timesteps == 64
        del repository[name]
    with pytest.raises(ValueError, match=r"has the files \['other.zip', 'ppo-CartPole-v1.zip'\]: "):
        PPO_Plus.from_hub(REPO, filename="best.zip")
    # Other files that were downloaded before, which are in the same cache, are not the model.
    for name in ("rl_model_64_steps.zip", "train_eval_metrics.zip"):
        repository[name] = repository["other.zip"]
        PPO_Plus.from_hub(REPO, filename=name)
    del repository["other.zip"]
    assert PPO_Plus.from_hub(REPO).num_timesteps == 64


def test_mistakes_are_one_line(hub, train, check_one_line_error, monkeypatch):
    train()
    run = "logs/ppo_plus/CartPole-v1_1"
    check_one_line_error(["enjoy", "--repo", "../x/y"], "Repo id must")
    check_one_line_error(["enjoy"], "required: --env ID, or --repo USER/NAME")
    check_one_line_error(["push", ".", REPO], "RUN .: not the folder of a run")
    hub.repositories[REPO] = {"ppo.zip": b""}
    check_one_line_error(["enjoy", "--repo", "no/body"], "check the name and the network")
    check_one_line_error(
        ["record", "--repo", REPO],
        f"not the folder of a run; load the model in Python, with PPO_Plus.from_hub('{REPO}')",
    )
    Path(run, "README.md").mkdir()
    check_one_line_error(["push", run, REPO], "error: [Errno ")
    Path(run, "README.md").rmdir()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    check_one_line_error(["push", run, REPO], "log in: hf auth login")
    PPO("MlpPolicy", "CartPole-v1").save(f"{run}/CartPole-v1")
    check_one_line_error(["push", run, REPO], "not a model of PPO_Plus: call PPO_Plus.load and push_to_hub")


def test_without_a_network_files_that_were_downloaded_are_read(hub, train, check_one_line_error, monkeypatch):
    train()
    run = "logs/ppo_plus/CartPole-v1_1"
    main(["push", run, REPO])
    assert PPO_Plus.from_hub(REPO).num_timesteps == 64
    hub.shutdown()
    hub.server_close()
    forget()
    assert PPO_Plus.from_hub(REPO).num_timesteps == 64
    check_one_line_error(["push", run, REPO], "check the name and the network")
    check_one_line_error(["enjoy", "--repo", "some/other"], "check the name and the network")


def test_the_library_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "ppo_plus\[hub\]"'):
        PPO_Plus.from_hub(REPO)
