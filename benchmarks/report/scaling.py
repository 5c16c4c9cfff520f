"""A model of how far several processes would scale: up to 1,024 of them on several machines.

Measured (``benchmarks/benchmark_processes.py``) are the time of a minibatch in one process, by width of the network and
size of the minibatch, and that of an all-reduce between processes of one machine, by its size. Assumed are:

- a minibatch of b transitions takes t0 + t1 b, as measured ones do (least squares in relative terms);
- an all-reduce of S bytes over N processes takes 2 log2(N) alpha + 2 (N - 1) / N S / beta (Thakur, Rabenseifner and
  Gropp 2005: recursive halving and doubling); within a machine alpha and beta fit what was measured, between machines
  the slower of that and the network counts, whose latency comes on top;
- processes differ by chance alone: each minibatch of each process is slower by a random factor, log-normal
  with the spread that was measured, and all wait for the slowest. That is simulated.

Efficiency is the time of a minibatch of b transitions in one process, divided by the time that N processes need for one
of N b: 1 means that N processes learn from N times as many transitions per second. Rollouts are left out: processes
step their environments without each other, and meet once.
"""

from statistics import median
from typing import Any, NamedTuple

import numpy as np

from report.markdown import markdown
from report.processes import ALONE, N_MINIBATCHES, n_weights

PROCESSES = (1, 2, 4, 16, 64, 256, 1024)
BATCHES = (64, 256, 1024, 4096, 16384)
#: Processes of a machine; seconds and bytes per second between machines: 25 Gbit/s Ethernet, shared by these.
ASSUMED = (16, 25e-6, 25e9 / 8 / 16)


class Line(NamedTuple):
    """intercept + slope x"""

    intercept: float
    slope: float

    def __call__(self, x: float) -> float:
        return self.intercept + self.slope * x

    @classmethod
    def through(cls, points: dict[float, float]) -> "Line":
        """The line that is least wrong in relative terms; neither number is below 0."""
        x, y = (np.array(each, dtype=float) for each in zip(*points.items(), strict=True))
        both = np.stack([1 / y, x / y], axis=1)
        found, *_ = np.linalg.lstsq(both, np.ones_like(y), rcond=None)
        if found.min() < 0:
            found = np.array([0.0, np.median(y / x)]) if found[0] < 0 else np.array([np.median(y), 0.0])
        return cls(*found.tolist())


class Network(NamedTuple):
    """What messages cost.

    :param alpha: seconds of a message within a machine
    :param per_byte: seconds that each byte takes within a machine
    :param per_machine: processes of one machine
    :param latency: seconds that a message takes longer between machines
    :param bandwidth: bytes per second between machines, of one process
    """

    alpha: float
    per_byte: float
    per_machine: int
    latency: float
    bandwidth: float

    def all_reduce(self, n_bytes: float, n_processes: int) -> float:
        """Seconds of one all-reduce."""
        if n_processes == 1:
            return 0.0
        rounds = np.ceil(np.log2(n_processes))
        within = min(rounds, np.ceil(np.log2(self.per_machine)))
        per_byte = self.per_byte if n_processes <= self.per_machine else max(self.per_byte, 1 / self.bandwidth)
        waits = 2 * rounds * self.alpha + 2 * (rounds - within) * self.latency
        return float(waits + 2 * (n_processes - 1) / n_processes * n_bytes * per_byte)


def fitted(results: dict[str, Any], per_machine: int, latency: float, bandwidth: float) -> Network:
    """The network whose messages within a machine take what was measured between two processes."""
    line = Line.through({4 * int(size): seconds for size, seconds in results["messages"].items()})
    n = results["processes"]
    return Network(
        line.intercept / (2 * np.ceil(np.log2(n))), line.slope / (2 * (n - 1) / n), per_machine, latency, bandwidth
    )


def slowest(spread: float, n_processes: int, random: np.random.Generator, n_drawn: int = 200) -> float:
    """By how much the slowest of some processes is slower than one, on average."""
    return float(np.exp(random.normal(0, spread, (n_drawn, n_processes))).max(axis=1).mean() / np.exp(spread**2 / 2))


def efficiencies(results: dict[str, Any], width: str, network: Network, seed: int) -> dict[int, list[float]]:
    """By transitions per process and minibatch, for each number of processes."""
    random = np.random.default_rng(seed)
    measured = {int(size): found[ALONE] for size, found in results["updates"][width].items()}
    minibatch = Line.through({size: median(seconds) / N_MINIBATCHES for size, seconds in measured.items()})
    spread = float(np.median([np.std(np.log(seconds)) for seconds in measured.values()]))
    n_bytes = 4 * n_weights(int(width))
    return {
        batch: [
            minibatch(batch) / (minibatch(batch) * slowest(spread, n, random) + network.all_reduce(n_bytes, n))
            for n in PROCESSES
        ]
        for batch in BATCHES
    }


def efficiency_table(results: dict[str, Any], network: Network, seed: int = 0) -> list[str]:
    header = ["units per layer", "transitions per process and minibatch", *(f"N = {n:,}" for n in PROCESSES)]
    rows = [
        [width if i == 0 else "", f"{batch:,}", *(f"{each:.2f}" for each in found)]
        for width in results["updates"]
        for i, (batch, found) in enumerate(efficiencies(results, width, network, seed).items())
    ]
    return markdown(header, rows)


def assumed_table(results: dict[str, Any]) -> list[str]:
    return efficiency_table(results, fitted(results, *ASSUMED))
