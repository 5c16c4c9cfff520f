"""The pictures of a report, in one style. Trials have the numbers that the report gives them."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.plot import COLORS
from ppo_plus.zoo.tune.jobs import JOB
from ppo_plus.zoo.tune.plan import Plan, counted
from ppo_plus.zoo.tune.stages import BASELINE, Study, is_baseline, ranking
from ppo_plus.zoo.tune.verdict import Finalist, Verdict

#: Inches and dots per inch: as wide as the text column of a README.
WIDTH, DPI = 7.2, 120

#: Slices side by side.
N_COLUMNS = 3

#: Finished trials from which on parameters have importances: with fewer, too little varies.
N_RANKED = 4

#: Finished trials per parameter below which importances come with a caution.
N_PER_PARAMETER = 10

BLUE, RED, GREEN, PURPLE, ORANGE = COLORS[:5]
GREY = "#9A9A9A"

#: Color and marker of the baselines.
BASELINES = {"default": ("black", "s"), "settings file": (RED, "D")}

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "legend.framealpha": 0.9,
    "legend.fontsize": 9,
    "lines.linewidth": 1.5,
}


class Picture(NamedTuple):
    """A picture that has been drawn.

    :param path: the file
    :param caption: what it shows
    """

    path: Path
    caption: str


def draw_all(study: Study, plan: Plan, verdict: Verdict, folder: Path) -> list[Picture]:
    """Draw a study. Pictures without data are left out.

    :param study: the study
    :param plan: its plan
    :param verdict: its verdict
    :param folder: where the pictures go
    """
    trials = study.screening.trials()
    importances = rank(study)
    with rc_context(STYLE):
        figures = [
            *_confirmation(verdict),
            *_history(trials, plan),
            *_curves(trials, verdict, plan),
            *_importances(importances, len(ranking(trials))),
            *_slices(trials, list(importances)),
        ]
        return [_save(figure, folder / f"{name}.png", caption) for name, figure, caption in figures]


def rank(study: Study) -> dict[str, float]:
    """The importances of the parameters, the highest first; empty if there are too few finished trials."""
    searched = study.screening.study()
    if len(searched.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < N_RANKED:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return get_param_importances(searched)


def caution(n_trials: int, n_parameters: int) -> str:
    """What to say about importances from few trials; empty if there are enough.

    :param n_trials: finished trials
    :param n_parameters: parameters of the search space
    """
    if n_trials >= N_PER_PARAMETER * n_parameters:
        return ""
    few = f"{counted(n_trials, 'finished trial')} for {counted(n_parameters, 'parameter')}"
    return f"Caution: {few}: a hint at most, no ranking."


#: Name of a picture, its figure and its caption.
Drawn = Iterator[tuple[str, Figure, str]]


def _confirmation(verdict: Verdict) -> Drawn:
    """The returns on unseen seeds, with means and intervals."""
    shown = {name: baseline for name, baseline in verdict.baselines.items() if baseline.scores}
    shown |= {finalist.name: finalist for finalist in verdict.finalists if finalist.scores}
    if not verdict.finalists or not shown:
        return
    figure, axes = _figure(0.9 + 0.5 * len(shown))
    winner = None if verdict.winner is None else verdict.finalists[verdict.winner].name
    for row, (name, finalist) in enumerate(shown.items()):
        _interval(axes, row, finalist, GREEN if name == winner else _color(name))
    axes.set(yticks=range(len(shown)), yticklabels=shown, ylim=(len(shown) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    _label(axes, x="mean return")
    won = f", {winner} (green) is the winner" if winner else ""
    yield (
        "confirmation",
        figure,
        f"The confirmation: a dot for each unseen seed; the interquartile mean with its 95 % interval{won}.",
    )


def _interval(axes: Axes, row: int, finalist: Finalist, color: str) -> None:
    """One line of the confirmation: all returns, and above them their mean with its interval."""
    value, low, high = finalist.iqm
    axes.plot(finalist.scores, [row + 0.2] * len(finalist.scores), "o", color=color, alpha=0.4, ms=5, mew=0)
    axes.plot(value, row - 0.12, "D", color=color, ms=8)
    axes.errorbar(value, row - 0.12, xerr=[[value - low], [high - value]], color=color, lw=2.5, capsize=6, capthick=2)
    axes.annotate(
        f"{finalist.iqm}", (1.02, row), xycoords=("axes fraction", "data"), va="center", annotation_clip=False
    )


def _history(trials: Sequence[FrozenTrial], plan: Plan) -> Drawn:
    """The score of each trial, and the best one so far."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not complete:
        return
    figure, axes = _figure(3.4)
    numbers, scores = _numbers(complete), [trial.values[0] for trial in complete]
    axes.step(numbers, np.maximum.accumulate(scores), where="post", color=BLUE, alpha=0.5, label="best so far")
    searched = [trial for trial in complete if not is_baseline(trial)]
    axes.plot(_numbers(searched), [trial.values[0] for trial in searched], "o", color=BLUE, label="finished")
    for trial in filter(is_baseline, complete):
        name = trial.user_attrs[BASELINE]
        color, marker = BASELINES[name]
        axes.plot(trial.user_attrs[JOB], trial.values[0], marker, color=color, label=name)
    for state, color, label in ((TrialState.PRUNED, GREY, "pruned"), (TrialState.FAIL, RED, "failed")):
        ended = _numbers([trial for trial in trials if trial.state == state])
        if ended:
            low = axes.get_xaxis_transform()
            axes.plot(ended, [0.02] * len(ended), "x", color=color, ms=5, transform=low, label=f"{label} (no score)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label(axes, x="trial", y=f"score: mean return of the\nlast {counted(plan.last_evals, 'evaluation')}")
    _legend(figure, axes)
    yield "history", figure, "The search: the score of each trial."


def _curves(trials: Sequence[FrozenTrial], verdict: Verdict, plan: Plan) -> Drawn:
    """The evaluations of each trial; the best ones and the baselines stand out."""
    evaluated = [trial for trial in trials if trial.intermediate_values]
    if not evaluated:
        return
    figure, axes = _figure(3.8)
    best = [finalist.trial for finalist in verdict.finalists] or [t for t in ranking(trials) if not is_baseline(t)]
    colors = dict(zip(_numbers(best), (BLUE, GREEN, PURPLE), strict=False))
    for trial in evaluated:
        number = trial.user_attrs[JOB]
        line: dict[str, Any] = {"color": GREY, "lw": 0.8, "alpha": 0.6, "zorder": 1}
        line["label"] = "other trials" if trial.state == TrialState.COMPLETE else "pruned or failed"
        line["ls"] = "-" if trial.state == TrialState.COMPLETE else ":"
        if is_baseline(trial):
            name = trial.user_attrs[BASELINE]
            line = {"color": BASELINES[name][0], "label": name, "lw": 2, "ls": "--", "zorder": 3}
        elif number in colors:
            line = {"color": colors[number], "label": f"trial {number}", "marker": "o", "ms": 3.5, "zorder": 2}
        for timesteps, returns in _by_seed(trial, plan):
            axes.plot(timesteps, returns, **{"marker": "." if len(returns) == 1 else None, **line})
    _label(axes, x="timesteps" + (", one seed after the other" if plan.n_seeds > 1 else ""), y="mean return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend(figure, axes)
    yield "learning_curves", figure, "Learning curves of all trials: the mean return of each evaluation."


def _by_seed(trial: FrozenTrial, plan: Plan) -> Iterator[tuple[list[int], list[float]]]:
    """The evaluations of a trial, cut where a run with another seed begins."""
    steps = sorted(trial.intermediate_values)
    for _, run in groupby(steps, lambda step: (step - 1) // plan.n_timesteps):
        timesteps = list(run)
        yield timesteps, [trial.intermediate_values[step] for step in timesteps]


def _importances(importances: dict[str, float], n_trials: int) -> Drawn:
    """How much of the spread of the scores each parameter explains."""
    if not importances:
        return
    figure, axes = _figure(1.0 + 0.24 * len(importances))
    shares = [100 * share for share in importances.values()]
    warning = caution(n_trials, len(importances))
    axes.barh(list(importances), shares, color=GREY if warning else BLUE)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if warning:
        axes.set_title(warning, color=RED, fontsize=10, loc="left")
    _label(axes, x="importance for the score, % of the total")
    yield "importances", figure, f"Importances of the parameters (PED-ANOVA). {warning}".strip()


def _slices(trials: Sequence[FrozenTrial], ranked: list[str]) -> Drawn:
    """The score over each parameter, the most important ones first."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    names = ranked or list(dict.fromkeys(name for trial in complete for name in trial.params))
    if not names:
        return
    n_rows = -(-len(names) // N_COLUMNS)
    figure = Figure(figsize=(WIDTH, 0.6 + 2.2 * n_rows), dpi=DPI, layout="constrained")
    grid = figure.subplots(n_rows, N_COLUMNS, sharey=True, squeeze=False)
    colors = ScalarMappable(Normalize(0, max(_numbers(complete)) or 1), "viridis")
    for axes, name in zip(grid.flat, names, strict=False):
        _slice(axes, name, complete, colors)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        _label(axes, y="score (mean return)")
    # Above, where it is seen first, and as wide as a row.
    figure.colorbar(
        colors, ax=grid, label="trial", location="top", aspect=60, pad=0.01, ticks=MaxNLocator(8, integer=True)
    )
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels) or 1, frameon=False)
    yield "slices", figure, "The score over the sampled values of each parameter, the most important ones first."


def _slice(axes: Axes, name: str, complete: Sequence[FrozenTrial], colors: ScalarMappable) -> None:
    """One parameter: a dot for each finished trial, colored by its number, and the baselines."""
    having = [trial for trial in complete if name in trial.params]
    place = _places(axes, [trial.distributions[name] for trial in having])
    searched = [trial for trial in having if not is_baseline(trial)]
    x, y = [place(trial.params[name]) for trial in searched], [trial.values[0] for trial in searched]
    axes.scatter(x, y, c=colors.to_rgba(np.array(_numbers(searched))), s=18, alpha=0.8, lw=0)
    for trial in filter(is_baseline, having):
        color, marker = BASELINES[trial.user_attrs[BASELINE]]
        # Only what the space can express: the rest was sampled, but did not run.
        fixed = trial.system_attrs.get("fixed_params", {})
        at = ([place(fixed[name])], [trial.values[0]]) if name in fixed else ([], [])
        axes.plot(*at, marker, color=color, ms=5, label=trial.user_attrs[BASELINE])
    _label(axes, x=name)


def _places(axes: Axes, distributions: Sequence[Any]) -> Callable[[Any], float]:
    """Set an axis up for a parameter.

    :param distributions: its distributions in all trials
    :return: where on the axis a value is
    """
    if not isinstance(distributions[0], CategoricalDistribution):
        if distributions[0].log:
            axes.set_xscale("log")
        return float
    choices = sorted({choice for item in distributions for choice in item.choices}, key=_order)
    axes.set_xticks(range(len(choices)), [str(choice) for choice in choices])
    if len(choices) * max(len(str(choice)) for choice in choices) > 20:
        axes.tick_params("x", rotation=35)
        for tick in axes.get_xticklabels():
            tick.set(ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(choices) - 0.5)
    return lambda value: choices.index(value)


def _order(choice: Any) -> tuple[bool, float, str]:
    """Numbers first, by size; then the rest, by name."""
    number = isinstance(choice, (int, float)) and not isinstance(choice, bool)
    return not number, choice if number else 0.0, str(choice)


def _figure(height: float) -> tuple[Figure, Axes]:
    # Without pyplot: it needs no display and leaves no global state.
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots()


def _numbers(trials: Iterable[FrozenTrial]) -> list[int]:
    return [trial.user_attrs[JOB] for trial in trials]


def _color(name: str) -> str:
    return BASELINES.get(name, (BLUE, "o"))[0]


def _label(axes: Axes, x: str = "", y: str = "") -> None:
    axes.set(**{key: text for key, text in (("xlabel", x), ("ylabel", y)) if text})  # type: ignore[arg-type]


def _legend(figure: Figure, axes: Axes) -> None:
    """A legend above the picture, each label once, however many lines have it."""
    handles = dict(reversed([*zip(*reversed(axes.get_legend_handles_labels()), strict=True)]))
    labels = list(reversed(handles))
    figure.legend([handles[label] for label in labels], labels, loc="outside upper left", ncols=5, frameon=False)


def _save(figure: Figure, path: Path, caption: str) -> Picture:
    figure.savefig(path, dpi=DPI)
    return Picture(path, caption)
