"""Finalists and verdicts from scores."""

from optuna.trial import TrialState, create_trial

from ppo_plus.zoo.tune.report import Finalist, compare
from ppo_plus.zoo.tune.study import RECORDED, SCORES

LOW = [10.0, 12, 11, 13, 9, 10, 12, 11, 13, 9]
HIGH = [20.0, 22, 21, 23, 19, 20, 22, 21, 23, 19]


def finalist(scores, job=0, n_failed=0, settings=None):
    attrs = {"job": job, SCORES: [1.25, 7.0], RECORDED: settings or {}}
    return Finalist(create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs=attrs), scores, n_failed)


def against(default, *finalists):
    """The verdict where the default is the only baseline."""
    return compare({"default": default}, finalists)
