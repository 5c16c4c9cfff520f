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
from ppo_plus.zoo.tune.jobs import JOB
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BASELINE, is_baseline, ranked_candidates, ranking
from ppo_plus.zoo.tune.verdict import TuningVerdict

#: Finished trials that importances of parameters need: with fewer, too little varies.
N_RANKED = 4

#: How many parameters have a slice, the most important ones first.
N_SLICES = 4

BASELINE_COLORS = {"default": "black", "settings file": COLORS[1]}


def draw_all(trials: Sequence[FrozenTrial], plan: Plan, verdict: TuningVerdict, folder: Path) -> list[tuple[Path, str]]:
    """Draw the trials of a screening, and the confirmation, into a folder: the files and their captions. Pictures
    without data are left out."""
    pictures = []
    # Optuna's functions set the style "ggplot" for all figures.
    with rc_context(), warnings.catch_warnings(), plt.ioff():
        warnings.simplefilter("ignore", ExperimentalWarning)
        plt.style.use("ggplot")
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
    yield "confirmation", "Confirmation: a dot for each unseen seed; interquartile means with their 95 % intervals."


def _search(trials: Sequence[FrozenTrial]) -> Drawn:
    """Optuna's pictures of the search."""
    n_finished = len(ranked_candidates(trials))
    if not n_finished:
        return
    # The trials have the numbers of the report, which an interruption does not change. Baselines did not run with what
    # was sampled for them.
    searched = optuna.create_study(direction="maximize")
    for trial in sorted(trials, key=lambda trial: trial.user_attrs[JOB]):
        searched.add_trial(create_trial(state=TrialState.FAIL) if is_baseline(trial) else trial)
    axes = visualization.plot_optimization_history(searched, target_name="score")
    for trial in filter(is_baseline, ranking(trials)):
        name = trial.user_attrs[BASELINE]
        axes.axhline(trial.values[0], color=BASELINE_COLORS[name], ls="--", label=name)
    axes.legend()
    yield "history", "Search: the score of each trial, and the best score so far. The dashed lines are the baselines."
    names = list(searched.best_params)
    if n_finished >= N_RANKED:
        visualization.plot_param_importances(searched, target_name="score")
        yield "importances", f"Importances of the {len(names)} parameters (PED-ANOVA), from {n_finished} trials."
        names = list(get_param_importances(searched))
    visualization.plot_slice(searched, params=names[:N_SLICES], target_name="score")
    yield "slices", "The score of each trial over the sampled values of the most important parameters."


def _curves(trials: Sequence[FrozenTrial], verdict: TuningVerdict, plan: Plan) -> Drawn:
    """The evaluations of each trial; the best ones and the baselines stand out."""
    evaluated = [trial for trial in trials if trial.intermediate_values]
    if not evaluated:
        return
    _, axes = plt.subplots(figsize=(7.2, 3.8))
    best = [finalist.trial for finalist in verdict.finalists] or ranked_candidates(trials)
    colors = dict(zip([trial.user_attrs[JOB] for trial in best], COLORS[2:], strict=False))
    for trial in evaluated:
        number, baseline = trial.user_attrs[JOB], trial.user_attrs.get(BASELINE)
        line: dict[str, Any] = {"color": "grey", "alpha": 0.4, "label": "_other"}
        if baseline:
            line = {"color": BASELINE_COLORS[baseline], "label": baseline, "ls": "--"}
        elif number in colors:
            line = {"color": colors[number], "label": f"trial {number}"}
        returns = dict(sorted(trial.intermediate_values.items()))
        for _, run in groupby(returns, lambda step: (step - 1) // plan.n_timesteps):
            timesteps = list(run)
            axes.plot(timesteps, [returns[step] for step in timesteps], marker=".", **line)
            line["label"] = "_again"
    axes.set(xlabel="timesteps" + (", one seed after the other" if plan.n_seeds > 1 else ""), ylabel="mean return")
    axes.legend()
    yield "learning_curves", "Learning curves: the mean return at each evaluation. Grey lines are the other trials."
