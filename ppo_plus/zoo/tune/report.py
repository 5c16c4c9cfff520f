"""The verdict of a study: which settings, if any, beat all baselines on unseen seeds. And what a study leaves in its
folder: a report, and a settings file of the winner or the best trial."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from optuna.trial import FrozenTrial, TrialState

from ppo_plus.public import version_of
from ppo_plus.saving.files import file_name, write_text
from ppo_plus.saving.format.container import PACKAGES
from ppo_plus.zoo.hyperparams import pairs_option, to_yaml
from ppo_plus.zoo.installation import deterministic_option, import_options
from ppo_plus.zoo.results import Estimate, difference_interval, iqm_interval
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED, is_done, outcome
from ppo_plus.zoo.tune.study import BASELINE, RECORDED, SCORES, Study, ranked_candidates, ranking
from ppo_plus.zoo.tune.task import TuningTask

#: How often a study may export settings that are no better than a baseline.
ERROR_RATE = 0.05


@dataclass(frozen=True)
class Finalist:
    """The settings of a screening trial, which ran on the seeds of the confirmation."""

    trial: FrozenTrial
    scores: list[float]  # one for each seed on which they did not fail
    n_failed: int
    #: By baseline: how much higher its interquartile mean is; `None` if it cannot win.
    gains: Mapping[str, Estimate | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"trial {self.trial.user_attrs[JOB]}"

    @property
    def iqm(self) -> Estimate:
        return iqm_interval(self.scores)

    @property
    def is_confirmed(self) -> bool:
        """Whether it beats every baseline: the whole interval of the gain is above zero."""
        return bool(self.gains) and all(gain is not None and gain.low > 0 for gain in self.gains.values())


@dataclass(frozen=True)
class TuningVerdict:
    """The result of a study."""

    baselines: dict[str, Finalist]  # what a winner must beat, by name
    finalists: list[Finalist]  # the best trials, best first
    confidence: float  # of the intervals of the gains

    @property
    def winner(self) -> Finalist | None:
        """The confirmed finalist with the highest interquartile mean, if there is one."""
        confirmed = [finalist for finalist in self.finalists if finalist.is_confirmed]
        return max(confirmed, key=lambda finalist: finalist.iqm.value, default=None)

    def __str__(self) -> str:
        if not self.finalists or not self.baselines:
            return "No confirmation: no runs on unseen seeds."
        for name, baseline in self.baselines.items():
            if not baseline.scores:
                return f"No confirmation: the {name} has no score on unseen seeds."
        winner = self.winner
        if winner is None:
            names = " and ".join(f"the {name}" for name in self.baselines)
            return f"No winner: none of the finalists is significantly better than each of {names}."
        returns = " and ".join(f"the {name} {baseline.iqm}" for name, baseline in self.baselines.items())
        over = " and ".join(f"{gain} over the {name}" for name, gain in winner.gains.items())
        result = f"{winner.name} reaches {winner.iqm} on {len(winner.scores)} unseen seeds, {returns}"
        return f"Confirmed: {result}; the gain is {over} (confidence {100 * self.confidence:.1f} %)."


def decide(study: Study) -> TuningVerdict:
    """The verdict so far."""
    stages = study.begun_stages()
    runs = stages["confirmation"].trials() if "confirmation" in stages else []
    trials = {trial.user_attrs[JOB]: trial for trial in study.screening().trials()}
    # Baselines without runs as well: what was not compared with them is not confirmed.
    named = {trial.user_attrs[BASELINE]: trial for trial in trials.values() if BASELINE in trial.user_attrs}
    baselines = {name: _finalist(trial, runs) for name, trial in named.items()}
    tried = [trials[job] for job in dict.fromkeys(run.user_attrs[CANDIDATE] for run in runs)]
    candidates = [trial for trial in tried if BASELINE not in trial.user_attrs]
    return compare(baselines, [_finalist(trial, runs) for trial in candidates])


def compare(baselines: Mapping[str, Finalist], finalists: Sequence[Finalist]) -> TuningVerdict:
    """Compare finalists with what a winner must beat, by name.

    The intervals have the confidence ``1 - ERROR_RATE / n_finalists`` (Bonferroni over the finalists, because the best
    of several beats a baseline by luck more often than one does). The number of baselines does not matter: a finalist
    is a wrong winner if it is no better than at least one of them, and to win it must beat that one, too, which happens
    at most as often as with that baseline alone (an intersection-union test; Berger 1982, *Technometrics* 24).

    A finalist that failed on a seed is not confirmed. Failed runs of a baseline are left out, which is in its favor.
    """
    confidence = 1 - ERROR_RATE / max(len(finalists), 1)

    def gain(finalist: Finalist, baseline: Finalist) -> Estimate | None:
        comparable = baseline.scores and finalist.scores and not finalist.n_failed
        return difference_interval(finalist.scores, baseline.scores, confidence) if comparable else None

    compared = [
        replace(finalist, gains={name: gain(finalist, baseline) for name, baseline in baselines.items()})
        for finalist in finalists
    ]
    return TuningVerdict(dict(baselines), compared, confidence)


def _finalist(trial: FrozenTrial, runs: Sequence[FrozenTrial]) -> Finalist:
    own = [run for run in runs if run.user_attrs[CANDIDATE] == trial.user_attrs[JOB]]
    # The bootstrap depends on the order, and runs may have been added later.
    own = sorted(own, key=lambda run: run.user_attrs[SEED])
    scores = [run.values[0] for run in own if run.state == TrialState.COMPLETE]
    return Finalist(trial, scores, len(own) - len(scores))


def done_runs(study: Study) -> list[str]:
    """A line about each run that is done."""
    lines = []
    for stage, jobs in study.begun_stages().items():
        for trial in filter(is_done, jobs.trials()):
            job = trial.user_attrs
            name = f"{job[CANDIDATE]}, seed {job[SEED]}" if CANDIDATE in job else job[JOB]
            lines.append(f"{stage}, trial {name}: {outcome(trial)}")
    return lines


def estimate(study: Study, task: TuningTask, n_workers: int) -> str:
    """What is left of a study, and how long it takes; empty until the baselines have run, and when nothing is left."""
    plan, n_trials = task.plan, study.budget
    n_baselines = min(len(task.baselines()), n_trials)
    if not study.screening(n_baselines).all_done():
        return ""
    search, *later = (list(filter(is_done, jobs.trials())) for jobs in study.begun_stages().values())
    n_left = sum(plan.n_runs(n_trials, n_baselines)) - len(search) * plan.n_seeds - sum(map(len, later))
    # Pruned and failed trials ended early.
    times = [one.duration.total_seconds() for one in search if one.duration and one.state == TrialState.COMPLETE]
    if n_left <= 0 or not times:
        return ""
    minutes = n_left * fmean(times) / plan.n_seeds / n_workers / 60
    return f"about {minutes:.1f} more minutes with {n_workers} at a time"


#: Trials that the report shows.
N_SHOWN = 10


def write_report(study: Study, task: TuningTask, folder: Path) -> TuningVerdict:
    """Write ``report.md`` and the best entry into a folder, also of a study that is not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    verdict = decide(study)
    trials = study.screening().trials()
    entry = export_best(study, task, verdict, folder)
    parts = [
        f"# Tuning {task.experiment.env_id}\n\n{verdict}\n",
        *_confirmation(verdict),
        *([f"## {entry.name}\n", f"```yaml\n{entry.read_text('utf-8')}```\n"] if entry is not None else []),
        *_screening(trials),
        "## Settings of the study\n",
        f"{versions()}.\n",
        f"```yaml\n{to_yaml({**task.to_json(), 'eval_freq': task.plan.eval_freq})}```",
    ]
    write_text(folder / "report.md", "\n".join(parts) + "\n")
    return verdict


def export_best(study: Study, task: TuningTask, verdict: TuningVerdict, folder: Path) -> Path | None:
    """Export the winner, or else the best trial under another name, and return the file; ``None``: there is neither."""
    winner = verdict.winner
    best = ranked_candidates(study.screening(study.budget).trials())[:1] if winner is None else [winner.trial]
    # Only the other one: another tuner of the study may be reading this one, which is replaced.
    entry_path(task, folder, winner is None).unlink(missing_ok=True)
    return export(best[0], verdict, task, study.name, entry_path(task, folder, winner is not None)) if best else None


def export(trial: FrozenTrial, verdict: TuningVerdict, task: TuningTask, study_name: str, path: Path) -> Path:
    """Write the settings of a trial, and whether they are confirmed, to a YAML file, which rl_zoo3 reads as well."""
    plan, result, name = task.plan, trial.user_attrs, f"trial {trial.user_attrs[JOB]}"
    origin = [f"Found by ppo-plus tune: study {study_name}, {name}, with {versions()}."]
    wins = verdict.winner is not None and verdict.winner.trial is trial
    origin += [str(verdict) if wins else f"NOT CONFIRMED: {name} may be no better than the baselines. {verdict}"]
    first = f"On seed {plan.seed} its return was {result[SCORES][0]!r}"
    origin += [f"{first}, the mean of its last {min(plan.last_evals, plan.n_evals)} evaluations."]
    origin += ["Train with these settings:", shlex.join(["ppo-plus", *retraining(task, Path(path.name))])]
    entry = to_yaml({task.experiment.env_id: result[RECORDED]})
    write_text(path, "".join(f"# {line}\n" for line in origin) + entry)
    return path


def entry_path(task: TuningTask, folder: Path, confirmed: bool) -> Path:
    """Where an entry is written that is confirmed, or not."""
    return folder / f"{file_name(task.experiment.env_id)}{'' if confirmed else '_not_confirmed'}.yml"


def retraining(task: TuningTask, path: Path) -> list[str]:
    """The arguments of the command that trains with an exported entry."""
    words = ["train", "--env", task.experiment.env_id, "-conf", str(path)]
    words += deterministic_option(task.experiment.deterministic)
    words += pairs_option("--eval-env-kwargs", task.experiment.eval_env_kwargs)
    return words + import_options(task.gym_packages, trusted=task.packages is None)


def versions() -> str:
    """The packages that results depend on, and their versions."""
    return ", ".join(f"{name} {version_of(name)}" for name in (*PACKAGES, "optuna"))


def _confirmation(verdict: TuningVerdict) -> Iterator[str]:
    if not verdict.finalists:
        return
    baselines = list(verdict.baselines)
    yield "## Confirmation\n"
    yield (
        "The finalists and the baselines were trained on seeds that the search has not seen. The table shows "
        f"interquartile means (IQM) of their returns with 95 % intervals (percentile bootstrap, 10,000 resamples). "
        f"A gain is the difference to a baseline ({' or '.join(f'the {name}' for name in baselines)}). With "
        f"{len(verdict.finalists)} finalists, its interval has {100 * verdict.confidence:.1f} % confidence: the chance "
        "of a winner that is no better than a baseline is then at most 5 %. A finalist can win if none of its "
        "runs failed and the whole interval of every gain is above zero. The one with the highest mean wins.\n"
    )
    rows, winner = [], verdict.winner
    for name, finalist in {**verdict.baselines, **{finalist.name: finalist for finalist in verdict.finalists}}.items():
        bold = "**" if finalist is winner else ""
        gains = [f"{bold}{gain or 'none'}{bold}" for gain in finalist.gains.values()] or [""] * len(baselines)
        returns = ", ".join(f"{score:.2f}" for score in finalist.scores)
        rows.append([name, finalist.iqm if finalist.scores else "none", *gains, finalist.n_failed, returns])
    gains = [f"gain over {name}" for name in baselines]
    yield from _table(["settings", "return, IQM", *gains, "failed runs", "returns"], rows)


def _screening(trials: list[FrozenTrial]) -> Iterator[str]:
    rows, ranked = [], ranking(trials)
    for trial in [*ranked[:N_SHOWN], *(one for one in ranked[N_SHOWN:] if BASELINE in one.user_attrs)]:
        name = ", ".join(str(trial.user_attrs[key]) for key in (JOB, BASELINE) if key in trial.user_attrs)
        settings = ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in sorted(trial.user_attrs[RECORDED].items())
        )
        rows.append([name, f"{trial.value:.2f}", len(trial.user_attrs[SCORES]), settings])
    yield "## Screening\n"
    yield from _table(["trial", "score", "seeds", "settings"], rows)
    failed = [f"- trial {trial.user_attrs[JOB]} {outcome(trial)}" for trial in trials if trial.state == TrialState.FAIL]
    yield from [*failed, ""] if failed else []


def _table(columns: list[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(map(format, row))} |" for row in rows)
    yield ""
