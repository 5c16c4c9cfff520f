"""Several processes: real processes, stores and torchrun, also with killed processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch as th
from torchrun import TORCHRUN, torchrun

from ppo_plus import PPO_Plus
from ppo_plus.distributed.torchrun import join
from ppo_plus.zoo.cli import main
from ppo_plus.zoo.results import read_training

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

WORKER = """
import signal, sys, time
from ppo_plus.distributed import torchrun
{before}
torchrun.end_with_torchrun()
print("works", flush=True)
time.sleep(60)
"""
#: Starts a worker, and is gone as soon as that one works.
AGENT = """
import os, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, stderr=sys.stderr)
worker.stdout.readline()
print(worker.pid, flush=True)
sys.stdin.readline()
os._exit(0)
"""
ENVIRONMENT = os.environ | {"TORCHELASTIC_RUN_ID": "job"}


@pytest.mark.parametrize(
    ("device", "more", "message"),
    [
        ("cuda:1", {}, "--device cuda:1 is one GPU, and each process needs its own"),
        (
            "auto",
            {"LOCAL_RANK": "1"},
            "--device auto: each process .* a GPU, and torch finds 1: start 1, or pass --dev",
        ),
        ("cpu", {"TORCHELASTIC_MAX_RESTARTS": "3"}, "--max-restarts 3: restarted processes do not .*--resume RUN"),
    ],
)
def test_what_processes_cannot_have_raises_an_error(device, more, message, monkeypatch):
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**launched, **more}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)
    monkeypatch.setattr(th.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=message):
        join(device)


@on_linux
def test_a_process_ends_with_its_parent():
    tells = "signal.signal(signal.SIGTERM, lambda *_: (sys.stderr.write('ended'), sys.exit()))"
    command = [sys.executable, "-c", AGENT, WORKER.format(before=tells)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as agent:
        assert int(agent.stdout.readline())
        # Its end closes what the worker has of it, once that has ended as well.
        _, said = agent.communicate("\n", timeout=50)
    assert said == "ended"


@on_linux
@pytest.mark.parametrize("launched", [True, False])
def test_a_process_without_its_parent_ends_at_once(launched):
    environment = ENVIRONMENT if launched else {k: v for k, v in os.environ.items() if k != "TORCHELASTIC_RUN_ID"}
    code = WORKER.format(before="torchrun.PARENT = -1").replace("time.sleep(60)", "")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == ((-signal.SIGTERM, "") if launched else (0, "works\n"))


#: Trains one model in several processes, and shows the threads that are left.
LEAVES = """
import os
from pathlib import Path
from ppo_plus import PPO_Plus
from ppo_plus.distributed.torchrun import join
ranks = join("cpu")
PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, compile=False).learn(128)
threads = lambda: [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert any("gloo" in name for name in threads())
ranks.leave()
# In one piece, since both processes write to the same pipe.
os.write(1, f"{ranks.rank} {[name for name in threads() if 'gloo' in name]}\\n".encode())
"""


@pytest.mark.exhaustive
@on_linux
def test_no_thread_of_the_group_is_left_when_the_interpreter_ends(tmp_path):
    # Such a thread aborted the process now and then: "terminate called without an active exception".
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    done = torchrun(2, script, timeout=200)
    assert sorted(done.stdout.splitlines()) == ["0 []", "1 []"], done.stderr[-2000:]


GIVEN = "--env CartPole-v1 --seed 3 --no-progress --eval-freq 1024 --eval-episodes 3 --save-freq 512".split()
SETTINGS = "-params n_envs:4 n_steps:32 batch_size:64 n_epochs:2 compile:False".split()
N_TIMESTEPS = 4096


def given(folder, n_timesteps=N_TIMESTEPS):
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


def trained(ranks, folder):
    """What a run prints in this process, which trains with the other one."""
    with redirect_stdout(StringIO()) as printed:
        main(["train", *given(folder)])
    return printed.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, processes):
    """The folder of an undisturbed run of two processes."""
    folder = tmp_path_factory.mktemp("whole")
    assert len(re.findall(" (enjoy|record) --env", "".join(processes(trained, folder)))) == 1  # said once
    return folder


@pytest.mark.slow
def test_one_run_of_two_processes(whole):
    assert model_of(whole).num_timesteps == N_TIMESTEPS
    assert len(episodes(whole)) == 4 and all(episodes(whole))
    assert read_training(run_of(whole))[0].max() <= N_TIMESTEPS
    assert evaluations(whole)["results"].shape == (N_TIMESTEPS // 1024, 3)
    assert {path.name for path in run_of(whole).glob("*.zip")} == {
        "CartPole-v1.zip",
        "best_model.zip",
        *(f"rl_model_{n}_steps.zip" for n in range(512, N_TIMESTEPS + 1, 512)),
    }


@pytest.mark.exhaustive
def test_a_league_of_the_settings_runs_in_all_processes(tmp_path):
    options = "--processes 2 --env selfplay:pettingzoo.classic.tictactoe_v3 --eval-freq 0 --no-progress".split()
    settings = ["n_envs:4", "n_steps:16", "batch_size:32", "n_epochs:1", "callback:ppo_plus.League"]
    command = [sys.executable, "-m", "ppo_plus", "train", *options, "-n", "128", "-f", tmp_path, "-params", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_an_error_in_the_processes_is_said_without_torchruns_traceback(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys\nsys.stderr.write('ppo-plus: error: it fails\\n')\nsys.exit(2)\n")
    command = [sys.executable, "-m", "ppo_plus.distributed.torchrun", "--standalone", "--nproc-per-node", "2", script]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 2 and set(done.stderr.splitlines()) == {"ppo-plus: error: it fails"}


def await_checkpoint(run, *launched):
    """Wait for a second checkpoint.

    :param launched: torchrun, on each machine
    """
    while len(list((run / "checkpoints").glob("checkpoint_*.zip"))) < 2:
        assert all(each.poll() is None for each in launched)
        time.sleep(0.01)


def kill_one(run, *launched):
    """Kill the second process after the second checkpoint."""
    await_checkpoint(run, *launched)
    parents = ",".join(str(each.pid) for each in launched)
    workers = subprocess.check_output(["pgrep", "-P", parents], text=True).split()
    ranks = {Path(f"/proc/{pid}/environ").read_bytes().split(b"\0RANK=")[1].split(b"\0")[0]: pid for pid in workers}
    os.kill(int(ranks[b"1"]), signal.SIGKILL)


def start(*options, train):
    """Start torchrun with a training command.

    :param options: of torchrun
    :param train: the arguments of ``ppo-plus train``
    """
    command = [*TORCHRUN, *map(str, options), "-m", "ppo_plus", "train", *train]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
def test_killed_processes_resume_with_identical_results(tmp_path, whole):
    resumed = tmp_path / "resumed"
    launched = start("--standalone", "--nproc-per-node", 2, train=given(resumed))
    kill_one(run_of(resumed), launched)
    assert launched.wait(120) != 0
    again = ["train", "--processes", "2", "--resume", run_of(resumed), "--no-progress"]
    done = subprocess.run([sys.executable, "-m", "ppo_plus", *again], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(re.findall(" (enjoy|record) --env", done.stdout)) == 1  # said once
    assert_same_run(resumed, whole)


@pytest.mark.exhaustive
@needs_proc
def test_without_torchrun_processes_end_and_can_be_resumed(tmp_path):
    launched = start("--standalone", "--nproc-per-node", 2, train=given(tmp_path, 10**7))
    await_checkpoint(run_of(tmp_path), launched)
    launched.kill()
    # Their output ends with the last of them.
    said, _ = launched.communicate(timeout=300)
    assert f" train --resume {run_of(tmp_path)} --processes 2" in said


@pytest.mark.exhaustive
def test_two_machines(tmp_path, whole):
    """Two agents of torchrun, as on two machines."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = [
        *("--nnodes", 2, "--nproc-per-node", 1),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"),
    ]
    launched = [start(*options, train=given(tmp_path)) for _ in range(2)]
    said = [each.communicate(timeout=300)[1] for each in launched]
    assert [each.returncode for each in launched] == [0, 0], said
    assert_same_run(tmp_path, whole)
