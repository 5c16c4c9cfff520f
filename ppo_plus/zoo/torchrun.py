"""Several processes are torchrun's: ``--processes N`` is ``torchrun --nproc-per-node N -m ppo_plus train``."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

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
