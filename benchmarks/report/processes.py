"""Tables of what ``benchmark_processes.py`` has measured."""

from statistics import median
from typing import Any

from report.markdown import markdown
from report.speed import REFERENCE

#: Names of contenders.
ALONE, ALL, APART = "PPO_Plus, one process", "PPO_Plus, all processes", "all, without messages"
#: Minibatches of an update that is timed.
N_MINIBATCHES = 8
#: Environments and steps of a rollout of whole training.
N_ENVS, N_STEPS = 16, 64


def cell(seconds: dict[str, list[float]], name: str = ALL, of: str = ALONE) -> str:
    """How many times as fast one contender is as another, with the smallest and largest ratio."""
    ratios = [theirs / own for own, theirs in zip(seconds[name], seconds[of], strict=True)]
    return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def training_table(results: dict[str, Any]) -> list[str]:
    found, steps = results["training"], N_ENVS * N_STEPS
    header = ["", "µs per step", "times as fast as SB3", "as one process"]
    rows = [
        [name, f"{1e6 * median(found[name]) / steps:.0f}", cell(found, name, REFERENCE), cell(found, name)]
        for name in found
    ]
    return markdown(header, rows)


def updates_table(results: dict[str, Any]) -> list[str]:
    found = results["updates"]
    sizes = list(next(iter(found.values())))
    header = ["units per layer", *(f"minibatches of {size}" for size in sizes)]
    return markdown(header, [[width, *(cell(found[width][size]) for size in sizes)] for width in found])
