"""One process at a time has a lock, and its end releases it."""

import signal
import subprocess
import sys

from ppo_plus.saving.format.lock import claim

HOLD = """
import sys, time
from ppo_plus.saving.format.lock import claim
with claim(sys.argv[1]) as held:
    print(held, flush=True)
    time.sleep(600)
"""


def test_a_killed_process_has_no_lock(tmp_path):
    path = tmp_path / "folder" / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    with claim(path) as held:
        assert not held
    assert path.read_text() == f"{process.pid}\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(2):
        with claim(path) as held:
            assert held
