"""Progress of a study: a line for the study and a bar for each worker; without a terminal, plain lines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ppo_plus.zoo.tune.jobs import JOB, WORKER, is_done, why_failed
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BUDGET, CANDIDATE, SEED, Study, ranking, stage_names


class Watch:
    """Shows the progress of a study, wherever its workers run.

    :param console: where to; ``None``: standard output
    """

    def __init__(self, study: Study, plan: Plan, console: Console | None = None):
        self.study = study
        self.plan = plan
        self.console = console or Console()
        self.start = time.monotonic()
        self.reported: set[tuple[str, int]] = set()
        self.live: Live | None = None

    @contextmanager
    def running(self) -> Iterator["Watch"]:
        """Show progress within the block, at each :meth:`update`."""
        if not self.console.is_terminal:
            self.reported = {(stage, trial.number) for stage, trial in self._finished()}
            yield self
            return
        with Live(console=self.console, auto_refresh=False) as self.live:
            yield self

    def update(self) -> None:
        """Show the current state."""
        if self.live is not None:
            self.live.update(self.table(), refresh=True)
            return
        for stage, trial in self._finished():
            if (stage, trial.number) not in self.reported:
                self.reported.add((stage, trial.number))
                self.print(f"{stage}, {name(trial)}: {outcome(trial)}")

    def print(self, line: str) -> None:
        """Print a line."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def table(self) -> Group:
        """The study's line, and a bar for each worker."""
        stage, jobs = stage_names(self.study)[-1]
        trials = jobs.trials()
        bars = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[value]}"))
        for trial in sorted(trials, key=lambda trial: str(trial.user_attrs.get(WORKER))):
            if trial.state == TrialState.RUNNING:
                self._bar(bars, stage, trial)
        return Group(Text(self.line(stage, trials), style="bold"), bars)

    def line(self, stage: str, trials: list[FrozenTrial]) -> str:
        """The study in a line."""
        n_jobs = self.study.attributes()[BUDGET] if stage == "screening" else len(trials)
        n_done = sum(map(is_done, trials))
        best = ranking(trials)
        parts = [
            f"{self.study.name}, {stage}: {n_done} of {n_jobs} done",
            f"{sum(trial.state == TrialState.PRUNED for trial in trials)} pruned",
            f"{sum(trial.state == TrialState.FAIL for trial in trials)} failed",
            f"best {best[0].values[0]:.2f} ({name(best[0])})" if best else "no score yet",
            f"{(time.monotonic() - self.start) / 60:.1f} min",
        ]
        return ", ".join(parts)

    def _bar(self, bars: Progress, stage: str, trial: FrozenTrial) -> None:
        total = self.plan.n_timesteps * (self.plan.n_seeds if stage == "screening" else 1)
        last = trial.last_step
        value = "starting" if last is None else f"{last:,} of {total:,} steps, {trial.intermediate_values[last]:.2f}"
        worker = trial.user_attrs.get(WORKER, "")
        bars.add_task(f"{worker}  {name(trial)}", total=total, completed=last or 0, value=value)

    def _finished(self) -> Iterator[tuple[str, FrozenTrial]]:
        for stage, jobs in stage_names(self.study):
            yield from ((stage, trial) for trial in jobs.trials() if is_done(trial))


def outcome(trial: FrozenTrial) -> str:
    """Human-readable result of a trial whose job is done."""
    match trial.state:
        case TrialState.COMPLETE:
            return f"complete {trial.values[0]:.2f}"
        case TrialState.PRUNED:
            return f"pruned after {trial.last_step:,} steps"
    return f"failed: {why_failed(trial)}"


def name(trial: FrozenTrial) -> str:
    """Human-readable name of a trial of the screening, or of a run of a later stage."""
    if CANDIDATE in trial.user_attrs:
        return f"trial {trial.user_attrs[CANDIDATE]}, seed {trial.user_attrs[SEED]}"
    return f"trial {trial.user_attrs[JOB]}"
