"""Against the real rl_zoo3: the same reading of its files, and PPO_Plus in its scripts.

Importing rl_zoo3 changes Gymnasium's ``TimeLimit``, so it is imported in processes of their own.
"""

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from parametrization import sample

from ppo_plus import PPO_Plus
from ppo_plus.formulas.schedules import make_schedule
from ppo_plus.zoo.experiment import PARTS, load_experiment, make_envs, make_model, parse_settings
from ppo_plus.zoo.hyperparams import builtin_file, read_mapping

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.find_spec("rl_zoo3")
pytestmark = pytest.mark.skipif(SPEC is None, reason="rl_zoo3 is not installed: pip install rl_zoo3 requests")
ZOO_FILES = Path(SPEC.origin).with_name("hyperparams") if SPEC else Path()

#: Where MiniGrid is not installed, a wrapper of that name stands in for its.
MINIGRID = "import gymnasium as gym\nclass FlatObsWrapper(gym.ObservationWrapper): pass\n"


def run(arguments, cwd, path=()):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def minigrid(tmp_path, monkeypatch):
    """A folder in which Python finds a package called minigrid."""
    stand_in = tmp_path / "stand_in"
    if importlib.util.find_spec("minigrid") is None:
        (stand_in / "minigrid").mkdir(parents=True)
        (stand_in / "minigrid" / "__init__.py").touch()
        (stand_in / "minigrid" / "wrappers.py").write_text(MINIGRID)
        monkeypatch.syspath_prepend(stand_in)
    yield [str(stand_in)]
    if stand_in.exists():
        for name in ("minigrid", "minigrid.wrappers"):
            sys.modules.pop(name, None)


@pytest.fixture
def no_import_of_rl_zoo3(monkeypatch):
    """rl_zoo3's wrappers without its package, which changes Gymnasium."""
    source = importlib.util.spec_from_file_location("rl_zoo3.wrappers", ZOO_FILES.parent / "wrappers.py")
    package, wrappers = (importlib.util.module_from_spec(spec) for spec in (SPEC, source))
    monkeypatch.setitem(sys.modules, "rl_zoo3", package)
    monkeypatch.setitem(sys.modules, "rl_zoo3.wrappers", wrappers)
    source.loader.exec_module(wrappers)


@pytest.mark.slow
def test_entries_are_read_as_rl_zoo3_reads_them(tmp_path, minigrid, no_import_of_rl_zoo3):
    out = tmp_path / "entries.pkl"
    algos = ["ppo", "ppo_lstm", "a2c"]
    run([str(Path(__file__).with_name("rl_zoo3_entries.py")), str(out), *algos], tmp_path, minigrid)
    theirs = pickle.loads(out.read_bytes())
    for algo in algos:
        entries = yaml.safe_load((ZOO_FILES / f"{algo}.yml").read_bytes())
        assert entries.keys() == theirs[algo].keys() and len(entries) >= 15
        for name, settings in entries.items():
            assert comparable(parse_settings(name, settings)) == theirs[algo][name], (algo, name)


def comparable(experiment):
    """An experiment in the form of rl_zoo3_entries.py: schedules as values, classes as names, γ in ``normalize``."""
    plain = dict(vars(experiment))
    for field in ("env_id", "eval_env_kwargs", "deterministic", "seed", "device", "vec_env"):
        del plain[field]
    for field in PARTS:
        plain[field] = [((part.cls.__module__, part.cls.__qualname__), part.kwargs) for part in plain[field]]
    if plain["normalize"] is not None and "gamma" in experiment.hyperparams:
        plain["normalize"] = {**plain["normalize"], "gamma": experiment.hyperparams["gamma"]}
    plain["hyperparams"] = {
        name: [make_schedule(name, value)(p) for p in (1.0, 0.25, 0.0)]
        if name in ("learning_rate", "clip_range", "clip_range_vf")
        else value
        for name, value in plain["hyperparams"].items()
    }
    return plain


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


ENTRIES = [
    (file, name)
    for file in ("ppo.yml", "ppo_lstm.yml")
    if SPEC
    for name in yaml.safe_load((ZOO_FILES / file).read_bytes())
]


@pytest.mark.filterwarnings("ignore:.*is out of date", "ignore:.*swig", "ignore:builtin type", "ignore:.*Box")
@pytest.mark.parametrize(("file", "name"), sample(ENTRIES, 12))
def test_entries_build_and_train(file, name, minigrid, no_import_of_rl_zoo3):
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


#: Importing rl_zoo3 replaces Gymnasium's time limit, for all environments of a process.
WITHOUT_VELOCITIES = """
import gymnasium
import numpy as np
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.zoo.experiment import load_experiment, make_envs

experiment = load_experiment("CartPoleNoVel-v1", None, {"n_envs": 2})
env, other = make_envs(experiment), make_envs(experiment)
env.reset()
for _ in range(30):
    env.step(np.ones(2, dtype=int))
assert set_state(other, get_state(env)) is None
assert np.array_equal(env.step(np.ones(2, dtype=int))[0], other.step(np.ones(2, dtype=int))[0])
for module in (gymnasium.wrappers, gymnasium.wrappers.common):
    assert module.TimeLimit.__module__ == "gymnasium.wrappers.common"
"""


def test_an_environment_without_velocities_needs_no_flag_and_continues_where_it_stopped(tmp_path):
    run(["-c", WITHOUT_VELOCITIES], tmp_path)


def test_a_key_of_another_algorithm_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="Pendulum-v1: unknown key 'use_rms_prop'"):
        load_experiment("Pendulum-v1", ZOO_FILES / "a2c.yml")


@pytest.mark.exhaustive
def test_train_and_enjoy_in_rl_zoo3(tmp_path):
    """With the script in the docs; and rl_zoo3 plays what `ppo-plus` has trained."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    (tmp_path / "my_zoo.py").write_text(re.search(r"```text\n(# my_zoo.py.*?)```", page, re.DOTALL)[1])
    env = ["--algo", "ppo_plus", "--env", "CartPole-v1", "-f", "logs"]
    settings = ["-n", "512", "--eval-freq", "256", "-conf", str(builtin_file()), "-params", "learning_rate:'lin_1e-3'"]
    assert "('n_steps', 32)" in run(["my_zoo.py", "train", *env, *settings], tmp_path)
    folder = tmp_path / "logs" / "ppo_plus" / "CartPole-v1_1"
    assert (folder / "best_model.zip").is_file()
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps == 512
    play = ["my_zoo.py", "enjoy", *env, "--no-render", "-n", "600"]
    assert "Mean reward" in run(play, tmp_path)
    run(["-m", "ppo_plus", "train", *env[2:], "-n", "256", "--no-progress", "-params", "normalize:true"], tmp_path)
    shown = run(play, tmp_path)
    assert "Mean reward" in shown and "Loading running average" in shown
