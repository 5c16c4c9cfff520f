"""The user attributes of a study and its trials: their names, and what they may hold.

They are JSON that anyone with access to the storage may have changed, and a disk may have damaged. They are checked
here when they are read, so that all other code can rely on them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from ppo_plus.zoo.hyperparams import MAX_NUMBER, shortened
from ppo_plus.zoo.tune.storage import STORAGE_ERRORS, StorageError, reason

#: A number above the number of any trial.
MAX_TRIALS = 2**20

#: How deep lists and mappings may be within each other. Settings need five levels.
MAX_DEPTH = 50

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

#: What an attribute must be, in words and as a test.
Rule = tuple[str, Callable[[Any], bool]]


def check_study(name: str, attributes: Mapping[str, Any]) -> None:
    """Check the attributes of a study.

    :param attributes: its user attributes
    :raises StorageError: one is not what it must be
    """
    _check(f"the study {name!r}", attributes, STUDY)


def check_trial(name: str, trial: FrozenTrial, given: Iterable[str] = (), results: Iterable[str] = ()) -> None:
    """Check the attributes of a trial.

    :param name: name of its study
    :param trial: the trial of a job
    :param given: attributes that it must have
    :param results: attributes that it must have if it is complete
    :raises StorageError: one is missing, or not what it must be
    """
    where = f"trial {trial.number} of the study {name!r}"
    complete = trial.state == TrialState.COMPLETE
    _check(where, trial.user_attrs, TRIAL, [*given, *(results if complete else ())])
    _check(where, trial.system_attrs, {FIXED: TRIAL[SETTINGS]})
    if complete and not (trial.values and _is_finite(trial.values[0])):
        raise StorageError(f"{where} is damaged: its value must be a finite number")


@contextmanager
def undamaged(name: str) -> Iterator[None]:
    """Turn what Optuna raises when it reads damaged data in the block into one line.

    :param name: name of the study
    :raises StorageError: the data cannot be read
    """
    try:
        yield
    except (*STORAGE_ERRORS, StorageError):
        raise
    except Exception as error:
        # Any kind: Optuna does not check what it reads.
        raise StorageError(f"the study {name!r} is damaged: {shortened(reason(error))}") from error


def _check(where: str, attributes: Mapping[str, Any], checks: Mapping[str, Rule], needed: Iterable[str] = ()) -> None:
    missing = [name for name in needed if name not in attributes]
    if missing:
        raise StorageError(f"{where} is damaged: it has no {missing[0]!r}")
    for name, (kind, check) in checks.items():
        if name in attributes and not check(attributes[name]):
            raise StorageError(f"{where} is damaged: its {name!r} must be {kind}")


def _whole(highest: int) -> Rule:
    return f"a whole number from 0 to {highest}", lambda value: type(value) is int and 0 <= value <= highest


def _is_flat(value: Any, depth: int = MAX_DEPTH) -> bool:
    if not isinstance(value, (dict, list)):
        return True
    return depth > 0 and all(_is_flat(item, depth - 1) for item in (value.values() if type(value) is dict else value))


def _are_scores(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_finite, value))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


_TEXT = ("a text", lambda value: isinstance(value, str))
_NO_TEXT = ("a text or null", lambda value: value is None or isinstance(value, str))
_MAPPING = (f"a mapping, at most {MAX_DEPTH} levels deep", lambda value: isinstance(value, dict) and _is_flat(value))

STUDY: dict[str, Rule] = {TASK: _MAPPING, BUDGET: _whole(MAX_TRIALS), ERROR: _NO_TEXT, ID: _TEXT}
TRIAL: dict[str, Rule] = {
    JOB: _whole(2**32 * MAX_TRIALS),
    REPLACES: _whole(MAX_NUMBER),
    DEATHS: _whole(MAX_NUMBER),
    WORKER: _TEXT,
    REASON: _TEXT,
    INTERRUPTED: ("true or false", lambda value: isinstance(value, bool)),
    BASELINE: _TEXT,
    CANDIDATE: _whole(MAX_TRIALS),
    SEED: _whole(2**32),
    SETTINGS: _MAPPING,
    SCORES: ("a list of finite numbers", _are_scores),
}
