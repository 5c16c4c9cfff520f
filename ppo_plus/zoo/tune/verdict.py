"""What a study has found: which settings, if any, beat the default on seeds that decided nothing before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.tune.jobs import JOB, Jobs
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.stages import BASELINE, CANDIDATE, SCORES, SETTINGS, Study, is_default, stage_names
from ppo_plus.zoo.tune.statistics import Estimate, difference_interval, iqm_interval

#: How often a study may export settings that are no better than the default.
ERROR_RATE = 0.05


@dataclass(frozen=True)
class Finalist:
    """Settings that were run on the seeds of the confirmation.

    :param trial: their screening trial
    :param scores: one per seed
    :param n_failed: seeds on which they have no score
    """

    trial: FrozenTrial
    scores: list[float]
    n_failed: int

    @property
    def name(self) -> str:
        baseline = self.trial.user_attrs.get(BASELINE)
        return f"trial {self.trial.user_attrs[JOB]}" + (f" (the {baseline}'s)" if baseline else "")

    @property
    def settings(self) -> dict[str, Any]:
        return self.trial.user_attrs[SETTINGS]  # type: ignore[no-any-return]

    @property
    def screening_scores(self) -> list[float]:
        return self.trial.user_attrs[SCORES]  # type: ignore[no-any-return]

    @property
    def iqm(self) -> Estimate:
        return iqm_interval(self.scores)


@dataclass(frozen=True)
class Verdict:
    """The end of a study.

    :param default: the default's runs; ``None`` if there was no confirmation
    :param finalists: those of the best trials, the best of the screening and the race first
    :param gains: for each finalist, how much higher its interquartile mean is than the default's; ``None`` where it
        cannot be compared
    :param confidence: of the intervals of the gains
    :param reason: why there was no confirmation, if there was none
    """

    default: Finalist | None
    finalists: list[Finalist]
    gains: list[Estimate | None]
    confidence: float
    reason: str = ""

    @property
    def winner(self) -> int | None:
        """Index of the finalist with the highest interquartile mean among those whose gain is above zero, with its
        whole interval; ``None`` if there is none."""
        confirmed = [i for i, gain in enumerate(self.gains) if gain is not None and gain.low > 0]
        return max(confirmed, key=lambda i: self.finalists[i].iqm.value, default=None)

    def __str__(self) -> str:
        if self.default is None:
            reason = "the default never ran" if self.finalists else self.reason
            return f"No confirmation{reason and ': '}{reason}. Nothing is exported."
        if not self.default.scores:
            return (
                f"Undecided: the default has no score on any of the {self.default.n_failed} unseen seeds, so nothing "
                "can be compared with it. Nothing is exported."
            )
        if self.winner is None:
            return (
                f"The default stays: none of the {len(self.finalists)} best trials is surely better on "
                f"{len(self.default.scores)} unseen seeds. Nothing is exported."
            )
        finalist, gain = self.finalists[self.winner], self.gains[self.winner]
        known = ""
        if finalist.trial.user_attrs.get(BASELINE) == "settings file":
            known = (
                " They are the settings file's own: plain `ppo-plus train` uses them already (with the same options)."
            )
        return (
            f"Confirmed: {finalist.name} returns {finalist.iqm} on {len(finalist.scores)} unseen seeds, the default "
            f"{self.default.iqm}; the gain is {gain} ({100 * self.confidence:.1f} % interval).{known}"
        )


def decide(study: Study, plan: Plan) -> Verdict:
    """What a study has found, as far as it has got.

    :param study: the study
    :param plan: its plan
    """
    stages = dict(stage_names(study))
    runs = stages["confirmation"].trials() if "confirmation" in stages else []
    trials = {trial.user_attrs[JOB]: trial for trial in study.screening.trials()}
    compared = [_finalist(trials[job], runs) for job in dict.fromkeys(run.user_attrs[CANDIDATE] for run in runs)]
    default = next((finalist for finalist in compared if is_default(finalist.trial)), None)
    verdict = compare(default, [finalist for finalist in compared if not is_default(finalist.trial)])
    return verdict if runs else replace(verdict, reason=_why_none(stages, plan))


def _why_none(stages: Mapping[str, Jobs], plan: Plan) -> str:
    """Why a study has no runs of the confirmation."""
    if not plan.confirm_seeds:
        return "confirm_seeds is 0"
    if "confirmation" not in stages:
        return "the study has not got there yet"
    return "nothing but the default has a score on all its seeds"


def compare(default: Finalist | None, finalists: list[Finalist]) -> Verdict:
    """Compare finalists with the default.

    Each interval has the confidence at which all of them together hold with that of :data:`ERROR_RATE` (Bonferroni):
    the best of several would else be taken for better by luck more often. A finalist that failed on a seed is not
    confirmed; of the default, the seeds on which it has a score count, which favours the default.

    :param default: the default
    :param finalists: what is compared with it
    """
    confidence = 1 - ERROR_RATE / max(len(finalists), 1)

    def gain(finalist: Finalist) -> Estimate | None:
        if default is None or not default.scores or finalist.n_failed or not finalist.scores:
            return None
        return difference_interval(finalist.scores, default.scores, confidence)

    return Verdict(default, finalists, [gain(finalist) for finalist in finalists], confidence)


def _finalist(trial: FrozenTrial, runs: Sequence[FrozenTrial]) -> Finalist:
    own = [run for run in runs if run.user_attrs[CANDIDATE] == trial.user_attrs[JOB]]
    scores = [run.values[0] for run in own if run.state == TrialState.COMPLETE]
    return Finalist(trial, scores, len(own) - len(scores))
