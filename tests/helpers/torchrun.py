"""Starts several processes that train together with torchrun."""

import os
import subprocess
import sys

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def torchrun(n_processes, *arguments, **options):
    """Run a script, or ``-m`` and a module, in several processes.

    :param options: of ``subprocess.run``
    :return: the completed process, with its output as text
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(n_processes), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)
