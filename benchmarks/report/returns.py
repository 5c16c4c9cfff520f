"""What the long runs reached: tables of runs and of settings, contenders compared over tasks, goals, and pictures.

Over tasks, a score is in units of what SB3's settings reach on its task (the interquartile mean of their runs).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ppo_plus.zoo.results import iqm, iqm_interval
from report.drawing import BLUE, GREEN, ORANGE, PURPLE, picture
from report.markdown import markdown
from report.plan import ARMS, GOALS, STAGES, TASKS, in_order, read, shared_arm
from report.results import RESULTS
from report.scores import N_INTERVAL, score
from report.statistics import improvement_interval, profile, ratio_interval

#: Earlier runs are in ``returns.jsonl.xz``.
FILE = RESULTS / "returns.jsonl"


#: Environment steps that one point of a curve is the mean of.
BIN = 20_000


def results(file: Path = FILE, stages: Iterable[str] = STAGES) -> list[dict[str, Any]]:
    """The results of some stages, as far as they are there."""
    return list(read(file, in_order(STAGES[stage] for stage in stages)).values())


#: What is compared: heading, and the name in a result.
MEASURES = {
    "last 100 training episodes": "last",
    "20 deterministic episodes": "deterministic",
    "20 sampled episodes": "stochastic",
}
#: Those that say most: what was learned while exploring, and what is used.
COMPARED = {heading: name for heading, name in MEASURES.items() if name != "stochastic"}


def reached(runs: Iterable[dict[str, Any]], measure: str) -> str:
    """What runs came to; nothing of one that was too short for an episode to end.

    :param measure: of :data:`MEASURES`
    """
    means = (run[measure]["mean"] for run in runs)
    return score([mean for mean in means if mean is not None])


def table(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each task and contender, tasks together, in the order in which tasks and contenders come."""
    results = list(results)
    tasks = list(dict.fromkeys(result["task"] for result in results))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda result: tasks.index(result["task"])):
        groups.setdefault((result["task"], result["arm"]), []).append(result)
    rows = []
    for (task, arm), runs in groups.items():
        scores = [reached(runs, name) for name in MEASURES.values()]
        rows.append([task, ARMS[arm].name if arm in ARMS else arm, str(len(runs)), *scores])
    return markdown(["task", "settings", "seeds", *MEASURES], rows)


REFERENCE, SHARED = "sb3-defaults", "mujoco-shared"
#: The tasks that chose the shared settings.
SEARCHED = ("HalfCheetah-v5", "Walker2d-v5", "Ant-v5")
#: Contenders of the pictures and of the comparison over tasks, and their colors.
CONTENDERS = {"sb3-defaults": ORANGE, "rl_zoo3": PURPLE, "trpo": GREEN, "mujoco": BLUE}
#: Runs by contender and task.
Runs = Mapping[str, Mapping[str, list[dict[str, Any]]]]
#: The stages with runs of the contenders and of the shared settings, none of which chose a setting.
REPORTED = ("baselines", "table", "shared")
#: Fewer runs of a task are not compared, though there are several tasks.
N_POOLED = 2


def report(file: Path = FILE) -> list[str]:
    """Contenders, how they compare, and goals: one table after another."""
    reported = results(file, REPORTED)
    tables = [contenders(reported), comparison(reported), *(goals(results(file), arm) for arm in GOALS)]
    return [line for table in tables for line in (*table, "")]


def grouped(results: Iterable[dict[str, Any]], arms: Iterable[str] = CONTENDERS) -> Runs:
    """By contender and task, those of some contenders."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {arm: {} for arm in arms}
    for result in results:
        if result["arm"] in found:
            found[result["arm"]].setdefault(result["task"], []).append(result)
    return {arm: by_task for arm, by_task in found.items() if by_task}


def shared(results: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By task, those with the settings that tasks share: where these are a task's only ones, those of the table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["arm"] == shared_arm(result["task"]):
            found.setdefault(result["task"], []).append(result)
    return found


def scores(runs: Runs, arm: str, measure: str, tasks: Iterable[str]) -> list[list[float]]:
    """What a contender's runs reach on each task.

    :param measure: the name in a result
    """
    return [[run[measure]["mean"] for run in runs[arm][task]] for task in tasks]


def enough(runs: Runs, arm: str) -> list[str]:
    """The tasks of which there are runs enough to compare a contender over several tasks."""
    return [task for task in TASKS if len(runs.get(arm, {}).get(task, [])) >= N_POOLED]


def contenders(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each task and contender, those of :data:`CONTENDERS`."""
    return table(result for result in results if result["arm"] in CONTENDERS)


def comparison(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each contender: over the tasks of which it and SB3's settings have enough runs, how many times their
    return it has, and how probable it is that a run of it is better than one of theirs. Two more lines
    compare the shared settings on the tasks that chose them, and on the others."""
    results = list(results)
    runs, rows = {**grouped(results), SHARED: shared(results)}, []
    lines = [(arm, "", TASKS) for arm in runs if arm != REFERENCE]
    lines += [(SHARED, ", where they were searched", SEARCHED)]
    lines += [(SHARED, ", elsewhere", tuple(task for task in TASKS if task not in SEARCHED))]
    for arm, where, among in lines:
        tasks = [task for task in enough(runs, arm) if task in enough(runs, REFERENCE) and task in among]
        if not tasks:
            continue
        cells = []
        for measure in COMPARED.values():
            own, others = (scores(runs, each, measure, tasks) for each in (arm, REFERENCE))
            cells.append(f"{ratio_interval(own, others):.2f}")
            cells.append(f"{improvement_interval(own, others):.0%}")
        n_runs = sum(len(runs[arm][task]) for task in tasks)
        rows.append([ARMS[arm].name + where, f"{len(tasks)} of {len(TASKS)}", str(n_runs), *cells])
    named = [name for title in COMPARED for name in (f"{title}, SB3's = 1", "better than SB3's")]
    return markdown(["settings", "tasks", "runs", *named], rows)


def goals(results: Iterable[dict[str, Any]], arm: str) -> list[str]:
    """A line for each task with a goal: what runs of a contender reach, and what they were meant to.

    :param arm: of :data:`GOALS`
    """
    own = [result for result in results if result["arm"] == arm]
    rows = []
    for task, goal in GOALS[arm].items():
        if runs := [result for result in own if result["task"] == task]:
            means = [run["deterministic"]["mean"] for run in runs]
            scores = [reached(runs, measure) for measure in COMPARED.values()]
            by = f"{sum(each >= goal for each in means)} of {len(runs)}"
            found = "yes" if iqm(np.array(means)) >= goal else "no"
            rows.append([task, f"{runs[0]['steps']:,}", str(len(runs)), *scores, str(goal), found, by])
    return markdown(["task", "steps", "seeds", *COMPARED, "goal", "reached", "by single runs"], rows)


def draw_curves(runs: Runs, path: Path) -> None:
    """The training return of each task: interquartile means over seeds and, where they are enough, 95 % intervals.

    :param runs: by contender and task
    :param path: the picture
    """
    with picture(path, 2, 3, width=2.7, height=2.1) as panels:
        for task, axes in zip(TASKS, panels.flat, strict=True):
            for arm, by_task in runs.items():
                if task in by_task:
                    _draw_curve(axes, by_task[task], ARMS[arm].name, CONTENDERS[arm])
            axes.set(title=task, xlim=(0, None))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}M")
        lines = {line.get_label(): line for axes in panels.flat for line in axes.lines}
        figure = panels[0, 0].figure
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)


def _draw_curve(axes: Any, runs: list[dict[str, Any]], label: str, color: str) -> None:
    # What all of them have: runs of fewer steps have a shorter curve.
    steps = np.array(min((run["curve"]["steps"] for run in runs), key=len))
    returns = np.array([run["curve"]["return"][: len(steps)] for run in runs], dtype=float)
    # The last point may be of a few steps only.
    has = np.isfinite(returns).all(axis=0) & (steps % BIN == 0)
    if not has.any():
        return
    bands, x = np.array([iqm_interval(column) for column in returns[:, has].T]), steps[has] * 1e-6
    axes.plot(x, bands[:, 0], color=color, label=label, linewidth=1)
    if len(runs) >= N_INTERVAL:
        axes.fill_between(x, bands[:, 1], bands[:, 2], color=color, alpha=0.2, linewidth=0)


def draw_profile(runs: Runs, path: Path) -> None:
    """Which part of the runs reaches, in deterministic episodes, how many times what the reference's interquartile mean
    is; of contenders with enough runs of all tasks of which it has enough. Bands are of the contenders' seeds: the unit
    is taken as exact."""
    tasks = enough(runs, REFERENCE)
    of = {
        arm: [np.array(each) for each in scores(runs, arm, "deterministic", tasks)]
        for arm in runs
        if set(tasks) <= set(enough(runs, arm))
    }
    units = [iqm(each) for each in of[REFERENCE]]
    shown = {arm: [each / unit for each, unit in zip(own, units, strict=True)] for arm, own in of.items()}
    thresholds = np.linspace(0, np.quantile(np.concatenate(sum(shown.values(), [])), 0.98), 100)
    with picture(path) as axes:
        for arm, each in shown.items():
            label, color = ARMS[arm].name, CONTENDERS[arm]
            part, low, high = profile(each, list(thresholds)).T
            axes.plot(thresholds, part, color=color, label=label)
            axes.fill_between(thresholds, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set(xlabel="return, SB3's = 1", ylabel="runs that reach it", xlim=(0, None), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(frameon=False)
