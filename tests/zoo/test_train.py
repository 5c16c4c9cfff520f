"""Training runs and resumed runs, in this process and as commands."""

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import Cost, PPO_Plus
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.statistics import read_statistics
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.experiment import Part, load_experiment, make_envs, saved_experiment
from ppo_plus.zoo.results import read_episodes
from ppo_plus.zoo.runs import Options, RunFolder, open_run
from ppo_plus.zoo.train import _summary, _write_settings, resume, set_up, train

SHORT = load_experiment(
    "CartPole-v1", overrides={"n_timesteps": 512, "n_envs": 2, "n_steps": 32, "n_epochs": 2, "compile": False}
)


def run(tmp_path, experiment=SHORT, **options):
    made = set_up(experiment, Options(log_folder=str(tmp_path), **{"eval_freq": 256, "eval_episodes": 2, **options}))
    train(made)
    return made


NORMALIZING = SHORT.replace(seed=11, normalize={}, eval_env_kwargs={"sutton_barto_reward": True})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, and what it has printed."""
    with redirect_stdout(StringIO()) as printed:
        made = run(tmp_path_factory.mktemp("logs"), NORMALIZING, save_freq=256, eval_episodes=3, n_eval_envs=2)
    return made, printed.getvalue()


def test_layout_of_the_log_folder(finished):
    made, printed = finished
    folder = made.folder.path
    assert folder.parts[-2:] == ("ppo_plus", "CartPole-v1_1")
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
    result, *_, model, curve = printed.splitlines()
    assert (
        result.startswith("CartPole-v1: mean return ") and "over 20 evaluation episodes after 512 timesteps" in result
    )
    assert str(folder / "CartPole-v1.zip") in model
    assert str(folder / "learning_curve.png") in curve
    assert PPO_Plus.load(folder / "CartPole-v1.zip").num_timesteps == 512
    # Evaluations are not recorded as training.
    assert 0 < read_episodes(folder)[0][-1] <= 512
    with np.load(folder / "evaluations.npz") as saved:
        assert saved["timesteps"].tolist() == [256, 512] and saved["results"].shape == (2, 3)


def test_arguments_are_recorded_and_read_back(finished):
    made, _ = finished
    assert saved_experiment(made.folder) == NORMALIZING
    arguments = yaml.safe_load((made.folder.settings / "args.yml").read_text())
    assert (arguments["seed"], arguments["eval_freq"], arguments["algo"]) == (11, 256, "ppo_plus")
    with_tuple, again = NORMALIZING.replace(eval_env_kwargs={"size": (8, 8)}), RunFolder(made.folder.path, "A-v0")
    _write_settings(with_tuple, Options(), again)
    assert saved_experiment(again).eval_env_kwargs == {"size": (8, 8)}


@pytest.mark.parametrize(
    ("results", "last", "said"),
    [
        ([[9.0, 9.0], [8.0, 10.0], [5.0, 5.0]], [5.0, 5.0, 8.0], "9.00 over 2 evaluation episodes after 100 timesteps"),
        ([[1.0, 1.0], [9.0, 9.0]], [9.0, 9.0, 0.0], ""),
        ([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0, 1.0], ""),
    ],
)
def test_a_best_model_that_is_better_than_the_last_one_is_named(finished, monkeypatch, results, last, said):
    """With both figures, and the option that plays it; the last model's own evaluation does not make it another one."""
    evaluations = finished[0].evaluations[0]
    values = {"evaluations_results": results, "evaluations_timesteps": [100, 200, 300], "returns": last}
    for name, value in values.items():
        monkeypatch.setattr(evaluations, name, value)
    expected = f"\nthe best model was better: mean return {said}; --load-best plays it" if said else ""
    assert evaluations.better() == expected
    assert (summary := _summary(finished[0], 0, 1.0)).endswith(expected)
    assert summary.startswith(f"CartPole-v1: mean return {np.mean(last):.2f} +/- ")
    # With a limit, a higher return may have cost more than is allowed.
    monkeypatch.setattr(evaluations, "model", SimpleNamespace(streams=[Cost("cost", limit=1.0)]))
    assert evaluations.better() == ""


@pytest.mark.slow
def test_options_do_not_change_the_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ppo_plus.zoo.callbacks.LAST_EPISODES", 0)
    one = run(tmp_path, progress=False, eval_freq=-1)
    assert not (one.folder.path / "evaluations.npz").exists()
    assert "training episodes after 512 timesteps" in capsys.readouterr().out
    other = run(tmp_path, save_freq=64, n_eval_envs=2)
    for a, b in zip(one.model.policy.parameters(), other.model.policy.parameters(), strict=True):
        assert a.equal(b)


def test_normalization_is_saved_with_the_algorithms_discount(finished):
    made, _ = finished
    raw = make_envs(SHORT)
    # rl_zoo3 reads the second.
    for loaded in (
        SimpleNamespace(**read_statistics(made.folder.path / "CartPole-v1_vecnormalize.zip")),
        VecNormalize.load(str(made.folder.path / "CartPole-v1" / "vecnormalize.pkl"), raw),
    ):
        assert loaded.gamma == made.model.gamma == 0.995
        assert loaded.obs_rms.count > 500
        assert not np.allclose(loaded.obs_rms.var, 1)


@pytest.mark.slow
def test_a_saved_model_is_trained_further(tmp_path, finished):
    first, _ = finished
    second = set_up(
        NORMALIZING.replace(n_timesteps=64),
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
def test_interruptions_and_errors_leave_a_model_and_the_latest_checkpoint(tmp_path, monkeypatch, kind):
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
    steps = [checkpoint.read(path)[0]["num_timesteps"] for path in checkpoint.files(made.folder.checkpoints)]
    assert steps == [256, 0] and made.folder.last_model.is_file()


BROKEN = {"env_kwargs": {"nope": 1}, "eval_env_kwargs": {"nope": 1}, "hyperparams": {"learning_rate": "lin_x"}}


@pytest.mark.parametrize("broken", BROKEN)
def test_failed_set_up_leaves_no_folder(tmp_path, broken):
    with pytest.raises(Exception):  # noqa: B017  # each layer below has exceptions of its own
        set_up(SHORT.replace(**{broken: BROKEN[broken]}), Options(log_folder=str(tmp_path)))
    assert list(tmp_path.glob("ppo_plus/*")) == []


SETTINGS = {"n_timesteps": 1024, "n_envs": 2, "n_steps": 64, "batch_size": 64, "n_epochs": 2, "compile": False}
NORMALIZED = load_experiment("CartPole-v1", overrides={**SETTINGS, "normalize": True, "use_sde": True}).replace(seed=7)


class Stop(BaseCallback):
    """Interrupts once, after a number of steps of each environment."""

    left = 0

    def _on_step(self):
        Stop.left -= 1
        if Stop.left == 0:
            raise KeyboardInterrupt
        return True


STOPPING = NORMALIZED.replace(callback=(Part("tests.Stop", Stop, {}),))


def options(tmp_path, **changes):
    settings = {"eval_freq": 256, "eval_episodes": 1, "save_freq": 200, "progress": False, "log_folder": str(tmp_path)}
    return Options(**settings | changes)


def episodes(folder):
    """Returns and lengths of the episodes in the file of each environment."""
    files = sorted(folder.path.glob("*.monitor.csv"))
    return [[line.rsplit(",", 1)[0] for line in path.read_text().splitlines()[1:]] for path in files]


def assert_same_results(folder, other):
    model, expected = (PPO_Plus.load(run.last_model).get_parameters() for run in (folder, other))
    for name in expected["policy"]:
        assert th.equal(model["policy"][name], expected["policy"][name])
    assert episodes(folder) == episodes(other) and any(episodes(folder))
    if (other.path / "evaluations.npz").exists():
        with np.load(folder.path / "evaluations.npz") as ours, np.load(other.path / "evaluations.npz") as theirs:
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert {path.name for path in folder.path.iterdir()} == {path.name for path in other.path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("vec_env", ["dummy", pytest.param("subproc", marks=pytest.mark.exhaustive)])
def test_an_interrupted_run_resumes_with_identical_results(vec_env, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", math.inf)
    monkeypatch.setattr("ppo_plus.zoo.callbacks.LAST_EPISODES", 0)
    Stop.left = 0
    whole = set_up(STOPPING.replace(vec_env=vec_env), options(tmp_path / "whole"))
    assert train(whole)
    cut = set_up(STOPPING.replace(vec_env=vec_env), options(tmp_path / "cut", tensorboard_log=str(tmp_path / "tb")))
    for Stop.left in (150, 170):
        assert not train(cut)
        monkeypatch.setattr("ppo_plus.zoo.experiment.import_class", lambda *_: Stop)
        cut = resume(open_run(cut.folder.path), tensorboard_log=str(tmp_path / "tb"))
        assert cut.options == options(tmp_path / "cut", tensorboard_log=str(tmp_path / "tb"))
    assert resume(cut.folder, restart_envs=3) and resume(cut.folder).options.restart_envs == 3
    assert cut.model.num_timesteps == 512
    assert train(cut)
    assert_same_results(cut.folder, whole.folder)


@pytest.mark.slow
def test_a_killed_run_resumes_with_identical_results(tmp_path):
    """With environments in processes, and the other run, which is not killed, in one."""
    options = ["--env", "CartPole-v1", *"-n 1000 --seed 3 --eval-freq 0 --save-freq 200 --no-progress".split()]
    options += "-params n_envs:2 n_steps:128 batch_size:64 compile:False".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    main(["train", *options, "-f", str(tmp_path / "whole")])
    run = tmp_path / "cut" / "ppo_plus" / "CartPole-v1_1"
    command = [sys.executable, "-m", "ppo_plus", "train", *options, "--vec-env", "subproc", "--env-workers", "1"]
    command += ["-f", str(tmp_path / "cut")]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    while not any((run / "checkpoints").glob("*[1-9]*.zip")):  # after the first rollout
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(np.random.default_rng().uniform(0, 0.3))  # at any moment
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    main(["train", "--resume", str(run), "--no-progress"])
    assert_same_results(open_run(run), open_run(tmp_path / "whole" / "ppo_plus" / "CartPole-v1_1"))


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path):
    """One that is finished, and one that has not begun: the message has what to do for both."""
    run = set_up(NORMALIZED.replace(n_timesteps=128), options(tmp_path))
    remedy = f"with -i {run.folder.last_model}; if it had none yet, start it again: {run.folder.command.read_text()}"
    for finished in (False, True):
        assert not finished or train(run)
        with pytest.raises(FileNotFoundError, match="no checkpoint. If the run is finished, ") as raised:
            resume(open_run(run.folder.settings))
        assert str(raised.value).endswith(remedy)


@pytest.mark.slow
def test_progress_of_a_resumed_run_counts_from_its_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint, "SHARE", math.inf)
    Stop.left = 400
    run = set_up(STOPPING, options(tmp_path, progress=True, eval_freq=-1))
    assert not train(run)
    monkeypatch.setattr("ppo_plus.zoo.experiment.import_class", lambda *_: Stop)
    capsys.readouterr()
    assert train(resume(open_run(run.folder.path)))
    shown = capsys.readouterr()
    assert "after 1,024 timesteps, the last 256 in " in shown.out
    beginning, *lines = shown.err.splitlines()
    assert beginning.startswith("CartPole-v1: resuming after 768 of 1,024 timesteps, seed ")
    assert [line.split("%")[0].strip() for line in lines] == ["80", "90", "100"]


def test_a_running_run_cannot_be_resumed(tmp_path):
    run = set_up(NORMALIZED, options(tmp_path))
    checkpoint.write(run.folder.checkpoints, checkpoint.take(run.model))
    with run.folder.locked():
        for start in (resume, lambda _: train(run)):
            with pytest.raises(BlockingIOError, match=f"{run.folder.path}: another process is training this run"):
                start(run.folder)
    assert resume(run.folder).model.num_timesteps == 0
