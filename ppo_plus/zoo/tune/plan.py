"""The plan of a study: budgets, evaluations, seeds, sampler and pruner."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.hyperparams import shortened
from ppo_plus.zoo.tune.space import setting

#: Between the seeds of two runs: the k-th environment has the run's seed plus k, and runs must not share episodes.
SEED_STRIDE = 1_000

#: From the study's seed to the first one of the confirmation.
CONFIRMATION_SEED = 1_000_000

#: Samplers, made from a seed. Optuna's CMA-ES is not among them: it unpickles its state from the database, so anyone
#: who can write to the database could run code in every worker.
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(multivariate=True, constant_liar=True, seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
}

#: Pruners; their steps are environment steps.
PRUNERS: dict[str, Callable[["Plan"], BasePruner]] = {
    # The first third predicts little, and so do fewer than five other trials.
    "median": lambda plan: MedianPruner(n_startup_trials=5, n_warmup_steps=plan.n_timesteps // 3, n_min_trials=3),
    "hyperband": lambda plan: HyperbandPruner(plan.eval_freq, plan.n_timesteps * plan.n_seeds, reduction_factor=3),
    "none": lambda _: NopPruner(),
}

#: The least that each whole number of a plan may be.
LOWEST = dict.fromkeys(("race_seeds", "confirm_seeds", "seed"), 0) | dict.fromkeys(
    ("n_timesteps", "n_evals", "n_eval_episodes", "n_eval_envs", "last_evals", "n_seeds", "n_finalists"), 1
)


@dataclass(frozen=True)
class Plan:
    """The budget of a study."""

    n_timesteps: int  # environment steps of each run
    n_evals: int = 10  # evaluations of a run, at most: the interval between two is a whole number of rollouts
    n_eval_episodes: int = 10  # episodes of an evaluation
    n_eval_envs: int = 1  # parallel environments of an evaluation
    last_evals: int = 3  # the score of a run is the mean of this many last evaluations
    n_seeds: int = 1  # seeds of a trial
    race_share: float = 0.2  # share of the finished trials that get more seeds
    race_seeds: int = 2  # number of these seeds
    n_finalists: int = 3  # number of trials that are compared with the baselines
    #: Number of unseen seeds for this: at least 10, because fewer are not conclusive; 0: nothing is confirmed.
    confirm_seeds: int = 10
    sampler: str = "tpe"  # `"tpe"`, `"random"` or `"gp"`
    pruner: str = "median"  # `"median"`, `"hyperband"` or `"none"`
    #: First training seed, which also seeds the samplers; the others follow in steps of `SEED_STRIDE`.
    seed: int = 0
    #: Time for all runs over all workers; once the baselines have run, the plan becomes `within` it. `None`: no limit.
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(known)}")
        for name, lowest in LOWEST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name}={shortened(repr(value))} must be a whole number")
            if value < lowest:
                raise ValueError(f"{name}={value} must be at least {lowest}")
        if 0 < self.confirm_seeds < 10:
            raise ValueError(
                f"confirm_seeds={self.confirm_seeds} is too few to be conclusive: use at least 10, or 0 for none"
            )
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(f"seconds={self.seconds} must be above 0")
        if not 0 <= self.race_share <= 1:
            raise ValueError(f"race_share={self.race_share} must be between 0 and 1")
        if self.n_seeds + self.race_seeds > CONFIRMATION_SEED // SEED_STRIDE:
            raise ValueError(f"n_seeds={self.n_seeds} and race_seeds={self.race_seeds} must be at most 1000 together")
        if self.confirmation_seeds.stop > 2**32:
            raise ValueError(f"seed={self.seed} leaves no seeds below 2**32 for the confirmation: use a smaller one")
        if self.last_evals > self.n_evals:
            raise ValueError(
                f"last_evals={self.last_evals} (--last-evals) must be at most n_evals={self.n_evals} (--n-evaluations)"
            )

    def make_sampler(self, trial_number: int) -> BaseSampler:
        """A sampler for one trial, seeded with the study's seed and the trial's number: no two workers draw the same,
        and a draw depends only on the trials that have finished."""
        return SAMPLERS[self.sampler](int(np.random.SeedSequence([self.seed, trial_number]).generate_state(1)[0]))

    def make_pruner(self) -> BasePruner:
        """The pruner."""
        return PRUNERS[self.pruner](self)

    @property
    def eval_freq(self) -> int:
        """Environment steps between two evaluations."""
        return self.n_timesteps // self.n_evals

    @property
    def screening_seeds(self) -> range:
        """The training seeds of every trial."""
        return self._seed_range(0, self.n_seeds)

    @property
    def racing_seeds(self) -> range:
        """The further training seeds of the trials that race."""
        return self._seed_range(SEED_STRIDE * self.n_seeds, self.race_seeds)

    @property
    def confirmation_seeds(self) -> range:
        """The training seeds of the confirmation. They start far from the others, which may become more."""
        return self._seed_range(CONFIRMATION_SEED, self.confirm_seeds)

    def _seed_range(self, start: int, n: int) -> range:
        return range(self.seed + start, self.seed + start + SEED_STRIDE * n, SEED_STRIDE)

    def n_racing(self, n_trials: int) -> int:
        """How many trials race, of those that have a score, without the baselines."""
        return min(n_trials, max(self.n_finalists, math.ceil(self.race_share * n_trials))) if self.race_seeds else 0

    def n_runs(self, max_total_trials: int, n_baselines: int = 1) -> tuple[int, int, int]:
        """The most runs of search, race and confirmation; ``n_baselines`` of the trials are baselines."""
        n_searched = max(max_total_trials - n_baselines, 0)
        race = self.n_racing(n_searched) * self.race_seeds
        confirmation = (min(self.n_finalists, n_searched) + n_baselines) * self.confirm_seeds if n_searched else 0
        return max_total_trials * self.n_seeds, race, confirmation

    def describe(self, max_total_trials: int, n_baselines: int = 1) -> str:
        """What a study does at most, in a line."""
        search, race, confirmation = self.n_runs(max_total_trials, n_baselines)
        return (
            f"at most {search} runs of the search, {race} of the race and {confirmation} of the confirmation, with "
            f"{self.n_timesteps:,} timesteps each"
        )

    def within(self, n_runs: float, max_total_trials: int, n_baselines: int = 1) -> tuple["Plan", int]:
        """The plan and the number of trials for a number of runs, which one trial besides the baselines may exceed. The
        confirmation gets up to half of the runs, with fewer finalists if need be, or else none; then comes the race."""
        for n in range(self.n_finalists, 0, -1):
            confirmed = replace(self, n_finalists=n)
            if (n + n_baselines) * self.confirm_seeds <= n_runs / 2:
                break
        else:
            confirmed = replace(self, confirm_seeds=0)
        plan, least = confirmed, min(max_total_trials, n_baselines + 1)
        for plan in (confirmed, replace(confirmed, race_seeds=0)):
            for n_trials in range(max_total_trials, least - 1, -1):
                if sum(plan.n_runs(n_trials, n_baselines)) <= n_runs:
                    return plan, n_trials
        return plan, least

    def on_rollouts(self, *experiments: Experiment) -> "Plan":
        """The plan with a budget, and intervals between evaluations, that are whole rollouts of the experiments. The
        budget can only grow; the number of evaluations may change."""
        rollout = math.lcm(*(rollout_size(experiment) for experiment in experiments))
        interval = math.ceil(self.n_timesteps / self.n_evals / rollout) * rollout
        n_evals = math.ceil(self.n_timesteps / interval)
        return replace(self, n_timesteps=n_evals * interval, n_evals=n_evals, last_evals=min(self.last_evals, n_evals))


def rollout_size(experiment: Experiment) -> int:
    """Transitions of a rollout."""
    return int(setting(experiment, "n_steps")) * experiment.n_envs


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 trial``, ``2 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
