"""The pictures of a report: Optuna's, and two that it lacks."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import optuna
from matplotlib import pyplot as plt
from matplotlib import rc_context
from optuna.exceptions import ExperimentalWarning
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.visualization import matplotlib as visualization

from ppo_plus.zoo.plot import COLORS
from ppo_plus.zoo.tune.attributes import BASELINE, JOB
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import is_baseline, ranking
from ppo_plus.zoo.tune.verdict import TuningVerdict

#: Finished trials from which on parameters have importances: with fewer, too little varies.
N_RANKED = 4

#: The most important parameters, whose slices are shown.
N_SLICES = 4

BASELINE_COLORS = {"default": "black", "settings file": COLORS[1]}


def draw_all(trials: Sequence[FrozenTrial], plan: Plan, verdict: TuningVerdict, folder: Path) -> list[tuple[Path, str]]:
    """Draw the trials of a screening, and the confirmation, into a folder: the files and their captions. Pictures
    without data are left out."""
    pictures = []
    with rc_context(), warnings.catch_warnings(), plt.ioff():
        warnings.simplefilter("ignore", ExperimentalWarning)
        plt.style.use("ggplot")  # Optuna's
        for name, caption in chain(_confirmation(verdict), _search(trials), _curves(trials, verdict, plan)):
            pictures.append((folder / f"{name}.png", caption))
            plt.savefig(pictures[-1][0], dpi=120, bbox_inches="tight")
            plt.close()
    return pictures


#: Name and caption of a picture, which is the current figure.
Drawn = Iterator[tuple[str, str]]


def _confirmation(verdict: TuningVerdict) -> Drawn:
    """The returns on unseen seeds, with means and intervals."""
    named = {**verdict.baselines, **{finalist.name: finalist for finalist in verdict.finalists}}
    shown = {name: finalist for name, finalist in named.items() if finalist.scores}
    if not verdict.finalists or not shown:
        return
    _, axes = plt.subplots(figsize=(7.2, 0.9 + 0.5 * len(shown)))
    for row, (name, finalist) in enumerate(shown.items()):
        color = BASELINE_COLORS.get(name, COLORS[0])
        value, low, high = finalist.iqm
        axes.plot(finalist.scores, [row + 0.2] * len(finalist.scores), "o", color=color, alpha=0.4, mew=0)
        axes.errorbar(value, row, xerr=[[value - low], [high - value]], fmt="D", color=color, lw=2, capsize=5)
    axes.set(yticks=range(len(shown)), yticklabels=shown, ylim=(len(shown) - 0.4, -0.6), xlabel="mean return")
    caption = "The confirmation: a dot for each unseen seed; the interquartile mean with its 95 % interval."
    yield "confirmation", caption


def _search(trials: Sequence[FrozenTrial]) -> Drawn:
    """Optuna's pictures of the search."""
    searched = _searched(trials)
    if not ranking(searched.trials):
        return
    axes = visualization.plot_optimization_history(searched, target_name="score")
    for trial in ranking(trials):
        if is_baseline(trial):
            name = trial.user_attrs[BASELINE]
            axes.axhline(trial.values[0], color=BASELINE_COLORS[name], ls="--", label=name)
    axes.legend()
    yield "history", "The search: the score of each trial, and the best one so far; lines are baselines."
    names = list(searched.best_params)
    if len(ranking(searched.trials)) >= N_RANKED:
        visualization.plot_param_importances(searched, target_name="score")
        n_trials = len(ranking(searched.trials))
        yield "importances", f"Importances of the {len(names)} parameters (PED-ANOVA), from {n_trials} trials."
        names = list(get_param_importances(searched))
    visualization.plot_slice(searched, params=names[:N_SLICES], target_name="score")
    yield "slices", "The score over the sampled values of the most important parameters."


def _searched(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """The trials of a screening with the numbers that the report gives them, which an interruption does not change. The
    baselines only keep their numbers: they did not run with what was sampled."""
    study = optuna.create_study(direction="maximize")
    for trial in sorted(trials, key=lambda trial: trial.user_attrs[JOB]):
        study.add_trial(create_trial(state=TrialState.FAIL) if is_baseline(trial) else trial)
    return study


def _curves(trials: Sequence[FrozenTrial], verdict: TuningVerdict, plan: Plan) -> Drawn:
    """The evaluations of each trial; the best ones and the baselines stand out."""
    evaluated = [trial for trial in trials if trial.intermediate_values]
    if not evaluated:
        return
    _, axes = plt.subplots(figsize=(7.2, 3.8))
    best = [finalist.trial for finalist in verdict.finalists] or [t for t in ranking(trials) if not is_baseline(t)]
    colors = dict(zip([trial.user_attrs[JOB] for trial in best], COLORS[2:], strict=False))
    for trial in evaluated:
        number, baseline = trial.user_attrs[JOB], trial.user_attrs.get(BASELINE)
        line: dict[str, Any] = {"color": "grey", "alpha": 0.4, "label": "_other"}
        if baseline:
            line = {"color": BASELINE_COLORS[baseline], "label": baseline, "ls": "--"}
        elif number in colors:
            line = {"color": colors[number], "label": f"trial {number}"}
        for timesteps, returns in _by_seed(trial, plan):
            axes.plot(timesteps, returns, marker=".", **line)
            line["label"] = "_again"
    axes.set(xlabel="timesteps" + (", one seed after the other" if plan.n_seeds > 1 else ""), ylabel="mean return")
    axes.legend()
    yield "learning_curves", "Learning curves of all trials: the mean return of each evaluation."


def _by_seed(trial: FrozenTrial, plan: Plan) -> Iterator[tuple[list[int], list[float]]]:
    """The evaluations of a trial, cut where a run with another seed begins."""
    steps = sorted(trial.intermediate_values)
    for _, run in groupby(steps, lambda step: (step - 1) // plan.n_timesteps):
        timesteps = list(run)
        yield timesteps, [trial.intermediate_values[step] for step in timesteps]
