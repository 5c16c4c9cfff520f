"""``ppo-plus train --processes``: real processes, also such as are killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch as th
from torchrun import COMMAND, torchrun

from ppo_plus import PPO_Plus
from ppo_plus.ranks import Ranks
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.plot import read_training
from ppo_plus.zoo.ranks import share

GIVEN = "--env CartPole-v1 --seed 3 --no-progress --eval-freq -1 --save-freq 512".split()
SETTINGS = "-params n_envs:4 n_steps:32 batch_size:64 n_epochs:2 compile:False".split()


def given(folder, n_timesteps=1024):
    return [*GIVEN, "-n", str(n_timesteps), "-f", str(folder), *SETTINGS]


def run_of(folder):
    return folder / "ppo_plus" / "CartPole-v1_1"


def model_of(folder):
    return PPO_Plus.load(run_of(folder) / "CartPole-v1.zip")


def episodes(folder):
    files = sorted(run_of(folder).glob("*.monitor.csv"))
    return [[line.rsplit(",", 1)[0] for line in path.read_text().splitlines()[1:]] for path in files]


@pytest.mark.parametrize(("n", "rank"), [(2, 0), (2, 1), (4, 3)])
def test_numbers_of_the_settings_mean_the_whole(n, rank):
    whole = load_experiment("CartPole-v1", overrides={"n_envs": 8, "batch_size": 256})
    part = share(whole, Ranks(rank, n))
    assert (part.n_envs, part.hyperparams["batch_size"]) == (8 // n, 256 // n)
    assert part.n_timesteps == whole.n_timesteps
    assert share(whole, Ranks()) is whole


def test_what_cannot_be_divided_is_named():
    whole = load_experiment("CartPole-v1", overrides={"n_envs": 8, "batch_size": 256})
    message = "n_envs=8 cannot be divided among 3 processes: use a multiple of 3, such as n_envs=9, or fewer processes"
    with pytest.raises(ValueError, match=message):
        share(whole, Ranks(0, 3))
    # SB3's batch size is divided, too.
    with pytest.raises(ValueError, match="batch_size=64 cannot be divided among 24"):
        share(load_experiment("Walker2d-v5", overrides={"n_envs": 24}).replace(hyperparams={}), Ranks(0, 24))


@pytest.mark.slow
def test_one_run_of_two_processes(tmp_path):
    command = [sys.executable, "-m", "ppo_plus", "train", "--processes", "2", *given(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # Said once.
    assert done.stdout.count("watch it: ppo-plus enjoy") == 1
    assert model_of(tmp_path).num_timesteps == 1024
    assert len(episodes(tmp_path)) == 4 and all(episodes(tmp_path))
    assert read_training(run_of(tmp_path))[0].max() <= 1024
    assert sorted(path.name for path in run_of(tmp_path).glob("*.zip")) == [
        "CartPole-v1.zip",
        "rl_model_1024_steps.zip",
        "rl_model_512_steps.zip",
    ]


def kill_one(launched, run):
    """Kill a process that is not the first, once there is a checkpoint behind the first one."""
    while len(list((run / "checkpoints").glob("checkpoint_*_rank1.zip"))) < 2:
        assert launched.poll() is None
        time.sleep(0.01)
    workers = subprocess.check_output(["pgrep", "-P", str(launched.pid)], text=True).split()
    ranks = {Path(f"/proc/{pid}/environ").read_bytes().split(b"\0RANK=")[1].split(b"\0")[0]: pid for pid in workers}
    os.kill(int(ranks[b"1"]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_killed_it_goes_on_and_ends_the_same(tmp_path):
    """By as many processes, and also by one."""
    n = 4096
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    done = torchrun(2, "-m", "ppo_plus", "train", *given(whole, n), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*COMMAND, "2", "-m", "ppo_plus", "train"]
    launched = subprocess.Popen([*command, *given(resumed, n)], env=environment, stderr=subprocess.DEVNULL)
    kill_one(launched, run_of(resumed))
    assert launched.wait(120) != 0
    shutil.copytree(resumed, tmp_path / "alone")
    done = torchrun(2, "-m", "ppo_plus", "train", "--resume", run_of(resumed), "--no-progress", timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

    expected, found = (model_of(folder).get_parameters()["policy"] for folder in (whole, resumed))
    assert all(th.equal(found[name], expected[name]) for name in expected)
    assert episodes(resumed) == episodes(whole)

    alone = [sys.executable, "-m", "ppo_plus", "train", "--resume", run_of(tmp_path / "alone"), "--no-progress"]
    done = subprocess.run(alone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "episodes begin anew: the checkpoint is of 2 processes, and now there are 1" in done.stderr
    model = model_of(tmp_path / "alone")
    assert (model.num_timesteps, model.batch_size) == (n, 64)
