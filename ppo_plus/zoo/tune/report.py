"""What a study leaves in its folder: a report, pictures, and the winner's entry."""

import platform
import shlex
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import yaml
from optuna.trial import FrozenTrial, TrialState

from ppo_plus import __version__
from ppo_plus.saving.format.atomic import write_text
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.literals import format_literal
from ppo_plus.zoo.runs import file_name
from ppo_plus.zoo.tune.jobs import JOB, outcome
from ppo_plus.zoo.tune.pictures import draw_all
from ppo_plus.zoo.tune.plan import counted
from ppo_plus.zoo.tune.stages import BASELINE, ID, SCORES, SETTINGS, Study, is_baseline, ranking
from ppo_plus.zoo.tune.task import TuningTask
from ppo_plus.zoo.tune.verdict import PHRASES, TuningVerdict, decide

#: Trials that the report shows.
N_SHOWN = 10

#: The file with the id of the study whose report a folder has.
OWNER = "study.id"

#: Packages that results depend on.
PACKAGES = ("torch", "stable_baselines3", "gymnasium", "optuna")


def check_folder(study: Study, folder: Path) -> None:
    """:raises ValueError: the folder has the report of another study; this one need not exist yet"""
    owner = folder / OWNER
    if owner.is_file() and owner.read_text().strip() != study.attributes().get(ID):
        raise ValueError(
            f"{folder} has the report of another study than {study.name!r} of this storage: use that study's --storage "
            "to resume it, or choose another folder (-f) or --study-name"
        )


def write_report(study: Study, task: TuningTask, folder: Path) -> TuningVerdict:
    """Write ``report.md``, pictures and the winner's entry into a folder, also of a study that is not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / OWNER, f"{study.attributes().get(ID)}\n")
    verdict = decide(study)
    trials = study.screening.trials()
    entry = entry_path(task, folder)
    exported = export(verdict, task, study.name, entry)
    parts = [
        f"# Tuning {task.experiment.env_id}\n\n{verdict}\n",
        *_stages(study, task),
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
    """Write the winner's settings to a YAML file, which rl_zoo3 reads as well, and return whether there is a winner.
    Without one, no file is left."""
    if verdict.winner is None:
        path.unlink(missing_ok=True)
        return False
    finalist = verdict.finalists[verdict.winner]
    attributes = finalist.trial.user_attrs
    origin = [
        f"Found by ppo-plus tune: study {study_name}, {finalist.name}, with {versions()}.",
        str(verdict),
        f"On seed {task.plan.seed} the trial's score was {attributes[SCORES][0]!r}, the mean of the last "
        f"{counted(task.plan.last_evals, 'evaluation')}. This command gives the same score again:",
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
    words += ["--eval-freq", plan.eval_freq, "--eval-episodes", plan.n_eval_episodes, "--n-eval-envs", plan.n_eval_envs]
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
    return ", ".join([f"ppo_plus {__version__}", *(f"{name} {version(name)}" for name in PACKAGES)])


def _stages(study: Study, task: TuningTask) -> Iterator[str]:
    rows = []
    for name, jobs in study.stages().items():
        states = [trial.state for trial in jobs.trials()]
        counts = map(states.count, (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
        steps = task.plan.n_timesteps * (task.plan.n_seeds if name == "screening" else 1)
        rows.append([name, len(states), *counts, f"{steps:,}"])
    yield from _table(["stage", "runs", "finished", "pruned", "failed", "timesteps each"], rows)


def _confirmation(verdict: TuningVerdict) -> Iterator[str]:
    if not verdict.finalists:
        return
    baselines = list(verdict.baselines)
    yield "## Confirmation\n"
    yield (
        "The finalists and the baselines were trained on seeds that the search has not seen. The table shows "
        "interquartile means (IQM) of their returns with 95 % intervals (percentile bootstrap, 10,000 resamples). A "
        f"gain is the difference to a baseline ({' or '.join(PHRASES[name] for name in baselines)}). Its interval has "
        f"{100 * verdict.confidence:.1f} % confidence: with {counted(len(verdict.finalists), 'finalist')}, the chance "
        "of a winner that is no better than a baseline is then at most 5 %. A finalist can win if none of its runs "
        "failed and the whole interval of every gain is above zero. The one with the highest mean wins.\n"
    )
    rows = []
    named = {**verdict.baselines, **{finalist.name: finalist for finalist in verdict.finalists}}
    winner = None if verdict.winner is None else verdict.finalists[verdict.winner].name
    gains = dict(zip([finalist.name for finalist in verdict.finalists], verdict.gains, strict=True))
    for name, finalist in named.items():
        bold = "**" if name == winner else ""
        over = [f"{bold}{gains[name][baseline] or 'none'}{bold}" if name in gains else "" for baseline in baselines]
        returns = ", ".join(f"{score:.1f}" for score in finalist.scores)
        rows.append([name, finalist.iqm if finalist.scores else "none", *over, finalist.n_failed, returns])
    columns = ["settings", "return, IQM", *(f"gain over {name}" for name in baselines), "failed runs", "returns"]
    yield from _table(columns, rows)


def _screening(trials: list[FrozenTrial]) -> Iterator[str]:
    rows, ranked = [], ranking(trials)
    for trial in [*ranked[:N_SHOWN], *filter(is_baseline, ranked[N_SHOWN:])]:
        name = ", ".join(str(trial.user_attrs[key]) for key in (JOB, BASELINE) if key in trial.user_attrs)
        settings = ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in sorted(trial.user_attrs[SETTINGS].items())
        )
        rows.append([name, f"{trial.values[0]:.2f}", len(trial.user_attrs[SCORES]), settings])
    yield "## Screening\n"
    yield from _table(["trial", "score", "seeds", "settings"], rows)
    failed = [f"- trial {trial.user_attrs[JOB]} {outcome(trial)}" for trial in trials if trial.state == TrialState.FAIL]
    yield from [*failed, ""] if failed else []


def _table(columns: list[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)
    yield ""
