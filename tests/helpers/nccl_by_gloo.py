"""NCCL's rules on simulated GPUs: gloo carries the numbers, between tensors on the GPU that each process has alone."""

import os

import torch as th
from torch import distributed as dist
from torch.distributed import distributed_c10d

#: Which kinds of devices the group connects.
CONFIG = ""


def join(backend, store, rank, size):
    """``init_process_group`` with ``"nccl"``, or ``"cpu:gloo,cuda:nccl"``, on simulated GPUs."""
    global CONFIG
    CONFIG = "cuda:nccl" if backend == "nccl" else backend
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def install():
    """Put the rules in place of torch's collectives."""
    for name in ("all_reduce", "broadcast", "all_gather"):
        replaced = _checked(getattr(dist, name))
        setattr(dist, name, replaced)
        # Those of objects use them, too.
        setattr(distributed_c10d, name, replaced)
    dist.get_backend_config = lambda group=None: CONFIG
    distributed_c10d._get_object_coll_device = lambda group=None: "cpu" if "cpu" in CONFIG else "cuda"


def _checked(collective):
    def call(first, *args, **kwargs):
        given = [*first] if isinstance(first, list) else [first]
        if isinstance(first, list):
            given.append(args[0])
        for tensor in given:
            _require_connected(tensor)
        # NCCL does not wait.
        counts = th.cuda.get_sync_debug_mode()
        th.cuda.set_sync_debug_mode(0)
        host = [tensor.cpu() for tensor in given]
        collective(*((host[:-1], host[-1], *args[1:]) if isinstance(first, list) else (host[0], *args)), **kwargs)
        for tensor, result in zip(given, host, strict=True):
            tensor.copy_(result)
        th.cuda.set_sync_debug_mode(counts)

    return call


def _require_connected(tensor):
    if tensor.device.type not in CONFIG:
        raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
    if tensor.device.type == "cuda":
        index = tensor.device.index
        if index != int(os.environ["LOCAL_RANK"]):
            raise RuntimeError(f"Duplicate GPU detected: rank {dist.get_rank()} uses cuda:{index}")
        if not tensor.is_contiguous():
            raise RuntimeError("Tensors must be contiguous")
