"""The table of the results of ``learning_memory_kinds.py``."""

from pathlib import Path
from typing import Any

import numpy as np

from report.markdown import markdown
from report.plan import Cell, in_order, read
from report.results import RESULTS
from report.scores import score

FILE = RESULTS / "memory_kinds.jsonl"
KINDS = ("LSTM", "GRU", "LRU", "Attention", "RecurrentPPO")
TASKS = ("CartPole-v1", "Pendulum-v1", "Vault", "RepeatPrevious-16", "RepeatPrevious-32", "TMaze-50")
#: Seeds that no setting was chosen with.
SEEDS = range(10, 15)
#: RecurrentPPO last: it takes longer than all others together.
JOBS = in_order([[Cell(kind, task, SEEDS) for task in TASKS for kind in kinds] for kinds in (KINDS[:-1], KINDS[-1:])])


def return_after(result: dict[str, Any], share: float) -> float:
    """The mean return of the training episodes that ended in the tenth of a run before this share of it."""
    returns, episodes = result["curve"]["return"], result["curve"]["episodes"]
    end = max(1, round(share * len(returns)))
    tenth = slice(max(0, end - len(returns) // 10), end)
    found = [(mean, count) for mean, count in zip(returns[tenth], episodes[tenth], strict=True) if count]
    return sum(mean * count for mean, count in found) / sum(count for _, count in found) if found else float("nan")


def table(file: Path = FILE) -> list[str]:
    """Returns at the end, and after the time that the fastest kind takes for all of its steps. A run's time is taken as
    proportional to its steps. A kind's is the median of its runs: the first one may compile."""
    rows, done = [], read(file, JOBS)
    for task in TASKS:
        by_kind = {kind: [done[job] for job in done if (job.arm, job.task) == (kind, task)] for kind in KINDS}
        by_kind = {kind: runs for kind, runs in by_kind.items() if runs}
        times = {kind: float(np.median([run["cpu_seconds"] for run in runs])) for kind, runs in by_kind.items()}
        for kind, runs in by_kind.items():
            share = min(times.values()) / times[kind]
            returns = [[return_after(run, part) for run in runs] for part in (1.0, share)]
            cells = [score(values, ".2f") for values in returns]
            rows.append([task, kind, f"{runs[0]['steps']:,}", *cells, f"{times[kind]:,.0f}", str(len(runs))])
    header = ["task", "memory", "steps", "return at the end", "return in the time of the fastest", "CPU s", "seeds"]
    return markdown(header, rows)
