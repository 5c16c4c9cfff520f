"""What training sets in the process that it runs in: threads, cuDNN's precision, and what the allocator keeps."""

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import get_device
from torch import nn

#: Names of ``malloc.h``.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

#: Weights times transitions that are computed at once from which on several threads are faster than one.
WORTH_THREADS = 20_000_000
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d


def check_device(device: th.device | str) -> None:
    """Warns where, as in SB3, "cuda" without a GPU means the CPU; raises :class:`ValueError` for unknown devices."""
    try:
        chosen = get_device(device)
    except RuntimeError as error:
        raise ValueError(f'device={device!r} is not known to torch: use "cpu", "cuda" or "auto"') from error
    if device != "auto" and chosen.type != th.device(device).type:
        warnings.warn(
            f"device={str(device)!r}: torch finds no GPU here, so training runs on the CPU. Install a torch that "
            'supports the GPU, or use device="auto", which takes one where there is one',
            stacklevel=3,
        )


def worth_threads(policy: nn.Module, n_at_once: int, device: th.device) -> bool:
    """Whether torch computes faster with several threads, for ``n_at_once`` transitions at once."""
    large = n_at_once * sum(p.numel() for p in policy.parameters()) >= WORTH_THREADS
    return device.type != "cpu" or large or has_convolutions(policy)


def has_convolutions(policy: nn.Module) -> bool:
    """Whether a policy has convolutional layers."""
    return any(isinstance(part, CONVOLUTIONS) for part in policy.modules())


def usable_cores() -> int:
    """How many cores this process may use: those that it is bound to, and no more than its control group has."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no such group, or it has no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        n = min(n, -(-int(quota) // int(period)))
    return max(n, 1)


@contextmanager
def assigned(owner: Any, **values: Any) -> Iterator[None]:
    """Give attributes of an object other values in the block."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads in the block."""
    before = th.get_num_threads()
    try:
        th.set_num_threads(number)
        yield
    finally:
        th.set_num_threads(before)


@contextmanager
def computing(n_threads: int) -> Iterator[None]:
    """Let torch use so many threads in full precision in the block, and NumPy round tiny numbers to 0 silently."""
    with torch_threads(n_threads), full_precision(), np.errstate(under="ignore"):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Let cuDNN compute in single precision in the block, instead of in TensorFloat-32, torch's default there. Rollouts
    and updates use other kernels, so that with its 10 bits the first ratio would differ from 1 by some 0.001."""
    cudnn: Any = th.backends.cudnn
    # What a block in another thread has set is left to that block.
    try:
        settings = [assigned(cudnn, allow_tf32=False)] if cudnn.allow_tf32 else []
    except RuntimeError:
        # Torch refuses to read it once something was set for one kind of layer.
        parts = [part for part in (cudnn.conv, cudnn.rnn) if part.fp32_precision != "ieee"]
        settings = [assigned(part, fp32_precision="ieee") for part in parts]
    with ExitStack() as stack:
        for setting in settings:
            stack.enter_context(setting)
        yield


def keep_freed_memory() -> None:
    """Have this process keep the memory that a minibatch frees for the next one.

    Linux's allocator (glibc) returns large free areas to the system, and requests them again page by page, which takes
    much of the time of convolutions and recurrent layers. From now on it maps only blocks above 32 MiB by themselves
    and keeps up to 1 GiB (``mallopt(3)``), unless the user has set its environment variables.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
