"""``ppo-plus train --processes``: real processes, also such as are killed."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch as th
from torchrun import TORCHRUN, torchrun

from ppo_plus import PPO_Plus
from ppo_plus.ranks import Ranks
from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.plot import read_training
from ppo_plus.zoo.ranks import share

GIVEN = "--env CartPole-v1 --seed 3 --no-progress --eval-freq 1024 --eval-episodes 3 --save-freq 512".split()
SETTINGS = "-params n_envs:4 n_steps:32 batch_size:64 n_epochs:2 compile:False".split()
N_TIMESTEPS = 4096


def given(folder, n_timesteps=1024):
    return [*GIVEN, "-n", str(n_timesteps), "-f", str(folder), *SETTINGS]


def run_of(folder):
    return folder / "ppo_plus" / "CartPole-v1_1"


def model_of(folder):
    return PPO_Plus.load(run_of(folder) / "CartPole-v1.zip")


def episodes(folder):
    files = sorted(run_of(folder).glob("*.monitor.csv"))
    return [[line.rsplit(",", 1)[0] for line in path.read_text().splitlines()[1:]] for path in files]


def evaluations(folder):
    with np.load(run_of(folder) / "evaluations.npz") as saved:
        return dict(saved)


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
    assert evaluations(tmp_path)["results"].shape == (1, 3)
    assert sorted(path.name for path in run_of(tmp_path).glob("*.zip")) == [
        "CartPole-v1.zip",
        "best_model.zip",
        "rl_model_1024_steps.zip",
        "rl_model_512_steps.zip",
    ]


def await_checkpoint(run, *launched):
    """Wait until there is a checkpoint behind the first one.

    :param launched: torchrun, on each machine
    """
    while len(list((run / "checkpoints").glob("checkpoint_*_rank1.zip"))) < 2:
        assert all(each.poll() is None for each in launched)
        time.sleep(0.01)


def kill_one(run, *launched):
    """Kill the second process, once there is a checkpoint behind the first one."""
    await_checkpoint(run, *launched)
    parents = ",".join(str(each.pid) for each in launched)
    workers = subprocess.check_output(["pgrep", "-P", parents], text=True).split()
    ranks = {Path(f"/proc/{pid}/environ").read_bytes().split(b"\0RANK=")[1].split(b"\0")[0]: pid for pid in workers}
    os.kill(int(ranks[b"1"]), signal.SIGKILL)


def start(*options, train):
    """Have torchrun train.

    :param options: of torchrun
    :param train: the arguments of ``ppo-plus train``
    """
    command = [*TORCHRUN, *map(str, options), "-m", "ppo_plus", "train", *train]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run of two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    done = torchrun(2, "-m", "ppo_plus", "train", *given(folder, N_TIMESTEPS), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def assert_same_run(found, expected):
    weights, expected_weights = (model_of(folder).get_parameters()["policy"] for folder in (found, expected))
    assert all(th.equal(weights[name], expected_weights[name]) for name in expected_weights)
    assert episodes(found) == episodes(expected)
    played, expected_played = evaluations(found), evaluations(expected)
    assert len(expected_played["results"]) == 4
    assert all(np.array_equal(played[name], expected_played[name]) for name in expected_played)
    assert len(list((found / "ppo_plus").iterdir())) == 1


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")


@pytest.mark.slow
@needs_proc
def test_killed_it_goes_on_and_ends_the_same(tmp_path, whole):
    """By as many processes, and also by one."""
    resumed = tmp_path / "resumed"
    launched = start("--standalone", "--nproc-per-node", 2, train=given(resumed, N_TIMESTEPS))
    kill_one(run_of(resumed), launched)
    assert launched.wait(120) != 0
    shutil.copytree(resumed, tmp_path / "alone")
    done = torchrun(2, "-m", "ppo_plus", "train", "--resume", run_of(resumed), "--no-progress", timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(resumed, whole)

    alone = [sys.executable, "-m", "ppo_plus", "train", "--resume", run_of(tmp_path / "alone"), "--no-progress"]
    done = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "new episodes start: the checkpoint is of 2 processes, and there are 1 now" in done.stderr
    model = model_of(tmp_path / "alone")
    assert (model.num_timesteps, model.batch_size) == (N_TIMESTEPS, 64)


@pytest.mark.slow
@needs_proc
def test_torchrun_restarts_what_was_killed(tmp_path, whole):
    options = ["--standalone", "--nproc-per-node", 2, "--max-restarts", 1]
    launched = start(*options, train=given(tmp_path, N_TIMESTEPS))
    kill_one(run_of(tmp_path), launched)
    _, said = launched.communicate(timeout=300)
    assert launched.returncode == 0, said[-3000:]
    assert said.count("going on with what this job of torchrun") == 1
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
@needs_proc
def test_without_torchrun_they_end_and_are_gone_on_with(tmp_path):
    launched = start("--standalone", "--nproc-per-node", 2, train=given(tmp_path, 10**7))
    await_checkpoint(run_of(tmp_path), launched)
    launched.kill()
    # Their output ends with the last of them.
    said, _ = launched.communicate(timeout=300)
    assert f"ppo-plus train --resume {run_of(tmp_path)} --processes 2" in said


@pytest.mark.slow
@needs_proc
def test_two_machines(tmp_path, whole):
    """Two of torchrun's agents, as on two machines; the processes of one are killed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = [
        *("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 2),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"),
    ]
    launched = [start(*options, train=given(tmp_path, N_TIMESTEPS)) for _ in range(2)]
    kill_one(run_of(tmp_path), *launched)
    said = [each.communicate(timeout=300)[1] for each in launched]
    assert [each.returncode for each in launched] == [0, 0], said
    assert "".join(said).count("going on with what this job of torchrun (two) has begun") == 1
    assert_same_run(tmp_path, whole)
