"""The user attributes of a study and its trials: their names, and their types.

They are JSON that anyone with access to the storage may have changed, and a disk may have damaged. Their types are
checked here when they are read. What may run code, the task's environment and packages and the settings, is checked by
:mod:`ppo_plus.zoo.tune.task` and :mod:`ppo_plus.zoo.hyperparams`.
"""

from collections.abc import Mapping
from typing import Any

from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.tune.storage import StorageError

#: User attributes of a study.
TASK, BUDGET, ERROR, ID = "ppo_plus", "max_total_trials", "error", "id"

#: User attributes of a trial.
JOB, REPLACES, DEATHS, WORKER, REASON, INTERRUPTED = "job", "replaces", "deaths", "worker", "reason", "interrupted"

#: User attribute of a running trial: anything that changes while its worker lives.
HEARTBEAT = "heartbeat"

#: User attributes of jobs and their trials.
BASELINE, CANDIDATE, SEED, SETTINGS, SCORES = "baseline", "candidate", "seed", "settings", "scores"

#: Optuna's system attribute with the parameters that are not to be sampled.
FIXED = "fixed_params"

TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys((BUDGET, JOB, REPLACES, DEATHS, CANDIDATE, SEED, INTERRUPTED), int),
    **dict.fromkeys((ID, WORKER, REASON, BASELINE), str),
    **dict.fromkeys((TASK, SETTINGS, FIXED), dict),
    ERROR: (str, type(None)),
    SCORES: list,
}


def check_types(where: str, attributes: Mapping[str, Any]) -> None:
    """:raises StorageError: an attribute of a study or a trial has another type"""
    for name, value in attributes.items():
        if name in TYPES and not isinstance(value, TYPES[name]):
            raise StorageError(f"{where} is damaged: {name!r} must not be {shortened(repr(value))}")
