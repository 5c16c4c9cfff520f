"""Playing and recording."""

import os
import pickle
import sys
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from PIL import Image, ImageSequence
from poison import Evil, poison
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.enjoy import Player, _write_gif, _write_video, enjoy, make_player, record
from ppo_plus.zoo.experiment import Experiment, load_experiment, load_model, make_envs
from ppo_plus.zoo.hyperparams import Loader
from ppo_plus.zoo.runs import RunFolder
from ppo_plus.zoo.train import Options, set_up, train

EXPERIMENT = load_experiment(
    "CartPole-v1",
    overrides={"n_timesteps": 512, "n_envs": 2, "n_steps": 32, "n_epochs": 2, "normalize": True, "compile": False},
    eval_env_kwargs={"sutton_barto_reward": True},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = set_up(EXPERIMENT, Options(log_folder=str(tmp_path_factory.mktemp("logs")), save_freq=256, progress=False))
    train(made)
    return made


def test_player_has_the_runs_model_statistics_and_environments(run):
    player = make_player(run.folder, run.folder.last_model)
    statistics = player.model.get_vec_normalize_env()
    np.testing.assert_array_equal(statistics.obs_rms.mean, run.model.get_vec_normalize_env().obs_rms.mean)
    assert not statistics.training
    assert player.env.get_attr("unwrapped")[0]._sutton_barto_reward
    assert player.deterministic
    assert sum(1 for _ in player.play(7)) == 7


class Watched(VecEnvWrapper):
    """Keeps the observations that it returns and the actions that it gets."""

    def reset(self):
        self.seen, self.actions = [self.venv.reset()], []
        return self.seen[-1]

    def step_async(self, actions):
        self.actions.append(actions)
        super().step_async(actions)

    def step_wait(self):
        result = self.venv.step_wait()
        self.seen.append(result[0])
        return result


def test_a_model_with_memory_remembers_the_steps_before():
    env = Watched(make_vec_env("Pendulum-v1", 2, seed=0))
    kwargs = dict(n_steps=8, batch_size=8, policy_kwargs=dict(lstm_hidden_size=4, ortho_init=False))
    model = PPO_Plus("MlpLstmPolicy", env, seed=0, device="cpu", **kwargs)
    assert sum(1 for _ in Player(model, env, deterministic=True).play(5)) == 5
    state, starts = None, np.ones(2, dtype=bool)
    for obs, actions in zip(env.seen, env.actions, strict=False):
        expected, state = model.predict(obs, state, starts, deterministic=True)
        np.testing.assert_allclose(actions, expected, atol=1e-6)
        starts = np.zeros(2, dtype=bool)
    forgetful, _ = model.predict(env.seen[4], None, starts, deterministic=True)
    assert not np.allclose(env.actions[4], forgetful, atol=1e-4)


def test_each_model_has_its_own_statistics(run):
    models = [make_player(run.folder, run.folder.saved_model(n)).model for n in (256, 512)]
    counts = [model.get_vec_normalize_env().obs_rms.count for model in models]
    assert counts[0] < counts[1]


@pytest.mark.slow
def test_the_same_seed_plays_the_same(run):
    def episodes(**options):
        player = make_player(run.folder, run.folder.last_model, n_envs=2, **options)
        return [info["episode"]["l"] for ended in player.play(300) for info in ended]

    first = episodes(seed=1)
    assert episodes(seed=1) == first != episodes(seed=2)
    assert episodes(seed=1, deterministic=False) != first


def test_enjoy_prints_episodes_and_their_mean(run, capsys):
    enjoy(make_player(run.folder, run.folder.last_model, n_envs=2), 600)
    *episodes, summary = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"episode {i}: return ") for i, line in enumerate(episodes, 1))
    assert f"over {len(episodes)} episodes" in summary


def test_enjoy_without_an_episode(run, capsys):
    enjoy(make_player(run.folder, run.folder.last_model), 1)
    assert capsys.readouterr().out.startswith("no episode ended within 1 steps: play more (-n), or give")


def test_record_gif(run, tmp_path):
    player = make_player(run.folder, run.folder.best_model, env_kwargs={"render_mode": "rgb_array"})
    record(player, 12, tmp_path / "new" / "cartpole.gif")
    with Image.open(tmp_path / "new" / "cartpole.gif") as image:
        assert image.format == "GIF" and image.n_frames > 1
        frames = [(frame.convert("RGB"), frame.info["duration"]) for frame in ImageSequence.Iterator(image)]
    # Frames that show the same are one that lasts longer.
    assert sum(duration for _, duration in frames) == 12 * 20
    assert not np.array_equal(frames[0][0], frames[-1][0])


def test_a_recording_that_is_interrupted_leaves_the_earlier_one(tmp_path):
    def frames():
        yield np.zeros((4, 4, 3), np.uint8)
        raise KeyboardInterrupt

    (tmp_path / "x.gif").write_bytes(b"earlier")
    with pytest.raises(KeyboardInterrupt):
        _write_gif(frames(), tmp_path / "x.gif", 30)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"earlier"]


@pytest.mark.parametrize("size", [(50, 70), (51, 71)])
def test_videos_of_any_size(tmp_path, size, caplog):
    """imageio logs a warning if it scales pictures."""
    imageio = pytest.importorskip("imageio.v2", reason="imageio is not installed")
    pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed")
    path = tmp_path / "video.mp4"
    _write_video(iter(np.zeros((5, *size, 3), np.uint8)), path, 30)
    assert caplog.text == ""
    assert imageio.get_reader(path).get_meta_data()["size"] == (size[1] + size[1] % 2, size[0] + size[0] % 2)


@pytest.mark.parametrize("image", [None, "ascii", np.full((4, 6, 3), 0.5), np.zeros((4, 6), np.uint8)])
def test_an_environment_that_renders_no_picture(tmp_path, image):
    class Drawing(CartPoleEnv):
        def render(self):
            return image

    env = make_vec_env(Drawing, env_kwargs={"render_mode": "rgb_array"})
    with pytest.raises(
        gym.error.UnsupportedMode, match=r"render\(\) returned (.|\n)*: with render_mode='rgb_array', r"
    ):
        record(Player(PPO_Plus("MlpPolicy", env, device="cpu"), env, True), 3, tmp_path / "x.gif")


def write_rl_zoo3_run(folder, **arguments):
    """A run as rl_zoo3 leaves it: SB3's model, one file of statistics, and ordered dictionaries."""
    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32).learn(64)
    settings = folder / "CartPole-v1"
    settings.mkdir(parents=True)
    model.save(folder / "CartPole-v1.zip")
    env.save(str(settings / "vecnormalize.pkl"))
    entry = {"n_envs": 2, "n_timesteps": 64.0, "normalize": True, "policy": "MlpPolicy", "shape": (1, 2)}
    arguments = {"algo": "ppo", "env_kwargs": None, "seed": 3, **arguments}
    (settings / "config.yml").write_text(yaml.dump(OrderedDict(entry)))
    (settings / "args.yml").write_text(yaml.dump(OrderedDict(arguments)))
    return model


def test_plays_a_run_of_rl_zoo3(tmp_path):
    model = write_rl_zoo3_run(tmp_path, env_kwargs={"sutton_barto_reward": True})
    folder = RunFolder(tmp_path, "CartPole-v1")
    player = make_player(folder, folder.last_model)
    loaded = player.model.get_vec_normalize_env()
    np.testing.assert_array_equal(loaded.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    assert player.env.get_attr("unwrapped")[0]._sutton_barto_reward
    assert sum(1 for _ in player.play(3)) == 3


def test_a_model_of_rl_zoo3_continues_with_its_statistics(tmp_path):
    model = write_rl_zoo3_run(tmp_path)
    experiment = Experiment("CartPole-v1", 64)
    with pytest.raises(ValueError, match=r"whose statistics are .*vecnormalize.pkl, but the settings do not normalize"):
        load_model(tmp_path / "CartPole-v1.zip", experiment, make_envs(experiment, 1))
    env = make_envs(experiment.replace(normalize={}), 1)
    loaded = load_model(tmp_path / "CartPole-v1.zip", experiment, env).get_vec_normalize_env()
    np.testing.assert_array_equal(loaded.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)


# --- what is not trusted ---------------------------------------------------------------------------------------------


def enjoy_by_hand(folder, *flags):
    where = ["--env", "CartPole-v1", "-f", str(folder), "--exp-id", "-1"]
    return main(["enjoy", *where, "-n", "5", "--no-render", *flags])


def test_a_malicious_model_runs_no_code_unless_trusted(tmp_path, capsys):
    write_rl_zoo3_run(tmp_path)
    poison(tmp_path / "CartPole-v1.zip", "policy_kwargs", Evil(tmp_path / "ran", os.mkdir))
    with pytest.raises(SystemExit) as ended:
        enjoy_by_hand(tmp_path)
    assert ended.value.code == 2 and not (tmp_path / "ran").exists()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "policy_kwargs (it would call posix:mkdir)" in line and "--trust-model" in line
    statistics = tmp_path / "CartPole-v1" / "vecnormalize.pkl"
    fine = statistics.read_bytes()
    statistics.write_bytes(pickle.dumps(Evil(tmp_path / "ran", os.mkdir)))
    with pytest.raises(SystemExit):
        enjoy_by_hand(tmp_path)
    assert "vecnormalize.pkl" in capsys.readouterr().err and not (tmp_path / "ran").exists()
    statistics.write_bytes(fine)
    with pytest.raises((SystemExit, ValueError, TypeError)):
        enjoy_by_hand(tmp_path, "--trust-model")
    assert (tmp_path / "ran").exists()


def test_playing_does_not_read_the_models_schedules(tmp_path, capsys):
    write_rl_zoo3_run(tmp_path)
    for name in ("learning_rate", "clip_range", "lr_schedule"):
        poison(tmp_path / "CartPole-v1.zip", name, Evil(tmp_path / "ran", os.mkdir))
    enjoy_by_hand(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_settings_of_a_run_import_from_known_packages_only(tmp_path, capsys, monkeypatch):
    write_rl_zoo3_run(tmp_path)
    settings = tmp_path / "CartPole-v1" / "config.yml"
    entry = yaml.load(settings.read_text(), Loader) | {"env_wrapper": "evil_wrappers.Wrapper"}
    settings.write_text(yaml.dump(dict(entry)))
    (tmp_path / "evil_wrappers.py").write_text("import gymnasium\nclass Wrapper(gymnasium.Wrapper): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        enjoy_by_hand(tmp_path)
    assert "evil_wrappers" in capsys.readouterr().err and "evil_wrappers" not in sys.modules
    enjoy_by_hand(tmp_path, "--trust-model")
    assert sys.modules.pop("evil_wrappers")
