"""Training in several processes, which torchrun starts: ``--processes N`` is ``torchrun --nproc-per-node N …``.

Torch is imported within the functions, because the command line asks :func:`launched` before it needs torch.
"""

import atexit
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from ppo_plus.distributed.ranks import Ranks

#: What torchrun sets for each process; see ``torch.distributed.run``.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: The process that started this one: torchrun, if it is used.
PARENT = os.getppid()


def launched() -> bool:
    """Whether torchrun, or a similar launcher, started this process together with others."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def launch(n_processes: int, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by torchrun, which starts ``ppo-plus`` with these arguments in several processes."""
    # One core for each process; torchrun prints a long warning if the variable is not set.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "ppo_plus.distributed.torchrun", "--standalone", "--nproc-per-node", str(n_processes)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "ppo_plus", *arguments])


def run() -> None:
    """Run torchrun, and exit as its first process that failed, without a traceback: that process said why."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        main()
    except SignalException as error:
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            print(f"ppo-plus: error: process {rank} was killed by signal {-failure.exitcode}", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


def join(device: str) -> "Ranks":
    """Join the process group if torchrun started this process, until it ends: gloo for CPUs, NCCL for GPUs.

    :raises ValueError: the device is one GPU, or torchrun restarts processes
    """
    import torch as th

    # Before there is a group: its functions, which torch's optimizers import, keep it as their default argument, and
    # what refers to the group keeps gloo's threads alive, which then disturb the end of the interpreter.
    import torch.distributed.nn.functional
    from torch import distributed as dist

    from ppo_plus.distributed.ranks import Ranks

    if not launched():
        return Ranks.present()
    n_restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if n_restarts != "0":
        problem = f"torchrun --max-restarts {n_restarts}: restarted processes do not resume by themselves"
        raise ValueError(f"{problem}: leave it out, and use --resume RUN")
    end_with_torchrun()
    on_gpu = device.startswith("cuda") or (device == "auto" and th.cuda.is_available())
    if on_gpu:
        require_any_gpu(device)
        own, n_gpus = int(os.environ.get("LOCAL_RANK", "0")), th.cuda.device_count()
        if own >= n_gpus:
            problem = f"--device {device}: each process of a machine needs a GPU, and torch finds {n_gpus}"
            raise ValueError(f"{problem}: start {n_gpus}, or pass --device cpu")
        th.cuda.set_device(own)
    # gloo in addition to NCCL, for what is on the CPU, such as an optimizer's step count.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(hours=2))  # one may evaluate
    # If the group is not left, gloo's threads end the process with an error.
    atexit.register(Ranks.present().leave)
    return Ranks.present()


def require_any_gpu(device: str) -> None:
    """:raises ValueError: the device is one GPU, which all processes would share"""
    if device.startswith("cuda:"):
        raise ValueError(f"--device {device} is one GPU, and each process needs its own: use --device cuda")


def end_with_torchrun() -> None:
    """Have this process receive SIGTERM when torchrun ends, even if torchrun was killed (Linux). A process that
    continued without torchrun would disturb the resumed run."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG of `sys/prctl.h`
        if os.getppid() != PARENT:
            # torchrun ended before this call.
            signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    run()
