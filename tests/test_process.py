"""What training sets in its process."""

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch as th
from ppo_plus.process import keep_freed_memory

def faults(n_blocks=8, n_bytes=2**24, n_times=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n_times):
        blocks = [th.zeros(n_bytes, dtype=th.uint8) for _ in range(n_blocks)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

without = faults()
keep_freed_memory()
faults()
print(without, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)
def test_freed_memory_is_kept():
    output = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    without, kept = map(int, output.split())
    assert 10 * kept < without
