"""What the MuJoCo campaign found: contenders beside each other, over all tasks, in tables and pictures.

    python scripts/results_mujoco.py                                 # the tables
    python scripts/results_mujoco.py --draw docs/pictures            # mujoco_curves.svg, mujoco_profile.svg

From what ``scripts/learning_returns.py`` left in ``docs/benchmarks/returns``. Over tasks, a score is in units of what
SB3's settings reach on its task (the interquartile mean of their runs).
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from campaign import in_order, read  # the scripts beside this one
from drawing import BLUE, GREEN, ORANGE, PURPLE, picture
from learning_returns import FOLDER, MEASURES, STAGES, TASKS, table
from markdown_table import markdown

from ppo_plus.zoo.tune.statistics import improvement_interval, iqm, iqm_interval, pooled_interval, profile

REFERENCE = "sb3-defaults"
#: Contenders of the pictures and of the comparison over tasks: what they are called, and their color.
CONTENDERS = {
    "sb3-defaults": ("SB3's settings", ORANGE),
    "yaml": ("rl_zoo3's settings", PURPLE),
    "trpo": ("TRPO (sb3-contrib)", GREEN),
    "mujoco": ("PPO_Plus, `mujoco`", BLUE),
}
#: Runs by contender and task.
Runs = Mapping[str, Mapping[str, list[dict[str, Any]]]]
#: Fewer runs of a task have no interval worth drawing.
N_BAND = 3


def grouped(results: Iterable[dict[str, Any]]) -> Runs:
    """By contender and task, those of :data:`CONTENDERS`."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {arm: {} for arm in CONTENDERS}
    for result in results:
        if result["arm"] in found:
            found[result["arm"]].setdefault(result["task"], []).append(result)
    return {arm: by_task for arm, by_task in found.items() if by_task}


def relative(runs: Runs, arm: str, measure: str, tasks: Iterable[str]) -> list[list[float]]:
    """The scores of a contender's runs on each task, in units of what the reference reaches.

    :param measure: the name in a result
    """
    units = {task: float(iqm(np.array(_scores(runs[REFERENCE][task], measure)))) for task in tasks}
    return [[score / unit for score in _scores(runs[arm][task], measure)] for task, unit in units.items()]


def _scores(runs: Iterable[dict[str, Any]], measure: str) -> list[float]:
    return [run[measure]["mean"] for run in runs]


def comparison(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each contender: over the tasks that both have, how much of the reference's return it has, and how
    probable it is that a run of it is better than one of the reference."""
    runs = grouped(results)
    rows = []
    for arm in runs:
        tasks = [task for task in TASKS if task in runs[arm] and task in runs.get(REFERENCE, {})]
        if not tasks:
            continue
        cells = []
        for measure in ("last", "deterministic"):
            own, reference = (relative(runs, each, measure, tasks) for each in (arm, REFERENCE))
            better = improvement_interval(own, reference)
            ratio = pooled_interval(own)
            cells.append(f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
            cells.append("" if arm == REFERENCE else f"{better.value:.0%} [{better.low:.0%}, {better.high:.0%}]")
        rows.append([CONTENDERS[arm][0], str(len(tasks)), str(sum(len(runs[arm][task]) for task in tasks)), *cells])
    named = [[f"{title}, SB3's = 1", "better than SB3's"] for title in list(MEASURES)[:2]]
    return markdown(["contender", "tasks", "runs", *sum(named, [])], rows)


def draw_curves(runs: Runs, path: Path) -> None:
    """The training return of each task: interquartile means over seeds and, of three or more, 95 % intervals."""
    with picture(path, 2, 3, width=2.7, height=2.1) as panels:
        for task, axes in zip(TASKS, panels.flat, strict=True):
            for arm, by_task in runs.items():
                if task in by_task:
                    _draw_curve(axes, by_task[task], *CONTENDERS[arm])
            axes.set(title=task, xlim=(0, None))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}M")
        lines = {line.get_label(): line for axes in panels.flat for line in axes.lines}
        panels[0, 0].legend(lines.values(), lines.keys(), frameon=False, fontsize=7)


def _draw_curve(axes: Any, runs: list[dict[str, Any]], label: str, color: str) -> None:
    steps = np.array(runs[0]["curve"]["steps"])
    returns = np.array([run["curve"]["return"] for run in runs], dtype=float)
    has = np.isfinite(returns).all(axis=0)
    bands = np.array([iqm_interval(column) for column in returns[:, has].T])
    axes.plot(steps[has], bands[:, 0], color=color, label=label, linewidth=1)
    if len(runs) >= N_BAND:
        axes.fill_between(steps[has], bands[:, 1], bands[:, 2], color=color, alpha=0.2, linewidth=0)


def draw_profile(runs: Runs, path: Path, measure: str = "deterministic") -> None:
    """Which part of the runs reaches how many times what the reference reaches; of contenders with all its tasks."""
    tasks = list(runs[REFERENCE])
    scores = {arm: relative(runs, arm, measure, tasks) for arm, by_task in runs.items() if {*tasks} <= {*by_task}}
    thresholds = np.linspace(0, np.quantile(np.concatenate([sum(each, []) for each in scores.values()]), 0.98), 100)
    with picture(path) as axes:
        for arm, each in scores.items():
            label, color = CONTENDERS[arm]
            part, low, high = profile(each, list(thresholds)).T
            axes.plot(thresholds, part, color=color, label=label)
            axes.fill_between(thresholds, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set(xlabel="return, SB3's = 1", ylabel="runs that reach it", xlim=(0, None), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw the pictures there")
    arguments = parser.parse_args()
    results = list(read(arguments.folder, in_order(STAGES.values())).values())
    if arguments.draw:
        runs = grouped(results)
        draw_curves(runs, arguments.draw / "mujoco_curves.svg")
        draw_profile(runs, arguments.draw / "mujoco_profile.svg")
    else:
        print(
            "\n".join([*table(result for result in results if result["arm"] in CONTENDERS), "", *comparison(results)])
        )


if __name__ == "__main__":
    main()
