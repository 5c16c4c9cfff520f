"""How far several processes would scale, on paper: up to 1,024 of them on several machines.

    python benchmarks/scaling_model.py                                   # from benchmarks/results/processes.json
    python benchmarks/scaling_model.py --latency 2e-6 --bandwidth 2e10   # another network between machines

What is measured (``benchmark_processes.py``), and what is assumed, is described in ``report/scaling.py``.
"""

import argparse
import json
from pathlib import Path

from report.processes import N_OBSERVED  # the modules beside this one
from report.results import path
from report.scaling import ASSUMED, efficiency_table, fitted


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=path("processes"), help="measurements (default: %(default)s)")
    options.add_argument(
        "--per-machine", type=int, default=ASSUMED[0], help="processes of a machine (default: %(default)s)"
    )
    options.add_argument("--latency", type=float, default=ASSUMED[1], help="between machines, s (default: %(default)s)")
    options.add_argument(
        "--bandwidth",
        type=float,
        default=ASSUMED[2],
        help="between machines, of a process, byte/s (default: 25 Gbit/s shared by 16)",
    )
    options.add_argument("--seed", type=int, default=0, help="of the simulation")
    arguments = options.parse_args()
    results = json.loads(arguments.data.read_text())
    network = fitted(results, arguments.per_machine, arguments.latency, arguments.bandwidth)
    print(f"{N_OBSERVED} observations, two hidden layers; {network}\n")
    print("\n".join(efficiency_table(results, network, arguments.seed)))


if __name__ == "__main__":
    main()
