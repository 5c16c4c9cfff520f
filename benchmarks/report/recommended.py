"""What the recommended settings reach on tasks on which they were not chosen: scores, task by task and over tasks.

The score of a run is (return - random) / (reference - random): ``random`` is the return of random actions, and the
reference the better interquartile mean of the task's tuned settings; without these, the best of all that were run, with
those that a study found.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppo_plus.zoo.results import interval, iqm
from report.markdown import markdown
from report.plan import ARMS, STAGES
from report.results import RESULTS, read_lines
from report.scores import N_INTERVAL, score
from report.statistics import improvement_interval

#: What random actions reach, a line for each task.
RANDOM = RESULTS / "random_returns.jsonl"
COMPARED = ("recommended", "untuned", "untuned-normalized")
TUNED, STUDIED = ("tuned", "tuned-rl_zoo3"), "studied"
#: Returns by contender and task.
Returns = Mapping[str, Mapping[str, Sequence[float]]]


def measure(task: str) -> str:
    """Which episodes count: on MiniGrid actions are sampled, as in rl_zoo3."""
    return "stochastic" if task.startswith("MiniGrid-") else "deterministic"


def returns(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By contender and task, the return of each run."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in results:
        found.setdefault(run["arm"], {}).setdefault(run["task"], []).append(run[measure(run["task"])]["mean"])
    return found


def scores(found: Returns, arm: str, task: str, random: float) -> list[float]:
    """The score of each run of a contender."""
    references = [arm for arm in TUNED if task in found.get(arm, {})] or [*COMPARED, STUDIED]
    best = max(float(iqm(np.array(found[arm][task]))) for arm in references if task in found.get(arm, {}))
    return [(each - random) / (best - random) for each in found[arm][task]]


def tasks_of(stage: str) -> list[str]:
    """The tasks of a stage, in order."""
    return list(dict.fromkeys(cell.task for cell in STAGES[stage]))


def cells(found: Returns, arms: Sequence[str], task: str) -> list[str]:
    """What each contender reaches on a task; empty where it was not run."""
    return [score(found[arm][task]) if task in found.get(arm, {}) else "" for arm in arms]


def in_other_units(results: Sequence[Mapping[str, Any]], stage: str = "robust") -> list[str]:
    """A line for each task: what the same settings reach in other units."""
    found = returns(results)
    arms = list(dict.fromkeys(cell.arm for cell in STAGES[stage]))
    rows = [[task, *cells(found, arms, task)] for task in tasks_of(stage)]
    return markdown(["task", *(ARMS[arm].name for arm in arms)], rows)


def by_task(results: Sequence[Mapping[str, Any]], stage: str = "unseen") -> list[str]:
    """A line for each task: what each contender reaches."""
    found, arms = returns(results), [*COMPARED, *TUNED, STUDIED]
    random = {line["task"]: line["return"] for line in read_lines(RANDOM)}
    rows = []
    for task in tasks_of(stage):
        reached = cells(found, arms, task)
        if any(reached):
            rows.append([task.partition(":")[2] or task, f"{random[task]:.4g}", *reached])
    return markdown(["task", "random", *(ARMS[arm].name for arm in arms)], rows)


def over_tasks(results: Sequence[Mapping[str, Any]], stage: str = "unseen") -> list[str]:
    """A line for each contender: its score over the tasks that all have run often enough for an interval, and how
    probable it is that a run is better than one of SB3's defaults, and of these with normalization."""
    found = returns(results)
    random = {line["task"]: line["return"] for line in read_lines(RANDOM)}
    tasks = [
        task for task in tasks_of(stage) if all(len(found.get(arm, {}).get(task, [])) >= N_INTERVAL for arm in COMPARED)
    ]
    if not tasks:
        return []

    def pooled(*each: np.ndarray, axis: int = -1) -> np.ndarray:
        return iqm(np.concatenate(each, axis), axis)

    rows = []
    for arm in COMPARED:
        each = [scores(found, arm, task, random[task]) for task in tasks]
        better = []
        for other in COMPARED[1:]:
            others = [scores(found, other, task, random[task]) for task in tasks]
            better.append("" if arm == other else f"{improvement_interval(each, others):.0%}")
        n_runs = str(sum(map(len, each)))
        rows.append([ARMS[arm].name, str(len(tasks)), n_runs, f"{interval(tuple(each), pooled, 0.95):.2f}", *better])
    than = ["better than SB3's defaults", "than these, normalized"]
    return markdown(["settings", "tasks", "runs", "score, tuned settings = 1", *than], rows)
