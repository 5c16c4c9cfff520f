"""Against the real rl_zoo3: its files, and PPO_Plus in its scripts."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml
from command_line import ROOT
from command_line import run as run_python
from parametrization import sample

from ppo_plus import PPO_Plus
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.zoo.experiment import load_experiment, make_envs, make_model
from ppo_plus.zoo.hyperparams import builtin_file, read_mapping

SPEC = importlib.util.find_spec("rl_zoo3")
pytestmark = pytest.mark.skipif(SPEC is None, reason="rl_zoo3 is not installed: pip install rl_zoo3 requests")
ZOO_FILES = Path(SPEC.origin).with_name("hyperparams") if SPEC else Path()


def run(arguments, cwd):
    done = run_python(arguments, cwd, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: What differs on purpose: rl_zoo3's wrappers, and minibatches larger than a rollout.
OTHER = {"CarRacing": "env_wrapper", "InvertedPendulum": "batch_size", "InvertedDoublePendulum": "batch_size"}


def test_the_variant_lstm_is_rl_zoo3s():
    theirs = yaml.safe_load((ZOO_FILES / "ppo_lstm.yml").read_bytes())
    ours = {
        name.removesuffix("/lstm"): entry for name, entry in read_mapping(builtin_file()).items() if "/lstm" in name
    }
    ours = {name.partition("-")[0]: entry for name, entry in ours.items()}
    # PyBullet's tasks are not among those of the settings file.
    wanted = {name.partition("-")[0]: e for name, e in theirs.items() if name != "default" and "Bullet" not in name}
    assert ours.keys() == wanted.keys() and len(ours) == 21

    def plain(name, entry):
        text = {key: "".join(str(value).split()).replace(",)", ")") for key, value in entry.items()}
        return {key: value for key, value in text.items() if key != OTHER.get(name)}

    for name in ours:
        assert plain(name, ours[name]) == plain(name, wanted[name]), name


FILES = ("ppo.yml", "ppo_lstm.yml") if SPEC else ()
ENTRIES = [(file, name) for file in FILES for name in yaml.safe_load((ZOO_FILES / file).read_bytes())]


@pytest.mark.filterwarnings("ignore:.*is out of date", "ignore:.*swig", "ignore:builtin type", "ignore:.*Box")
@pytest.mark.parametrize(("file", "name"), sample(ENTRIES, 12))
def test_entries_build_and_train(file, name):
    env_id = "ALE/Pong-v5" if name == "atari" else name
    experiment = load_experiment(env_id, ZOO_FILES / file, {"n_epochs": 1, "compile": False})
    if experiment.env_id not in gym.registry or env_id.endswith("-v2"):
        # The environment needs a package that is not there: its hyperparameters are tried on one that is.
        experiment = replace(
            experiment, env_id="Pendulum-v1" if experiment.hyperparams.get("use_sde") else "CartPole-v1"
        )
        experiment = replace(experiment, env_wrapper=())
    # One environment and one short rollout tell whether it builds and trains.
    experiment = experiment.with_hyperparams(
        {"n_envs": 1, "n_steps": min(64, experiment.hyperparams.get("n_steps", 64))}
    )
    env = make_envs(experiment)
    model = make_model(experiment, env).learn(1)
    assert model._n_updates == 1
    env.close()


def test_an_environment_without_velocities_needs_no_flag_and_continues_where_it_stopped():
    """Importing rl_zoo3 replaces Gymnasium's time limit, for all environments of a process."""
    experiment = load_experiment("CartPoleNoVel-v1", None, {"n_envs": 2})
    env, other = make_envs(experiment), make_envs(experiment)
    env.reset()
    for _ in range(30):
        env.step(np.ones(2, dtype=int))
    assert set_state(other, get_state(env)) is None
    assert np.array_equal(env.step(np.ones(2, dtype=int))[0], other.step(np.ones(2, dtype=int))[0])
    for module in (gym.wrappers, gym.wrappers.common):
        assert module.TimeLimit.__module__ == "gymnasium.wrappers.common"


def test_a_key_of_another_algorithm_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="Pendulum-v1: unknown key 'use_rms_prop'"):
        load_experiment("Pendulum-v1", ZOO_FILES / "a2c.yml")


@pytest.mark.exhaustive
def test_train_and_enjoy_in_rl_zoo3(tmp_path):
    """With the script in the docs; and rl_zoo3 plays what `ppo-plus` has trained."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    (tmp_path / "my_zoo.py").write_text(re.search(r"```text\n(# my_zoo.py.*?)```", page, re.DOTALL)[1])
    env = ["--algo", "ppo_plus", "--env", "CartPole-v1", "-f", "logs"]
    settings = [*"-n 2048 --eval-freq 1024 -params learning_rate:'lin_1e-3' -conf".split(), str(builtin_file())]
    assert "('n_steps', 256)" in run(["my_zoo.py", "train", *env, *settings], tmp_path)
    folder = tmp_path / "logs" / "ppo_plus" / "CartPole-v1_1"
    assert (folder / "best_model.zip").is_file()
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps == 2048
    play = ["my_zoo.py", "enjoy", *env, "--no-render", "-n", "600"]
    assert "Mean reward" in run(play, tmp_path)
    run(["-m", "ppo_plus", "train", *env[2:], "-n", "256", "--no-progress", "-params", "normalize:true"], tmp_path)
    shown = run(play, tmp_path)
    assert "Mean reward" in shown and "Loading running average" in shown
