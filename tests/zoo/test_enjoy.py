"""Watching and recording."""

import numpy as np
import pytest
from PIL import Image, ImageSequence

from ppo_plus.zoo.enjoy import enjoy, make_player, record
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.train import Options, set_up, train

EXPERIMENT = load_experiment(
    "CartPole-v1",
    overrides={"n_timesteps": 512, "n_envs": 2, "n_epochs": 2, "normalize": True, "compile": False},
    eval_env_kwargs={"sutton_barto_reward": True},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = set_up(EXPERIMENT, Options(log_folder=str(tmp_path_factory.mktemp("logs")), save_freq=256, progress=False))
    train(made)
    return made


def test_plays_the_model_with_its_statistics_in_the_runs_environments(run):
    player = make_player(run.folder, run.folder.last_model)
    statistics = player.model.get_vec_normalize_env()
    np.testing.assert_array_equal(statistics.obs_rms.mean, run.model.get_vec_normalize_env().obs_rms.mean)
    assert not statistics.training
    assert player.env.get_attr("unwrapped")[0]._sutton_barto_reward
    assert player.deterministic
    assert sum(1 for _ in player.play(7)) == 7


def test_each_model_has_its_own_statistics(run):
    counts = [
        make_player(run.folder, run.folder.checkpoint(n)).model.get_vec_normalize_env().obs_rms.count
        for n in (256, 512)
    ]
    assert counts[0] < counts[1]


def test_the_same_seed_plays_the_same(run):
    def episodes(**options):
        player = make_player(run.folder, run.folder.last_model, n_envs=2, **options)
        return [info["episode"]["l"] for infos in player.play(300) for info in infos if "episode" in info]

    assert episodes(seed=1) == episodes(seed=1)
    assert episodes(seed=1) != episodes(seed=2)
    assert episodes(seed=1, deterministic=False) != episodes(seed=1)


def test_enjoy_prints_episodes_and_their_mean(run, capsys, tmp_path):
    enjoy(make_player(run.folder, run.folder.last_model, n_envs=2, monitor_dir=tmp_path), 600)
    *episodes, summary = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"episode {i}: return ") for i, line in enumerate(episodes, 1))
    assert f"over {len(episodes)} episodes" in summary
    assert {path.name for path in tmp_path.iterdir()} == {"0.monitor.csv", "1.monitor.csv"}


def test_enjoy_without_an_episode(run, capsys):
    enjoy(make_player(run.folder, run.folder.last_model), 1)
    assert capsys.readouterr().out == "no episode ended within 1 steps\n"


def test_record_gif(run, tmp_path):
    player = make_player(run.folder, run.folder.best_model, env_kwargs={"render_mode": "rgb_array"})
    record(player, 12, tmp_path / "new" / "cartpole.gif")
    with Image.open(tmp_path / "new" / "cartpole.gif") as image:
        assert image.format == "GIF" and image.n_frames > 1
        frames = [(frame.convert("RGB"), frame.info["duration"]) for frame in ImageSequence.Iterator(image)]
    # Frames that show the same are one that lasts longer.
    assert sum(duration for _, duration in frames) == 12 * 20
    assert not np.array_equal(frames[0][0], frames[-1][0])


def test_record_video(run, tmp_path):
    pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed")
    player = make_player(run.folder, run.folder.best_model, env_kwargs={"render_mode": "rgb_array"})
    record(player, 12, tmp_path / "cartpole.mp4")
    assert (tmp_path / "cartpole.mp4").read_bytes()[4:8] == b"ftyp"


def test_missing_model(run):
    with pytest.raises(FileNotFoundError, match="rl_model_9_steps.zip"):
        make_player(run.folder, run.folder.checkpoint(9))
