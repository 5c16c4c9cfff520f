"""What training runs reached: their results, and tables of them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ppo_plus.zoo.results import iqm_interval
from report.markdown import markdown


@dataclass
class Result:
    """One training run: task, contender and seed, how many steps it took, how many of them per second of CPU time, and
    the score at its end."""

    task: str
    contender: str
    seed: int
    steps: int
    steps_per_second: float
    score: float


def read(path: Path) -> list[Result]:
    """The results in a file. A run that never reached its goal has an infinite score; where the speed was not kept, it
    is NaN."""
    found = []
    for run in json.loads(path.read_text())["runs"]:
        score = math.inf if run["score"] is None else run["score"]
        found.append(Result(**{"steps_per_second": math.nan} | run | {"score": score}))
    return found


#: An interval of fewer runs is little more than the lowest and the highest of them.
N_INTERVAL = 5


def score(scores: Sequence[float], digits: str = "") -> str:
    """The interquartile mean and its 95 % interval; of few runs, the score of each.

    :param digits: the format of each number; by default one decimal, and of an interval that of ``Estimate``
    """
    if len(scores) < N_INTERVAL:
        return ", ".join(f"{each:{digits or '.1f'}}" for each in scores)
    return f"{iqm_interval(scores):{digits}}"


def _returns(runs: list[Result]) -> str:
    return ", ".join(f"{run.score:.2f}" for run in runs)


def _interval(runs: list[Result]) -> str:
    found = iqm_interval([run.score for run in runs])
    return f"{found:.2f}" if len(runs) >= N_INTERVAL else f"{found.value:.2f}"


#: Columns of a table: the cell for the runs of one contender.
COLUMNS: dict[str, Callable[[list[Result]], str]] = {
    "task": lambda runs: runs[0].task,
    "trained with": lambda runs: runs[0].contender,
    "steps": lambda runs: f"{runs[0].steps:,}",
    "returns": _returns,
    "IQM [95 %]": _interval,
}
SPEED: dict[str, Callable[[list[Result]], str]] = {
    "steps/s": lambda runs: f"{median(run.steps_per_second for run in runs):,.0f}",
}


def rows(results: list[Result], columns: dict[str, Callable[[list[Result]], str]] = COLUMNS) -> list[str]:
    """A table with a line for each task and contender, in the order in which they come."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.task, result.contender), []).append(result)
    return markdown(list(columns), ([cell(runs) for cell in columns.values()] for runs in groups.values()))
