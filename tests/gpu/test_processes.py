"""Two processes on two GPUs that are connected by NCCL; simulated ones by gloo, which follows NCCL's rules."""

from pathlib import Path

import pytest
import torch as th
from torchrun import torchrun

from ppo_plus.zoo.cli import main

SCRIPT = Path(__file__).parent / "two_processes.py"


def test_one_gpu_is_refused_before_processes_start(monkeypatch, capsys):
    monkeypatch.setattr("ppo_plus.zoo.cli.experiments.launch", lambda *args: pytest.fail("they have been started"))
    with pytest.raises(SystemExit):
        main(["train", "--env", "CartPole-v1", "--device", "cuda:0", "--processes", "2"])
    assert "--device cuda:0 is one GPU, and each process needs its own: use --device cuda" in capsys.readouterr().err


def test_two_processes_have_a_gpu_each():
    if th.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    done = torchrun(2, SCRIPT)
    assert done.returncode == 0, done.stderr[-5000:]
