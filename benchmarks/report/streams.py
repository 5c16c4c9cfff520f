"""The table of what ``learning_streams.py`` has found."""

from pathlib import Path

import numpy as np

from report.markdown import markdown
from report.plan import Cell, in_order, read
from report.results import RESULTS

FILE = RESULTS / "streams.jsonl"
#: What is compared on each task; :mod:`learning_streams` says what each name stands for.
ARMS = {
    "Hazards": ("none", "limit"),
    "MountainCar-v0": ("none", "curiosity"),
    "MiniGrid-MultiRoom-N4-S5-v0": ("none", "curiosity"),
    "MiniGrid-KeyCorridorS3R1-v0": ("none", "curiosity"),
}
CELLS = [Cell(arm, task, range(5)) for task, arms in ARMS.items() for arm in arms]
#: MiniGrid's tasks last: their runs take the longest.
JOBS = in_order([[cell for cell in CELLS if cell.task.startswith("MiniGrid") is last] for last in (False, True)])


def table(file: Path = FILE) -> list[str]:
    """Return and cost of the last 100 training episodes, mean and range over seeds."""
    rows = []
    for cell in CELLS:
        done = list(read(file, in_order([[cell]])).values())
        if done:
            returns = [run["last"]["return"] for run in done]
            seconds = np.mean([run["cpu_seconds"] for run in done])
            cost = _with_range([run["last"]["cost"] for run in done]) if cell.task == "Hazards" else ""
            steps = f"{done[0]['steps']:,}"
            rows.append([cell.task, cell.arm, steps, str(len(done)), _with_range(returns), cost, f"{seconds:.0f}"])
    return markdown(["task", "stream", "steps", "seeds", "return", "cost", "CPU s"], rows)


def _with_range(values: list[float]) -> str:
    return f"{np.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]"
