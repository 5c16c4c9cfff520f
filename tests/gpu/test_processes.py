"""Two processes on two GPUs that are connected by NCCL; simulated ones by gloo, which follows NCCL's rules."""

from pathlib import Path

import pytest
import torch as th
from torchrun import torchrun

SCRIPT = Path(__file__).parent / "two_processes.py"


def test_two_processes_have_a_gpu_each():
    if th.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    done = torchrun(2, SCRIPT)
    assert done.returncode == 0, done.stderr[-5000:]
