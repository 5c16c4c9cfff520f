"""Several processes are torchrun's: ``--processes N`` is ``torchrun --nproc-per-node N -m ppo_plus train``."""

import atexit
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

if TYPE_CHECKING:
    from torch import distributed as dist

    from ppo_plus.ranks import Ranks


#: What torchrun tells each process; see ``torch.distributed.run``.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: A name of ``sys/prctl.h``.
PR_SET_PDEATHSIG = 1
#: Who has started this process: torchrun, if it was that.
PARENT = os.getppid()


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process beside others."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def job() -> str | None:
    """What torchrun calls this job, the same after it has been restarted: ``--rdzv-id``, or a name that it makes.

    :return: the name; ``None``: there is none that is this job's alone
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # torchrun's name for a job without one, which is only known to be the same where torchrun itself restarted it.
    return None if name == "none" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" else name


def end_with_torchrun() -> None:
    """Be ended by SIGTERM when torchrun is gone, also where it was killed and could end nobody (Linux)."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != PARENT:
            # It has gone before that was asked for.
            signal.raise_signal(signal.SIGTERM)


def launch(n_processes: int, arguments: Sequence[str]) -> NoReturn:
    """Become torchrun, which starts processes on this machine.

    :param n_processes: how many
    :param arguments: of ``ppo-plus``
    """
    # Each process has one core's work; torchrun says so in many lines where nobody else has.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    # Of options that are given twice the last one counts.
    command = [sys.executable, *torchrun, "-m", "ppo_plus", *arguments, "--processes", "1"]
    sys.stdout.flush()
    os.execv(sys.executable, command)


#: How long a process may wait for the others: one of them may be evaluating.
PATIENCE = timedelta(hours=2)
#: Seconds between two looks at what the others say.
PAUSE = 0.02


def join_group(backend: str) -> None:
    """Make the process group of those that were started together (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    :param backend: of ``torch.distributed``
    """
    from torch import distributed as dist

    store, rank, size = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(backend, store=fresh(store, rank, size), rank=rank, world_size=size, timeout=PATIENCE)


def fresh(store: "dist.Store", rank: int, size: int, patience: timedelta = timedelta(minutes=5)) -> "dist.Store":
    """A part of a store that nobody has written to before.

    torchrun hands the same store to processes that it has restarted, where they would find the addresses of the killed
    ones and wait for them; the count of restarts that it tells differs between machines. So each process says hello by
    a new name, and the first one calls an attempt of all that say hello, until all of them have answered.

    :param store: of all processes, perhaps with what earlier ones have left in it
    :param rank: this process's number
    :param size: how many there are
    :param patience: how long to wait for the others
    :raises TimeoutError: some did not come
    """
    from torch import distributed as dist

    name, until = uuid4().hex, time.monotonic() + patience.total_seconds()
    store.set_timeout(patience)
    store.set(f"hello/{rank}", name)
    attempt, called = "", [""] * size
    while time.monotonic() < until:
        if rank == 0:
            present = [store.get(f"hello/{i}").decode() for i in range(size)]
            if present != called:
                attempt, called = uuid4().hex, present
                store.set("attempt", json.dumps([attempt, called]))
        else:
            attempt, called = json.loads(store.get("attempt"))
        if called[rank : rank + 1] == [name]:
            store.set(f"{attempt}/{rank}", "here")
            # All answer before anybody goes: one of those called may be of before.
            if store.check([f"{attempt}/{i}" for i in range(size)]):
                return dist.PrefixStore(attempt, store)
        time.sleep(PAUSE)
    raise TimeoutError(f"of {size} processes that train together, some have not come for {patience}")


def join(device: str) -> "Ranks":
    """Be one of the processes that torchrun has started, if it has, until this one ends; alone otherwise.

    :param device: where the model computes; gloo joins CPUs, NCCL GPUs
    """
    import torch as th

    from ppo_plus.ranks import Ranks

    if not launched():
        return Ranks.present()
    # Going on without it, this process would be in the way of those that resume the run.
    end_with_torchrun()
    on_gpu = device.startswith("cuda") or (device == "auto" and th.cuda.is_available())
    if on_gpu:
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    # Beside NCCL, gloo sends what is on the CPU, such as an optimizer's count of steps.
    join_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    # Without, gloo's threads end the process with an error of their own.
    atexit.register(Ranks.present().leave)
    return Ranks.present()


def _take_gpu(local_rank: int) -> None:
    """:raises ValueError: there is none for this process"""
    import torch as th

    n_gpus = th.cuda.device_count()
    if local_rank >= n_gpus:
        raise ValueError(
            f"this machine has {n_gpus} GPUs, one for each process: use --processes {n_gpus}, or --device cpu"
        )
    th.cuda.set_device(local_rank)
