"""Several processes are torchrun's: ``--processes N`` is ``torchrun --nproc-per-node N -m ppo_plus train``."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ppo_plus.files.whole import write_text

#: What torchrun tells each process; see ``torch.distributed.run``.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process beside others."""
    return all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def begun_before(log_folder: Path) -> Path | None:
    """The folder of the run that torchrun starts anew, because a process of it has ended (``--max-restarts``).

    :param log_folder: folder of all runs
    :return: ``None``: it starts it for the first time, or the run had no checkpoint yet
    """
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    note = _note(log_folder)
    folder = Path(note.read_text()) if note.is_file() else None
    return folder if folder is not None and any((folder / "checkpoints").glob("*.zip")) else None


def note_begun(log_folder: Path, folder: Path) -> None:
    """Note which run torchrun has started, for :func:`begun_before`.

    :param log_folder: folder of all runs
    :param folder: of the run
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        write_text(_note(log_folder), str(folder))


def _note(log_folder: Path) -> Path:
    return log_folder / f".torchrun_{os.environ['TORCHELASTIC_RUN_ID']}"


def launch(n_processes: int, arguments: Sequence[str]) -> NoReturn:
    """Become torchrun, which starts processes on this machine.

    :param n_processes: how many
    :param arguments: of ``ppo-plus``
    """
    # Each process has one core's work; torchrun says so in many lines where nobody else has.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    command = [sys.executable, *torchrun, "-m", "ppo_plus", *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)
