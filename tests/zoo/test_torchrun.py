"""Processes that torchrun has started end with it, also where it was killed: nobody else would end them."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

WORKER = """
import signal, sys, time
from ppo_plus.zoo import torchrun
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


def test_a_process_ends_with_the_one_that_started_it():
    tells = "signal.signal(signal.SIGTERM, lambda *_: (sys.stderr.write('ended'), sys.exit()))"
    command = [sys.executable, "-c", AGENT, WORKER.format(before=tells)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as agent:
        assert int(agent.stdout.readline())
        # Its end closes what the worker has of it, once that has ended as well.
        _, said = agent.communicate("\n", timeout=50)
    assert said == "ended"


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_whose_starter_has_gone_before_that_ends_at_once(launched):
    environment = ENVIRONMENT if launched else {k: v for k, v in os.environ.items() if k != "TORCHELASTIC_RUN_ID"}
    code = WORKER.format(before="torchrun.PARENT = -1").replace("time.sleep(60)", "")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == ((-signal.SIGTERM, "") if launched else (0, "works\n"))
