"""The verdict of a study: which settings, if any, beat all baselines on unseen seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.results import Estimate, difference_interval, iqm_interval
from ppo_plus.zoo.tune.jobs import CANDIDATE, JOB, SEED
from ppo_plus.zoo.tune.stages import BASELINE, Study, is_baseline

#: How often a study may export settings that are no better than a baseline.
ERROR_RATE = 0.05

#: Baselines in a sentence, see :meth:`ppo_plus.zoo.tune.task.TuningTask.baselines`.
PHRASES = {"default": "the default", "settings file": "the settings file's entry"}


@dataclass(frozen=True)
class Finalist:
    """The settings of a screening trial, with a score for each seed of the confirmation on which they did not fail."""

    trial: FrozenTrial
    scores: list[float]
    n_failed: int

    @property
    def name(self) -> str:
        return f"trial {self.trial.user_attrs[JOB]}"

    @property
    def iqm(self) -> Estimate:
        return iqm_interval(self.scores)


@dataclass(frozen=True)
class TuningVerdict:
    """The result of a study."""

    baselines: dict[str, Finalist]  # what a winner must beat, by name
    finalists: list[Finalist]  # the best trials, the best of the screening and the race first
    #: For each finalist, by baseline: how much higher its interquartile mean is; `None` if it cannot win.
    gains: list[dict[str, Estimate | None]]
    confidence: float  # of the intervals of the gains

    @property
    def winner(self) -> int | None:
        """Index of the finalist with the highest interquartile mean among those that beat every baseline: the whole
        interval of the gain is above zero. ``None`` if there is none."""
        confirmed = [
            i
            for i, gains in enumerate(self.gains)
            if gains and all(gain is not None and gain.low > 0 for gain in gains.values())
        ]
        return max(confirmed, key=lambda i: self.finalists[i].iqm.value, default=None)

    def __str__(self) -> str:
        if not self.finalists or not self.baselines:
            return "No confirmation: no runs on unseen seeds."
        for name, baseline in self.baselines.items():
            if not baseline.scores:
                return f"No confirmation: {PHRASES[name]} has no score on unseen seeds."
        if self.winner is None:
            beaten = " and ".join(PHRASES[name] for name in self.baselines)
            than = f"both {beaten}" if len(self.baselines) > 1 else beaten
            return f"No winner: none of the finalists is significantly better than {than} on unseen seeds."
        finalist, gains = self.finalists[self.winner], self.gains[self.winner]
        returns = " and ".join(f"{PHRASES[name]} {baseline.iqm}" for name, baseline in self.baselines.items())
        over = " and ".join(f"{gain} over {PHRASES[name]}" for name, gain in gains.items())
        return (
            f"Confirmed: {finalist.name} returns {finalist.iqm} on {len(finalist.scores)} unseen seeds, {returns}; "
            f"the gain is {over} ({100 * self.confidence:.1f} % {'interval' if len(gains) == 1 else 'intervals'})."
        )


def decide(study: Study) -> TuningVerdict:
    """The verdict of a study, as far as it has got."""
    stages = study.stages()
    runs = stages["confirmation"].trials() if "confirmation" in stages else []
    trials = {trial.user_attrs[JOB]: trial for trial in study.screening.trials()}
    # Baselines without runs as well: what was not compared with them is not confirmed.
    baselines = {trial.user_attrs[BASELINE]: _finalist(trial, runs) for trial in trials.values() if is_baseline(trial)}
    candidates = dict.fromkeys(run.user_attrs[CANDIDATE] for run in runs)
    return compare(baselines, [_finalist(trials[job], runs) for job in candidates if not is_baseline(trials[job])])


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

    gains = [{name: gain(finalist, baseline) for name, baseline in baselines.items()} for finalist in finalists]
    return TuningVerdict(dict(baselines), list(finalists), gains, confidence)


def _finalist(trial: FrozenTrial, runs: Sequence[FrozenTrial]) -> Finalist:
    own = [run for run in runs if run.user_attrs[CANDIDATE] == trial.user_attrs[JOB]]
    # The bootstrap depends on the order, and runs may have been added later.
    own = sorted(own, key=lambda run: run.user_attrs[SEED])
    scores = [run.values[0] for run in own if run.state == TrialState.COMPLETE]
    return Finalist(trial, scores, len(own) - len(scores))
