"""What a study leaves in its folder: pictures, a table of its trials, and a report."""

import csv
import platform
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import optuna
import yaml
from matplotlib.figure import Figure
from optuna.exceptions import ExperimentalWarning
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots

from ppo_plus.zoo.tune.export import entry_path, export, versions
from ppo_plus.zoo.tune.jobs import JOB, why_failed
from ppo_plus.zoo.tune.plan import Task, counted
from ppo_plus.zoo.tune.stages import BASELINE, SCORES, SETTINGS, Study, ranking, score_of, stage_names
from ppo_plus.zoo.tune.verdict import Finalist, Verdict, decide

#: Trials that the report shows, and parameters in each picture of slices.
N_SHOWN, N_SLICES = 10, 6

#: Finished trials from which on parameters are ranked: with fewer, nothing varies.
N_RANKED = 4

#: The file that says whose report a folder has: the study's id.
OWNER = "study.id"


def check_folder(study: Study, folder: Path) -> None:
    """Keep a study's report from being overwritten by another one's.

    :param study: the study, which need not exist yet
    :param folder: where its report shall go
    :raises ValueError: the report of another study is there
    """
    owner = folder / OWNER
    if owner.is_file() and owner.read_text().strip() != study.id:
        raise ValueError(
            f"{folder} has the report of another study than {study.name!r} of this storage: give the storage of that "
            "one to go on with it, or choose another folder (-f) or --study-name"
        )


def write_report(study: Study, task: Task, folder: Path) -> Verdict:
    """Write everything that a study has found into a folder: ``report.md``, ``trials.csv``, pictures, and the winner's
    entry, if there is a winner.

    :param study: the study, finished or not
    :param task: its task
    :param folder: the folder
    :return: the verdict
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER).write_text(f"{study.id}\n")
    verdict = decide(study, task.plan)
    entry = entry_path(task, folder)
    exported = export(verdict, task, study.name, entry)
    _write_table(study.screening.trials(), folder / "trials.csv")
    pictures = [*_draw_all(study.screening.study(), folder), *_draw_confirmation(verdict, folder)]
    parts = [
        *_summary(study, task, verdict),
        *_confirmation(verdict),
        *(_export(entry, exported)),
        *_trials(study),
        *_pictures(pictures),
        *_set_up(task),
    ]
    (folder / "report.md").write_text("\n".join(parts) + "\n")
    return verdict


def _write_table(trials: list[FrozenTrial], path: Path) -> None:
    """All trials of the screening, a line for each: how far it got, and the settings that it ran with."""
    settings = [trial.user_attrs.get(SETTINGS, {}) for trial in trials]
    names = sorted(set().union(*settings))
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["trial", "state", "score", "timesteps", "last evaluation", *names])
        for trial, ran in zip(trials, settings, strict=True):
            last = trial.last_step
            evaluated = None if last is None else trial.intermediate_values[last]
            row = [trial.user_attrs[JOB], trial.state.name, score_of(trial), last, evaluated]
            table.writerow([*row, *(ran.get(name, "") for name in names)])


def _summary(study: Study, task: Task, verdict: Verdict) -> Iterator[str]:
    yield f"# Tuning {task.experiment.env_id}\n"
    yield f"{verdict}\n"
    yield "| stage | runs | finished | pruned | failed | timesteps each |"
    yield "|---|---|---|---|---|---|"
    for name, jobs in stage_names(study):
        trials = jobs.trials()
        counts = [sum(trial.state == state for trial in trials) for state in (TrialState.COMPLETE, TrialState.PRUNED)]
        failed = sum(trial.state == TrialState.FAIL for trial in trials)
        steps = task.plan.n_timesteps * (task.plan.n_seeds if name == "screening" else 1)
        yield f"| {name} | {len(trials)} | {counts[0]} | {counts[1]} | {failed} | {steps:,} |"
    yield ""


def _confirmation(verdict: Verdict) -> Iterator[str]:
    if verdict.default is None:
        return
    yield "## Confirmation\n"
    yield (
        "Interquartile means over the runs on unseen seeds, with 95 % percentile bootstrap intervals (10,000 "
        "resamples). The gain is the difference to the default; its interval has "
        f"{100 * verdict.confidence:.1f} % confidence, so that with "
        f"{counted(len(verdict.finalists), 'comparison')} the chance of a wrong winner is at most 5 %. "
        "Confirmed is the highest mean whose gain is above zero with its whole interval. "
        "What failed on any seed is not confirmed.\n"
    )
    yield "| settings | return, IQM | gain | failed runs | returns |"
    yield "|---|---|---|---|---|"
    yield _row(verdict.default, "")
    for index, (finalist, gain) in enumerate(zip(verdict.finalists, verdict.gains, strict=True)):
        yield _row(finalist, f"**{gain}**" if index == verdict.winner else str(gain or "none"))
    yield ""


def _row(finalist: Finalist, gain: str) -> str:
    returns = ", ".join(f"{score:.1f}" for score in finalist.scores)
    name = finalist.trial.user_attrs.get(BASELINE) or finalist.name
    return f"| {name} | {finalist.iqm if finalist.scores else 'none'} | {gain} | {finalist.n_failed} | {returns} |"


def _export(entry: Path, exported: bool) -> Iterator[str]:
    if exported:
        yield f"## {entry.name}\n"
        yield f"```yaml\n{entry.read_text()}```\n"


def _trials(study: Study) -> Iterator[str]:
    trials = study.screening.trials()
    ranked = ranking(trials)
    yield "## Screening\n"
    yield "| trial | score | seeds | settings |"
    yield "|---|---|---|---|"
    for trial in [*ranked[:N_SHOWN], *(trial for trial in ranked[N_SHOWN:] if BASELINE in trial.user_attrs)]:
        baseline = trial.user_attrs.get(BASELINE)
        name = f"{trial.user_attrs[JOB]}" + (f", {baseline}" if baseline else "")
        settings = ", ".join(f"{key}={_short(value)}" for key, value in sorted(trial.user_attrs[SETTINGS].items()))
        yield f"| {name} | {trial.values[0]:.2f} | {len(trial.user_attrs[SCORES])} | {settings} |"
    yield ""
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    yield from (f"- trial {trial.user_attrs[JOB]} failed: {why_failed(trial)}" for trial in failed)
    if failed:
        yield ""


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pictures(paths: list[Path]) -> Iterator[str]:
    if paths:
        yield "## Pictures\n"
        yield "Slices show the score over each parameter; the most important ones are in the first picture.\n"
        yield from (f"![{path.stem.replace('_', ' ')}]({path.name})" for path in paths)
        yield ""


def _set_up(task: Task) -> Iterator[str]:
    yield "## Settings of the study\n"
    yield f"{versions()}; Python {platform.python_version()}.\n"
    data = task.to_json()
    data["eval_freq"] = task.plan.eval_freq
    yield f"```yaml\n{yaml.safe_dump(data, sort_keys=False)}```"


def _draw_all(study: optuna.Study, folder: Path) -> list[Path]:
    """Optuna's pictures. What too few trials leave nothing to draw for is left out."""
    n_complete = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    drawings: dict[str, Callable[[optuna.Study], Any]] = {}
    if n_complete:
        drawings["history"] = plots.plot_optimization_history
        drawings["intermediate_values"] = plots.plot_intermediate_values
    if n_complete >= N_RANKED:
        drawings["importances"] = plots.plot_param_importances
    # The parameters that matter most come first; in one picture all of them could not be read.
    ranked = get_param_importances(study) if n_complete >= N_RANKED else {}
    names = list(ranked or dict.fromkeys(name for trial in study.get_trials(deepcopy=False) for name in trial.params))
    for number, first in enumerate(range(0, len(names), N_SLICES) if n_complete else (), 1):
        drawings[f"slices_{number}"] = partial(plots.plot_slice, params=names[first : first + N_SLICES])
    return [_draw(draw, study, folder / f"{name}.png") for name, draw in drawings.items()]


def _draw(draw: Callable[[optuna.Study], Any], study: optuna.Study, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        # A parameter with one value has no width.
        warnings.filterwarnings("ignore", "Attempting to set identical")
        axes = np.ravel(draw(study))
    figure = axes[0].figure
    if path.stem == "intermediate_values" and axes[0].get_legend() is not None:
        # One entry per trial would hide the picture.
        axes[0].get_legend().remove()
    if path.stem.startswith("slices"):
        for axis in axes:
            axis.tick_params("x", rotation=30)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    plt.close(figure)
    return path


def _draw_confirmation(verdict: Verdict, folder: Path) -> list[Path]:
    """Every return of the confirmation, and the interquartile means with their intervals."""
    shown = [finalist for finalist in (verdict.default, *verdict.finalists) if finalist is not None and finalist.scores]
    if not shown:
        return []
    figure = Figure(figsize=(8, 1 + 0.6 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for row, finalist in enumerate(reversed(shown)):
        iqm = finalist.iqm
        axes.plot(finalist.scores, [row] * len(finalist.scores), "o", color="C0", alpha=0.3)
        axes.errorbar(iqm.value, row, xerr=[[iqm.value - iqm.low], [iqm.high - iqm.value]], fmt="|", color="C1", lw=3)
    names = [finalist.trial.user_attrs.get(BASELINE) or finalist.name for finalist in reversed(shown)]
    axes.set(yticks=range(len(shown)), yticklabels=names, xlabel="return on unseen seeds; IQM with 95 % interval")
    axes.grid(alpha=0.3, axis="x")
    path = folder / "confirmation.png"
    figure.savefig(path, dpi=100)
    return [path]
