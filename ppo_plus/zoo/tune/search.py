"""Samplers and pruners by name."""

from collections.abc import Callable

import numpy as np
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from ppo_plus.zoo.tune.plan import Plan

#: Samplers that keep nothing in the database: Optuna's CMA-ES unpickles its state from there, so that anyone who can
#: write to the database could run code in every worker.
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(multivariate=True, constant_liar=True, seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
}

PRUNERS: dict[str, Callable[[Plan], BasePruner]] = {
    # The first third predicts little, and so do fewer than five other trials.
    "median": lambda plan: MedianPruner(n_startup_trials=5, n_warmup_steps=plan.n_timesteps // 3, n_min_trials=3),
    "hyperband": lambda plan: HyperbandPruner(plan.eval_freq, plan.n_timesteps * plan.n_seeds, reduction_factor=3),
    "none": lambda _: NopPruner(),
}


def make_sampler(plan: Plan, trial_number: int) -> BaseSampler:
    """A sampler for one trial, seeded with the study's seed and the trial's number: no two workers draw the same, and a
    draw depends only on the trials that have finished."""
    return SAMPLERS[plan.sampler](int(np.random.SeedSequence([plan.seed, trial_number]).generate_state(1)[0]))


def make_pruner(plan: Plan) -> BasePruner:
    """A pruner; its steps are environment steps."""
    return PRUNERS[plan.pruner](plan)


def check_search(plan: Plan) -> None:
    """:raises ValueError: there is no such sampler or pruner"""
    for name, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if getattr(plan, name) not in known:
            raise ValueError(f"{name}={getattr(plan, name)!r} must be one of {', '.join(known)}")
