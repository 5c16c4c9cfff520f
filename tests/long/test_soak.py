"""``soak.py``: what it counts as lost."""

import os
import subprocess
import sys

import pytest
import soak
import soak_envs
import torch as th

from ppo_plus import PPO_Plus
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv


@pytest.mark.parametrize(("fault", "kind"), [("raise", "raises"), ("NaN", "NaN"), ("shape", "another shape")])
def test_each_fault_is_known_by_its_line(fault, kind):
    reports = []
    make = [lambda: soak_envs.Soaked({fault: 1.0} if not reports else {})]
    env = SupervisedVecEnv(make, restarts=1, start_method="fork", report=reports.append)
    env.reset()
    env.step([1])
    assert [soak._kind_of_fault(line) for line in reports] == [kind]


def whole_run(folder):
    """What ``ppo-plus train`` leaves, as far as it is compared."""
    arguments = "--env CartPole-v1 -n 512 --seed 1 --no-progress --eval-freq 256 --eval-episodes 1".split()
    settings = "-params n_envs:2 n_steps:64 n_epochs:1 compile:False".split()
    command = [sys.executable, "-m", "ppo_plus", "train"]
    subprocess.run([*command, *arguments, "-f", folder, *settings], check=True, capture_output=True)
    return folder / "ppo_plus" / "CartPole-v1_1"


@pytest.mark.exhaustive
def test_what_differs_is_named(tmp_path):
    one, other = whole_run(tmp_path / "one"), whole_run(tmp_path / "other")
    assert soak.different(one, other) == []
    episodes = other / "0.monitor.csv"
    episodes.write_text(episodes.read_text().replace(",", "0,", 1).rsplit("\n", 2)[0] + "\n")
    (other / "unknown").touch()
    model = PPO_Plus.load(other / "CartPole-v1.zip")
    with th.no_grad():
        next(model.policy.parameters()).view(-1)[0] += 1e-7
    model.save(other / "CartPole-v1.zip")
    assert soak.different(one, other) == ["weights", "0.monitor.csv", "unknown"]
    assert soak.updates(one) == 4


def test_a_clock_can_jump(tmp_path):
    clock = soak.Clock(tmp_path)
    read = [sys.executable, "-c", "import time; print(time.time(), time.monotonic())"]
    times = []
    for offset in (0, 3600):
        clock.jump(offset)
        output = subprocess.check_output(read, env=os.environ | clock.variables, text=True)
        times.append([float(each) for each in output.split()])
    (wall, steady), (later_wall, later_steady) = times
    assert later_wall - wall > 3600 and later_steady - steady < 3600
