"""What a study leaves in its folder: a report, a table of its trials, pictures, and the winner's entry."""

import csv
import io
import platform
import shlex
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from ppo_plus import __version__
from ppo_plus.saving.format.atomic import write_text
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.literals import format_literal
from ppo_plus.zoo.runs import file_name
from ppo_plus.zoo.tune.attributes import BASELINE, JOB, SCORES, SETTINGS
from ppo_plus.zoo.tune.jobs import outcome
from ppo_plus.zoo.tune.pictures import draw_all
from ppo_plus.zoo.tune.plan import counted
from ppo_plus.zoo.tune.stages import Study, ranking
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.verdict import PHRASES, Finalist, TuningVerdict, decide

#: Trials that the report shows.
N_SHOWN = 10

#: The file with the id of the study whose report a folder has.
OWNER = "study.id"

#: Packages that results depend on.
PACKAGES = ("torch", "stable_baselines3", "gymnasium", "optuna")


def check_folder(study: Study, folder: Path) -> None:
    """:raises ValueError: the folder has the report of another study; this one need not exist yet"""
    owner = folder / OWNER
    if owner.is_file() and owner.read_text().strip() != study.id:
        raise ValueError(
            f"{folder} has the report of another study than {study.name!r} of this storage: use that study's --storage "
            "to resume it, or choose another folder (-f) or --study-name"
        )


def write_report(study: Study, task: TuningTask, folder: Path) -> TuningVerdict:
    """Write the results of a study, finished or not, into a folder: ``report.md``, ``trials.csv``, pictures, and the
    winner's entry if there is a winner."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / OWNER, f"{study.id}\n")
    verdict = decide(study)
    trials = study.screening.trials()
    entry = entry_path(task, folder)
    exported = export(verdict, task, study.name, entry)
    write_text(folder / "trials.csv", _table(trials))
    parts = [
        *_summary(study, task, verdict),
        *_confirmation(verdict),
        *([f"## {entry.name}\n", f"```yaml\n{entry.read_text()}```\n"] if exported else []),
        *_screening(trials),
        "## Pictures\n",
        *(f"{text}\n\n![{path.stem}]({path.name})\n" for path, text in draw_all(trials, task.plan, verdict, folder)),
        "## Settings of the study\n",
        f"{versions()}; Python {platform.python_version()}.\n",
        f"```yaml\n{yaml.safe_dump({**task.to_json(), 'eval_freq': task.plan.eval_freq}, sort_keys=False)}```",
    ]
    write_text(folder / "report.md", "\n".join(parts) + "\n")
    return verdict


def export(verdict: TuningVerdict, task: TuningTask, study_name: str, path: Path) -> bool:
    """Write the winner's settings to a YAML file, which both this package and rl_zoo3 read. Without a winner, which
    the result says, no file is left."""
    if verdict.winner is None:
        path.unlink(missing_ok=True)
        return False
    finalist = verdict.finalists[verdict.winner]
    attributes = finalist.trial.user_attrs
    origin = [
        f"Found by ppo-plus tune: study {study_name}, {finalist.name}, with {versions()}.",
        str(verdict),
        f"On seed {task.plan.seed} the trial's score was {attributes[SCORES][0]!r}, the mean of the last "
        f"{counted(task.plan.last_evals, 'evaluation')}, and is again:",
        retrain_command(task, Path(path.name)),
    ]
    entry = yaml.safe_dump({task.experiment.env_id: attributes[SETTINGS]}, sort_keys=False)
    write_text(path, "".join(f"# {line}\n" for line in origin) + entry)
    return True


def entry_path(task: TuningTask, folder: Path) -> Path:
    """Where a winner's entry is written."""
    return folder / f"{file_name(task.experiment.env_id)}.yml"


def retrain_command(task: TuningTask, path: Path) -> str:
    """The command that trains with an exported entry as its trial did."""
    plan, experiment = task.plan, task.experiment
    words: list[object] = ["ppo-plus", "train", "--env", experiment.env_id, "-conf", path, "--seed", plan.seed]
    words += ["--eval-freq", plan.eval_freq, "--eval-episodes", plan.n_eval_episodes]
    words += ["--n-eval-envs", plan.n_eval_envs]
    if experiment.eval_env_kwargs:
        given = experiment.eval_env_kwargs.items()
        words += ["--eval-env-kwargs", *(f"{key}:{format_literal(value)}" for key, value in given)]
    for field in ("vec_env", "device"):
        value = getattr(experiment, field)
        if value != Experiment.__dataclass_fields__[field].default:
            words += [f"--{field.replace('_', '-')}", value]
    if task.gym_packages:
        words += ["--gym-packages", *task.gym_packages]
    if task.packages is None:
        words.append("--trust-config")
    return shlex.join(map(str, words))


def versions() -> str:
    """The packages that results depend on, and their versions."""
    packages = [("ppo_plus", __version__), *((name, version(name)) for name in PACKAGES)]
    return ", ".join(f"{name} {number}" for name, number in packages)


def _table(trials: list[FrozenTrial]) -> str:
    """A line for each trial of the screening: how far it got, and its settings."""
    settings = [trial.user_attrs.get(SETTINGS, {}) for trial in trials]
    names = sorted(set().union(*settings))
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["trial", "state", "score", "timesteps", "last evaluation", *names])
    for trial, ran in zip(trials, settings, strict=True):
        last = trial.last_step
        evaluated = None if last is None else trial.intermediate_values[last]
        score = trial.values[0] if trial.state == TrialState.COMPLETE else None
        row = [trial.user_attrs[JOB], trial.state.name, score, last, evaluated]
        table.writerow([*row, *(ran.get(name, "") for name in names)])
    return text.getvalue()


def _summary(study: Study, task: TuningTask, verdict: TuningVerdict) -> Iterator[str]:
    yield f"# Tuning {task.experiment.env_id}\n"
    yield f"{verdict}\n"
    yield "| stage | runs | finished | pruned | failed | timesteps each |"
    yield "|---|---|---|---|---|---|"
    for name, jobs in study.stages().items():
        states = [trial.state for trial in jobs.trials()]
        counts = map(states.count, (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
        steps = task.plan.n_timesteps * (task.plan.n_seeds if name == "screening" else 1)
        yield f"| {name} | {len(states)} | {' | '.join(map(str, counts))} | {steps:,} |"
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


def _screening(trials: list[FrozenTrial]) -> Iterator[str]:
    ranked = ranking(trials)
    yield "## Screening\n"
    yield "| trial | score | seeds | settings |"
    yield "|---|---|---|---|"
    for trial in [*ranked[:N_SHOWN], *(trial for trial in ranked[N_SHOWN:] if BASELINE in trial.user_attrs)]:
        name = ", ".join(str(trial.user_attrs[key]) for key in (JOB, BASELINE) if key in trial.user_attrs)
        settings = ", ".join(f"{key}={_short(value)}" for key, value in sorted(trial.user_attrs[SETTINGS].items()))
        yield f"| {name} | {trial.values[0]:.2f} | {len(trial.user_attrs[SCORES])} | {settings} |"
    yield ""
    failed = [f"- trial {trial.user_attrs[JOB]} {outcome(trial)}" for trial in trials if trial.state == TrialState.FAIL]
    yield from [*failed, ""] if failed else []


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
