"""CMA-ES as a sampler of Optuna that keeps nothing in the database but the number of each trial's generation.

Optuna's sampler pickles its state into the trials' attributes and unpickles it from there: anyone who can write to the
database could run code in every worker. Here each draw recomputes the state from the finished trials, which takes
milliseconds. It is the state that Optuna's sampler would have kept, and the generations have the same name, so that
studies which it began can be resumed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from cmaes import CMA

#: System attribute of a trial: the generation that it was drawn from.
GENERATION = "cma:generation"

Number = FloatDistribution | IntDistribution


class CmaSampler(BaseSampler):
    """CMA-ES for numbers; choices are drawn at random.

    :param seed: seed of the draws; each trial's differ
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.independent = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The numbers that all finished trials have."""
        shared = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: item for name, item in shared.items() if isinstance(item, Number) and not item.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Values for the numbers; none before a trial has finished."""
        if not search_space:
            return {}
        space = {name: item for name, item in search_space.items() if isinstance(item, Number)}
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        seed = int(np.random.SeedSequence([self.seed, trial.number]).generate_state(1)[0])
        optimizer = replay(space, complete, study.direction, seed)
        study._storage.set_trial_system_attr(trial._trial_id, GENERATION, optimizer.generation)
        return {name: decode(space[name], x) for name, x in zip(space, optimizer.ask(), strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value."""
        return self.independent.sample_independent(study, trial, param_name, param_distribution)


def replay(space: dict[str, Number], trials: Iterable[FrozenTrial], direction: StudyDirection, seed: int) -> "CMA":
    """The optimizer after all generations that are complete.

    A generation consists of the trials that ended first, so that a late one does not change what others have found.

    :param trials: trials that have a value; one without a valid generation, or outside of the space, does not count
    :param direction: what is best
    :param seed: seed of its draws
    """
    from cmaes import CMA

    optimizer = CMA(
        mean=np.full(len(space), 0.5),
        sigma=1 / 6,
        bounds=np.tile([0.0, 1.0], (len(space), 1)),
        n_max_resampling=10 * len(space),
        seed=seed,
    )
    sign = -1 if direction == StudyDirection.MAXIMIZE else 1
    generations = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: (trial.datetime_complete or datetime.max, trial.number)):
        generation, value = trial.system_attrs.get(GENERATION), trial.value
        point = np.array([encode(item, trial.params[name]) for name, item in space.items()])
        within = bool(np.all((point >= 0) & (point <= 1)))
        if type(generation) is int and value is not None and math.isfinite(value) and within:
            generations[generation].append((point, sign * value))
    while len(generations[optimizer.generation]) >= optimizer.population_size:
        optimizer.tell(generations[optimizer.generation][: optimizer.population_size])
    return optimizer


def encode(item: Number, value: float) -> float:
    """A value's place in its range, from 0 to 1."""
    low, high = _bounds(item)
    return (_scaled(item, value) - low) / (high - low)


def decode(item: Number, place: float) -> float:
    """The value at a place in its range, from 0 to 1."""
    low, high = _bounds(item)
    scaled = low + place * (high - low)
    value = math.exp(scaled) if item.log else scaled
    if item.step is not None:
        value = item.low + round((value - item.low) / item.step) * item.step
    value = min(max(value, item.low), item.high)
    return int(value) if isinstance(item, IntDistribution) else float(value)


def _bounds(item: Number) -> tuple[float, float]:
    """The ends of a range, as wide for its first and last step as for the others."""
    half = 0.5 * item.step if item.step is not None else 0.0
    return _scaled(item, item.low - half), _scaled(item, item.high + half)


def _scaled(item: Number, value: float) -> float:
    return math.log(value) if item.log else float(value)
