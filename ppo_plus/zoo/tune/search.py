"""Samplers and pruners by name."""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from ppo_plus.zoo.tune.cma import CmaSampler
from ppo_plus.zoo.tune.plan import Plan

#: Samplers, and the packages that they need besides Optuna. A study says which one: none may run what it reads there.
SAMPLERS: dict[str, tuple[Callable[[int], BaseSampler], tuple[str, ...]]] = {
    "tpe": (lambda seed: TPESampler(multivariate=True, constant_liar=True, seed=seed), ()),
    "random": (lambda seed: RandomSampler(seed=seed), ()),
    "gp": (lambda seed: GPSampler(seed=seed), ("scipy", "torch")),
    "cmaes": (CmaSampler, ("cmaes",)),
}
PRUNERS = ("median", "hyperband", "none")


def make_sampler(plan: Plan, trial_number: int) -> BaseSampler:
    """A sampler for one trial. It is seeded with the study's seed and the trial's number, so that no two workers draw
    the same, and a draw depends only on the trials that have finished.

    :param trial_number: number of the trial
    """
    seed = int(np.random.SeedSequence([plan.seed, trial_number]).generate_state(1)[0])
    return SAMPLERS[plan.sampler][0](seed)


def make_pruner(plan: Plan) -> BasePruner:
    """A pruner; its steps are environment steps."""
    total = plan.n_timesteps * plan.n_seeds
    match plan.pruner:
        case "median":
            # The first third predicts little, and so do fewer than five other trials.
            return MedianPruner(n_startup_trials=5, n_warmup_steps=plan.n_timesteps // 3, n_min_trials=3)
        case "hyperband":
            return HyperbandPruner(min_resource=plan.eval_freq, max_resource=total, reduction_factor=3)
    return NopPruner()


def check_search(plan: Plan) -> None:
    """:raises ValueError: no such sampler or pruner, or its packages are not installed"""
    if plan.sampler not in SAMPLERS:
        raise ValueError(f"sampler={plan.sampler!r} must be one of {', '.join(SAMPLERS)}")
    missing = [package for package in SAMPLERS[plan.sampler][1] if find_spec(package) is None]
    if missing:
        raise ValueError(f"sampler={plan.sampler!r} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if plan.pruner not in PRUNERS:
        raise ValueError(f"pruner={plan.pruner!r} must be one of {', '.join(PRUNERS)}")
