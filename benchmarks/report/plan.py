"""The plan of the long runs, read from ``benchmarks/arms.yml``: which contenders train on which tasks, with which
settings, and in which order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppo_plus.zoo.hyperparams import read_mapping
from report.results import ROOT, read_lines


@dataclass(frozen=True)
class Job:
    """One run: a contender, a task and a seed."""

    arm: str
    task: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm} {self.task} {self.seed}"


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed only."""

    arm: str
    task: str
    seeds: Sequence[int]


def in_order(stages: Iterable[Iterable[Cell]]) -> list[Job]:
    """All runs, each once: stage by stage, and within a stage the low seeds of every cell before the high ones, so that
    whenever it ends, every cell has about as many seeds."""
    jobs: list[Job] = []
    for stage in stages:
        # Sorting keeps the order of the cells.
        jobs += sorted((Job(cell.arm, cell.task, seed) for cell in stage for seed in cell.seeds), key=lambda j: j.seed)
    return list(dict.fromkeys(jobs))


def read(results: Path, jobs: Iterable[Job]) -> dict[Job, dict[str, Any]]:
    """The results of those runs that are done, in the order of the runs."""
    found = {Job(each["arm"], each["task"], each["seed"]): each for each in read_lines(results)}
    return {job: found[job] for job in jobs if job in found}


@dataclass(frozen=True)
class Arm:
    """A contender; ``arms.yml`` says what each value means."""

    name: str
    algorithm: str = "ppo_plus.PPO_Plus"
    entry: str | None = None
    entries: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: int | None = None
    vec_env: str = "dummy"
    goals: dict[str, float] = field(default_factory=dict)

    def entry_of(self, task: str) -> str | None:
        """The name of a task's entry."""
        return self.entries.get(task, self.entry and self.entry.format(task=task))


def cells(lines: Iterable[dict[str, Any]]) -> list[Cell]:
    """The cells of a stage.

    :param lines: each with contenders, tasks, and the first and the last seed
    """
    found = []
    for line in lines:
        first, last = map(int, line["seeds"].split("-"))
        found += [Cell(arm, task, range(first, last + 1)) for arm in line["arms"] for task in line["tasks"]]
    return found


_PLAN = read_mapping(ROOT / "benchmarks" / "arms.yml")
ARMS = {arm: Arm(**values) for arm, values in _PLAN["arms"].items()}
STAGES = {stage: cells(lines) for stage, lines in _PLAN["stages"].items()}
#: By contender and task, what runs were meant to reach.
GOALS = {name: arm.goals for name, arm in ARMS.items() if arm.goals}
TASKS = tuple(GOALS["mujoco"])


def shared_arm(task: str) -> str:
    """The contender that has the settings that MuJoCo's tasks share: "mujoco" where these are the task's entry."""
    return "mujoco-shared" if any(cell.task == task for cell in STAGES["shared"]) else "mujoco"
