"""What a study leaves in its folder: a report, a table of its trials, pictures, and the winner's entry."""

import csv
import io
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from ppo_plus.saving.format.atomic import write_text
from ppo_plus.zoo.tune.export import entry_path, export, versions
from ppo_plus.zoo.tune.jobs import JOB, why_failed
from ppo_plus.zoo.tune.pictures import Picture, draw_all
from ppo_plus.zoo.tune.plan import counted
from ppo_plus.zoo.tune.stages import BASELINE, SCORES, SETTINGS, Study, ranking, score_of, stage_names
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.verdict import PHRASES, Finalist, TuningVerdict, decide

#: Trials that the report shows.
N_SHOWN = 10

#: The file with the id of the study whose report a folder has.
OWNER = "study.id"


def check_folder(study: Study, folder: Path) -> None:
    """Check that a folder does not have the report of another study.

    :param study: the study, which need not exist yet
    :param folder: where its report will go
    :raises ValueError: the folder has the report of another study
    """
    owner = folder / OWNER
    if owner.is_file() and owner.read_text().strip() != study.id:
        raise ValueError(
            f"{folder} has the report of another study than {study.name!r} of this storage: use that study's --storage "
            "to resume it, or choose another folder (-f) or --study-name"
        )


def write_report(study: Study, task: TuningTask, folder: Path) -> TuningVerdict:
    """Write the results of a study into a folder: ``report.md``, ``trials.csv``, pictures, and the winner's entry if
    there is a winner.

    :param study: the study, finished or not
    :return: the verdict
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / OWNER, f"{study.id}\n")
    verdict = decide(study, task.plan)
    entry = entry_path(task, folder)
    exported = export(verdict, task, study.name, entry)
    _write_table(study.screening.trials(), folder / "trials.csv")
    pictures = draw_all(study, task.plan, verdict, folder)
    parts = [
        *_summary(study, task, verdict),
        *_confirmation(verdict),
        *_export(entry, exported),
        *_trials(study),
        *_pictures(pictures),
        *_set_up(task),
    ]
    write_text(folder / "report.md", "\n".join(parts) + "\n")
    return verdict


def _write_table(trials: list[FrozenTrial], path: Path) -> None:
    """A line for each trial of the screening: how far it got, and its settings."""
    settings = [trial.user_attrs.get(SETTINGS, {}) for trial in trials]
    names = sorted(set().union(*settings))
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["trial", "state", "score", "timesteps", "last evaluation", *names])
    for trial, ran in zip(trials, settings, strict=True):
        last = trial.last_step
        evaluated = None if last is None else trial.intermediate_values[last]
        row = [trial.user_attrs[JOB], trial.state.name, score_of(trial), last, evaluated]
        table.writerow([*row, *(ran.get(name, "") for name in names)])
    write_text(path, text.getvalue())


def _summary(study: Study, task: TuningTask, verdict: TuningVerdict) -> Iterator[str]:
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


def _confirmation(verdict: TuningVerdict) -> Iterator[str]:
    if not verdict.finalists:
        return
    baselines = list(verdict.baselines)
    yield "## Confirmation\n"
    yield (
        "Interquartile means over the runs on unseen seeds, with 95 % percentile bootstrap intervals (10,000 "
        f"resamples). A gain is the difference to a baseline ({' or '.join(PHRASES[name] for name in baselines)}); "
        f"its interval has {100 * verdict.confidence:.1f} % confidence, so that with "
        f"{counted(len(verdict.finalists), 'finalist')} the chance of a winner that is no better than a baseline is at "
        "most 5 %. The winner is the finalist with the highest mean among those with no failed run "
        f"whose {'gain is' if len(baselines) == 1 else 'gains are all'} above zero with the whole interval.\n"
    )
    columns = ["settings", "return, IQM", *(f"gain over {name}" for name in baselines), "failed runs", "returns"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, baseline in verdict.baselines.items():
        yield _row(name, baseline, [""] * len(baselines))
    for index, (finalist, gains) in enumerate(zip(verdict.finalists, verdict.gains, strict=True)):
        shown = [str(gains[name] or "none") for name in baselines]
        yield _row(finalist.name, finalist, [f"**{gain}**" for gain in shown] if index == verdict.winner else shown)
    yield ""


def _row(name: str, finalist: Finalist, gains: list[str]) -> str:
    returns = ", ".join(f"{score:.1f}" for score in finalist.scores)
    iqm = str(finalist.iqm) if finalist.scores else "none"
    return f"| {name} | {iqm} | {' | '.join(gains)} | {finalist.n_failed} | {returns} |"


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


def _pictures(pictures: list[Picture]) -> Iterator[str]:
    if pictures:
        yield "## Pictures\n"
    for path, caption in pictures:
        yield f"{caption}\n"
        yield f"![{path.stem.replace('_', ' ')}]({path.name})\n"


def _set_up(task: TuningTask) -> Iterator[str]:
    yield "## Settings of the study\n"
    yield f"{versions()}; Python {platform.python_version()}.\n"
    data = task.to_json()
    data["eval_freq"] = task.plan.eval_freq
    yield f"```yaml\n{yaml.safe_dump(data, sort_keys=False)}```"
