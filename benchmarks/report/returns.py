"""What the long runs reached: tables of runs and of settings, contenders compared over tasks, goals, and pictures.

Over tasks, a score is in units of what SB3's settings reach on its task (the interquartile mean of their runs).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ppo_plus.zoo.results import Estimate, iqm, iqm_interval
from report.drawing import BLUE, GREEN, ORANGE, PURPLE, picture
from report.markdown import markdown
from report.plan import (
    BEFORE_ARMS,
    GOALS,
    NAMES,
    OVERRIDES,
    RECIPE_ARMS,
    SCREENED,
    SCREENS,
    STAGES,
    TASKS,
    Job,
    in_order,
    read,
    shared_arm,
)
from report.results import RESULTS
from report.scores import N_INTERVAL, score
from report.statistics import improvement_interval, profile, ratio_interval

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
        rows.append([task, NAMES.get(arm, arm), str(len(runs)), *scores])
    return markdown(["task", "contender", "seeds", *MEASURES], rows)


def effects_table(results: Iterable[dict[str, Any]], name: str) -> list[str]:
    """What the runs of a screening reach on average; then a line for each setting: by which part of that it changes the
    return.

    :param results: of the part
    :param name: of :data:`SCREENS`
    """
    screen = SCREENS[name]
    # As the runs are in order: all arms with the first seed, then with the next.
    design = replace(screen.design, levels=np.tile(screen.design.levels, (screen.n_seeds, 1)))
    jobs = in_order([STAGES[name]])
    found = {Job(result["arm"], result["task"], result["seed"]): result for result in results}

    def scores(measure: str) -> np.ndarray:
        each = [found[job][measure]["mean"] if job in found else np.nan for job in jobs]
        return np.reshape(each, (len(design.levels), len(SCREENED)))

    def effects(scores: np.ndarray) -> list[str]:
        each = (Estimate(*row) for row in design.effects(scores))
        return [f"{effect:+.0%}" if np.isfinite(effect.low) else "" for effect in each]

    measured = {measure: scores(measure) for measure in COMPARED.values()}
    last = measured["last"]
    means = [f"{np.nanmean(column):.0f}" if np.isfinite(column).any() else "" for column in last.T]
    columns = {task: [mean, *effects(last[:, [i]])] for i, (task, mean) in enumerate(zip(SCREENED, means, strict=True))}
    columns |= {f"all three, {heading}": ["", *effects(measured[measure])] for heading, measure in COMPARED.items()}
    names = ["*mean of all runs*", *(factor.name for factor in design.factors)]
    rows = [list(row) for row in zip(names, *columns.values(), strict=True)]
    return [*markdown(["setting", *columns], rows), "", f"{sum(job in found for job in jobs)} of {len(jobs)} runs"]


REFERENCE, SHARED, RECIPE, BEFORE = "sb3-defaults", "mujoco-shared", "recipe", "before"
#: Contenders of the pictures and of the comparison over tasks, and their colors.
CONTENDERS = {"sb3-defaults": ORANGE, "rl_zoo3": PURPLE, "trpo": GREEN, "mujoco": BLUE}
#: Colors of these contenders, of the recipe, and of the entry as it was before.
COLORS = CONTENDERS | {RECIPE: ORANGE, BEFORE: BLUE}
#: Runs by contender and task.
Runs = Mapping[str, Mapping[str, list[dict[str, Any]]]]
#: The parts of the campaign by whose runs nothing was chosen, but whether tasks keep settings of their own.
REPORTED = ("baselines", "table", "overrides")
#: Fewer runs of a task are not compared, though there are several tasks.
N_POOLED = 2


def report(file: Path = FILE) -> list[str]:
    """Contenders, how they compare, what a task's own settings gain, and goals: one table after another."""
    reported, all_results = results(file, REPORTED), [*results(file), *recipe_results(file)]
    tables = [
        contenders(reported),
        comparison(reported),
        each_task(reported),
        gains(results(file, ["overrides"])),
        recipe(recipe_runs(file)),
        *(goals(all_results, arm) for arm in GOALS),
    ]
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
    """The contenders beside SB3's settings, over all tasks: see :func:`over_tasks`."""
    results = list(results)
    return over_tasks({**grouped(results), SHARED: shared(results)}, REFERENCE, "SB3's")


def over_tasks(runs: Runs, reference: str, whose: str) -> list[str]:
    """A line for each contender: over the tasks of which it and the reference have enough runs, with settings that
    differ, how many times the reference's return it has, and how probable it is that a run of it is better than one of
    the reference.

    :param runs: those of the reference, too
    :param whose: the reference in the genitive, such as "SB3's"
    """
    rows = []
    for arm in runs:
        tasks = [
            task
            for task in enough(runs, arm)
            if task in enough(runs, reference)
            and runs[arm][task][0]["settings"] != runs[reference][task][0]["settings"]
        ]
        if not tasks:
            continue
        cells = []
        for measure in COMPARED.values():
            own, others = (scores(runs, each, measure, tasks) for each in (arm, reference))
            cells.append(f"{ratio_interval(own, others):.2f}")
            cells.append(f"{improvement_interval(own, others):.0%}")
        n_runs = sum(len(runs[arm][task]) for task in tasks)
        rows.append([NAMES[arm], f"{len(tasks)} of {len(TASKS)}", str(n_runs), *cells])
    named = [name for title in COMPARED for name in (f"{title}, {whose} = 1", f"better than {whose}")]
    return markdown(["contender", "tasks", "runs", *named], rows)


def each_task(results: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each task: how many times the reference's return the settings that tasks share have, and those of the
    task itself where it has some; of runs that are enough for an interval."""
    results = list(results)
    runs, rows = {**grouped(results), SHARED: shared(results)}, []
    for task in TASKS:
        for arm in (SHARED, "mujoco") if shared_arm(task) == SHARED else (SHARED,):
            if min(len(runs.get(each, {}).get(task, [])) for each in (arm, REFERENCE)) >= N_INTERVAL:
                cells = []
                for measure in COMPARED.values():
                    own, reference = (scores(runs, each, measure, [task]) for each in (arm, REFERENCE))
                    cells.append(f"{ratio_interval(own, reference):.2f}")
                held_out = arm == SHARED and task not in SCREENED
                rows.append([task, "yes" if held_out else "no", NAMES[arm], *cells])
    return markdown(["task", "held out", "settings", *(f"{title}, SB3's = 1" for title in COMPARED)], rows)


def gains(results: Iterable[dict[str, Any]]) -> list[str]:
    """Two lines for each of a task's own settings that were measured: what runs reach with these and with the shared
    settings, and the ratio of the two; chance does not explain a gain whose interval excludes 1."""
    pairs = [(task, arm, shared_arm(task)) for task, own in OVERRIDES.items() for arm in own]
    return ratios(results, pairs, "the shared settings")


def ratios(results: Iterable[dict[str, Any]], pairs: Iterable[tuple[str, str, str]], others: str) -> list[str]:
    """Two lines for each pair: what runs of the two contenders reach, and the ratio of the two.

    :param pairs: a task and two contenders
    :param others: what the second ones are called
    """
    results, rows = list(results), []
    for task, arm, other in pairs:
        runs = [[run for run in results if (run["arm"], run["task"]) == (each, task)] for each in (arm, other)]
        if min(map(len, runs)) < N_POOLED:
            continue
        for title, measure in COMPARED.items():
            first, second = ([run[measure]["mean"] for run in each] for each in runs)
            cells = [score(first), score(second), f"{ratio_interval([first], [second]):.2f}"]
            rows.append([task, NAMES[arm], title, f"{len(first)} and {len(second)}", *cells])
    return markdown(["task", "contender", "return of", "seeds", "the contender", others, "times as much"], rows)


def renamed(results: Iterable[dict[str, Any]], arms: Mapping[str, str], name: str) -> list[dict[str, Any]]:
    """The results of one contender per task, all with the same name as the contender.

    :param arms: by task, the contender
    """
    return [{**result, "arm": name} for result in results if result["arm"] == arms[result["task"]]]


def recipe_results(file: Path = FILE) -> list[dict[str, Any]]:
    """The runs with the recipe of parallel simulators, of each task those of its settings, with "recipe" as the
    contender."""
    return renamed(results(file, ["table", "parallel-table"]), RECIPE_ARMS, RECIPE)


def recipe_runs(file: Path = FILE) -> Runs:
    """The runs with the recipe, and with the entry as it was before, when Humanoid had the shared settings."""
    entry = renamed(results(file, ["table", "overrides"]), BEFORE_ARMS, BEFORE)
    return grouped([*entry, *recipe_results(file)], [BEFORE, RECIPE])


def recipe(runs: Runs) -> list[str]:
    """The recipe beside the entry: each task, an empty line, and all tasks together.

    :param runs: of :func:`recipe_runs`
    """
    every = [run for by_task in runs.values() for each in by_task.values() for run in each]
    tasks = ratios(every, [(task, RECIPE, BEFORE) for task in TASKS], NAMES[BEFORE])
    return [*tasks, "", *over_tasks(runs, BEFORE, "the entry's")]


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


def draw_curves(runs: Runs, path: Path, over_seconds: bool = False) -> None:
    """The training return of each task: interquartile means over seeds and, where they are enough, 95 % intervals.

    :param runs: by contender and task
    :param path: the picture
    :param over_seconds: over the CPU time of training, on average over the seeds, instead of over steps
    """
    with picture(path, 2, 3, width=2.7, height=2.1) as panels:
        for task, axes in zip(TASKS, panels.flat, strict=True):
            for arm, by_task in runs.items():
                if task in by_task:
                    own = by_task[task]
                    per_step = np.mean([run["cpu_seconds"] / run["steps"] for run in own]) if over_seconds else 1e-6
                    _draw_curve(axes, own, per_step, NAMES[arm], COLORS[arm])
            axes.set(title=task, xlim=(0, None))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}{' s' if over_seconds else 'M'}")
        lines = {line.get_label(): line for axes in panels.flat for line in axes.lines}
        figure = panels[0, 0].figure
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)


def _draw_curve(axes: Any, runs: list[dict[str, Any]], per_step: float, label: str, color: str) -> None:
    # What all of them have: runs of fewer steps have a shorter curve.
    steps = np.array(min((run["curve"]["steps"] for run in runs), key=len))
    returns = np.array([run["curve"]["return"][: len(steps)] for run in runs], dtype=float)
    # The last point may be of a few steps only.
    has = np.isfinite(returns).all(axis=0) & (steps % BIN == 0)
    if not has.any():
        return
    bands, x = np.array([iqm_interval(column) for column in returns[:, has].T]), steps[has] * per_step
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
            label, color = NAMES[arm], COLORS[arm]
            part, low, high = profile(each, list(thresholds)).T
            axes.plot(thresholds, part, color=color, label=label)
            axes.fill_between(thresholds, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set(xlabel="return, SB3's = 1", ylabel="runs that reach it", xlim=(0, None), ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.legend(frameon=False)
