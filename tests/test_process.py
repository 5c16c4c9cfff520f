"""What training sets in its process."""

import ctypes
import subprocess
import sys

import pytest
import torch as th

from ppo_plus.process import full_precision

FAULTS = """
import resource
import torch as th
from ppo_plus.process import keep_freed_memory

def faults(n_blocks=8, n_bytes=2**24, n_times=2):
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


def test_cudnn_computes_in_full_precision_in_a_block():
    cudnn = th.backends.cudnn
    assert cudnn.allow_tf32
    one, other = full_precision(), full_precision()
    one.__enter__()
    other.__enter__()
    assert not cudnn.allow_tf32
    # As with two models that learn in two threads: in either order, torch stays as it was.
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert cudnn.allow_tf32
    with full_precision():
        with full_precision():
            pass
        assert not cudnn.allow_tf32


@pytest.mark.skipif(not hasattr(th.backends.cudnn, "conv"), reason="since torch 2.9")
def test_cudnns_precision_may_be_set_by_kind_of_layer():
    cudnn = th.backends.cudnn
    before = cudnn.conv.fp32_precision
    try:
        cudnn.conv.fp32_precision = "ieee"
        with full_precision():
            assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("ieee", "ieee")
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("ieee", before)
    finally:
        cudnn.conv.fp32_precision = before
