"""What a study is about: its plan (budgets, evaluations, seeds, sampler, pruner), its task (the plan, what is tuned and
the search space, as plain data that a storage keeps), and the score of a run."""

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch as th
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus import EnvFault, EvalAfterUpdates, PPO_Plus
from ppo_plus.envs.normalization import IN_POLICY
from ppo_plus.generators import derived_seed
from ppo_plus.require import require_int, require_one_of
from ppo_plus.saving.format.names import constructor_arguments
from ppo_plus.settings import MAX_AUTO_SEQUENCE
from ppo_plus.zoo.callbacks import Interruptible
from ppo_plus.zoo.experiment import Experiment, make_envs, make_model, parse_settings
from ppo_plus.zoo.installation import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.space import Space, parse_space, setting

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


@dataclass(frozen=True)
class Plan:
    """The budget of a study."""

    n_timesteps: int  # environment steps of each run
    n_evals: int = 10  # evaluations of a run, at most: the interval between two is a whole number of rollouts
    n_eval_episodes: int = 10  # episodes of an evaluation
    n_eval_envs: int = 1  # parallel environments of an evaluation
    last_evals: int = 3  # the score of a run is the mean of this many last evaluations, or of all if there are fewer
    n_seeds: int = 1  # seeds of a trial
    n_finalists: int = 3  # number of the best trials that are compared with the baselines
    #: Number of unseen seeds for this: at least 10, because fewer are not conclusive; 0: nothing is confirmed.
    confirm_seeds: int = 10
    sampler: str = "tpe"  # `"tpe"`, `"random"` or `"gp"`
    pruner: str = "median"  # `"median"`, `"hyperband"` or `"none"`
    #: First training seed, which also seeds the samplers; the others follow in steps of `SEED_STRIDE`.
    seed: int = 0

    def __post_init__(self) -> None:
        require_one_of("sampler", self.sampler, SAMPLERS)
        require_one_of("pruner", self.pruner, PRUNERS)
        for name in vars(self).keys() - {"sampler", "pruner", "seed"}:
            require_int(name, getattr(self, name), 0 if name == "confirm_seeds" else 1)
        require_int("seed", self.seed, 0, 2**31)  # leaves numbers for the other seeds
        if 0 < self.confirm_seeds < 10:
            raise ValueError(f"confirm_seeds={self.confirm_seeds} is inconclusive: use at least 10, or 0 for none")

    def make_sampler(self, trial_number: int) -> BaseSampler:
        """A sampler for one trial, seeded with the study's seed and the trial's number: no two workers draw the same,
        and a draw depends only on the trials that have finished."""
        return SAMPLERS[self.sampler](derived_seed([self.seed, trial_number]))

    @property
    def eval_freq(self) -> int:
        """Environment steps between two evaluations."""
        return self.n_timesteps // self.n_evals

    def seeds(self, stage: str) -> range:
        """The training seeds of all trials in the ``"screening"`` or the ``"confirmation"``."""
        start, n = {"screening": (0, self.n_seeds), "confirmation": (CONFIRMATION_SEED, self.confirm_seeds)}[stage]
        return range(self.seed + start, self.seed + start + SEED_STRIDE * n, SEED_STRIDE)

    def n_runs(self, max_total_trials: int, n_baselines: int) -> tuple[int, int]:
        """The most runs of search and confirmation; ``n_baselines`` of the trials are baselines."""
        n_searched = max(max_total_trials - n_baselines, 0)
        confirmation = (min(self.n_finalists, n_searched) + n_baselines) * self.confirm_seeds if n_searched else 0
        return max_total_trials * self.n_seeds, confirmation


#: Settings without which another setting has no effect.
CONDITIONS: dict[str, dict[str, Any]] = {"sde_sample_freq": {"use_sde": True}, "kl_control": {"target_kl": 0.01}}
#: What a model raises that cannot be built with its settings.
UNFIT = (ValueError, TypeError, RuntimeError, AssertionError)


@dataclass(frozen=True)
class TuningTask:
    """What a study is about."""

    experiment: Experiment  # what is tuned
    space: dict[str, Any]  # contents of the search-space file
    plan: Plan
    packages: tuple[str, ...] | None = ALLOWED_PACKAGES  # what settings may import from; `None`: from anywhere
    gym_packages: tuple[str, ...] = ()  # packages imported because they register environments

    @cached_property
    def n_agents(self) -> int:
        """How many rows each environment is: the agents of a game of PettingZoo, otherwise 1."""
        if not self.experiment.env_id.startswith("pettingzoo:"):
            return 1
        with closing(make_envs(self.experiment.replace(vec_env="dummy"), 1)) as env:
            return env.num_envs

    def baselines(self) -> dict[str, Experiment]:
        """What is tried before the search, and what a winner must beat, by name: the defaults of
        ``PPO_Plus(policy, env)``, and the experiment's own settings if they differ from them."""
        # Without these, the task or the cost of a run would change, or images could not be read.
        kept = {"action_mask_key", "compile", "n_threads", "streams"}
        needed = {name: value for name, value in self.experiment.hyperparams.items() if name in kept}
        reading = {"actor_keys", "features_extractor_class", "features_extractor_kwargs", "normalize_images"}
        others = set[str]().union(*map(constructor_arguments, PPO_Plus.policy_aliases.values())) - reading
        # Arguments of a custom policy belong to it.
        read_by = {name: value for name, value in self.experiment.policy_kwargs.items() if name not in others}
        default = self.experiment.replace(n_envs=1, normalize=None, policy_kwargs=read_by, hyperparams=needed)
        return {"default": default} | ({"settings file": self.experiment} if default != self.experiment else {})

    def fitted(self) -> "TuningTask":
        """The task with a budget, and intervals between evaluations, of whole rollouts of the experiment; the default's
        last one may exceed it. The budget can only grow; the number of evaluations may change."""
        plan, n_rows = self.plan, self.experiment.n_envs * self.n_agents
        rollout = int(setting(self.experiment, "n_steps")) * n_rows
        interval = math.ceil(plan.n_timesteps / plan.n_evals / rollout) * rollout
        n_evals = math.ceil(plan.n_timesteps / interval)
        plan = replace(plan, n_timesteps=n_evals * interval, n_evals=n_evals)
        # As the storage returns it: names of choices are text.
        space = json.loads(json.dumps(self.space))
        experiment = self.experiment.replace(seed=0, n_timesteps=plan.n_timesteps)
        task = replace(self, plan=plan, experiment=experiment, space=space)
        task.search_space()
        return task

    def checked(self) -> "TuningTask":
        """The fitted task, after building, without training, its baselines and a model with each value of the space.

        :raises ValueError: one of them cannot be built
        """
        task = self.fitted()

        def build(experiment: Experiment) -> None:
            with closing(make_envs(experiment)) as envs:
                make_model(experiment, envs)

        task.experiment.make_callbacks()
        for baseline in task.baselines().values():
            build(baseline)
        base = task.experiment.replace(vec_env="dummy")
        with closing(make_envs(base)) as envs:
            for name, value, settings in task.search_space().examples():
                try:
                    candidate = task.candidate({**CONDITIONS.get(name, {}), **settings}).replace(vec_env="dummy")
                    if candidate.replace(policy_kwargs=base.policy_kwargs, hyperparams=base.hyperparams) == base:
                        make_model(candidate, envs)  # in the same environments
                    else:
                        build(candidate)
                except UNFIT as error:
                    raise ValueError(f"search space: {name}: {value!r} cannot be used: {error}") from error
        return task

    def search_space(self) -> Space:
        """The space, widened to include the baselines."""
        space = parse_space(self.space)
        for experiment in self.baselines().values():
            space = space.including(experiment)
        return space

    def candidate(self, settings: dict[str, Any]) -> Experiment:
        """The experiment with sampled settings, adjusted where they do not fit each other."""
        sampled = self.experiment.with_hyperparams(settings, self.packages)
        n_rows = sampled.n_envs * self.n_agents
        steps = self.plan.eval_freq // n_rows
        divisors = [n for n in range(1, min(setting(sampled, "n_steps"), steps) + 1) if steps % n == 0]
        # Memory learns from sequences whose length divides the number of steps.
        unit = math.gcd(setting(self.experiment, "n_steps"), MAX_AUTO_SEQUENCE)
        n_steps = max(divisors, key=lambda n: (n % unit == 0, n), default=1)
        batch_size = min(setting(sampled, "batch_size"), n_steps * n_rows)
        adjusted = {"n_steps": n_steps, "batch_size": batch_size}
        if setting(sampled, "exploration") is not None:
            adjusted["use_sde"] = False
        elif not setting(sampled, "use_sde"):
            adjusted["sde_sample_freq"] = -1
        if setting(sampled, "target_kl") is None:
            adjusted["kl_control"] = "stop"
        inside = [option for name, option in IN_POLICY.items() if setting(sampled, name) is not False]
        if sampled.normalize is not None and inside:
            # What the policy normalizes itself, VecNormalize does not.
            adjusted["normalize"] = {**sampled.normalize, **dict.fromkeys(inside, False)}
        return self.experiment.with_hyperparams({**settings, **adjusted}, self.packages)

    def read(self, settings: dict[str, Any]) -> Experiment:
        """The experiment that recorded settings describe."""
        experiment = parse_settings(self.experiment.env_id, settings, self.packages)
        return experiment.replace(**self.experiment.beside_settings())

    def to_json(self) -> dict[str, Any]:
        """The task as plain data, as a storage returns it."""
        data = {
            "env_id": self.experiment.env_id,
            "settings": self.experiment.settings(),
            "run": self.experiment.beside_settings(),
            "space": self.space,
            "plan": asdict(self.plan),
        }
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]


class Diverged(Exception):
    """A run has no score: its settings do not fit, numbers are not finite, no update, too many failing environments."""


def score(
    experiment: Experiment,
    plan: Plan,
    seed: int,
    report: Callable[[int, float], None],
    restarts: int = 0,
    timeout: float | None = None,
) -> float:
    """Train, evaluate after updates, and return the mean of the last evaluations.

    :param report: called with the timesteps and the mean return of each evaluation; an exception ends the run
    :param restarts: how many failing environments to replace, as of :func:`ppo_plus.zoo.experiment.make_envs`
    :param timeout: limit of seconds for a step or a reset of an environment
    :raises Diverged: the run has no score
    """
    experiment, returns = experiment.replace(seed=seed, n_timesteps=plan.n_timesteps), list[float]()
    make: Callable[..., VecEnv] = partial(make_envs, experiment, restarts=restarts, timeout=timeout)

    def after_evaluation(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        returns.append(float(evaluation.last_mean_reward))
        if not math.isfinite(returns[-1]):
            raise Diverged(f"the mean return is {returns[-1]} after {evaluation.num_timesteps} timesteps")
        report(evaluation.num_timesteps, returns[-1])
        return True

    try:
        with closing(make()) as envs, closing(make(n_envs=plan.n_eval_envs, evaluation=True)) as eval_envs:
            evaluation = EvalAfterUpdates(
                eval_envs,
                eval_freq=plan.eval_freq,
                n_eval_episodes=plan.n_eval_episodes,
                deterministic=experiment.deterministic_eval,
                callback_after_eval=ConvertCallback(after_evaluation),
                warn=False,
            )
            try:
                model = make_model(experiment, envs)
            except UNFIT as error:  # each value can be used, but not all together
                raise Diverged(str(error) or type(error).__name__) from None
            callbacks = [evaluation, *experiment.make_callbacks(), Interruptible()]
            model.learn(plan.n_timesteps, callback=callbacks, log_interval=None)  # type: ignore[arg-type]
    except (MemoryError, th.cuda.OutOfMemoryError) as error:
        raise Diverged(f"out of memory: {error}") from None
    except (FloatingPointError, EnvFault) as error:
        # A `NotFiniteFault` is both.
        if not isinstance(error, FloatingPointError) and not restarts:
            raise
        raise Diverged(str(error)) from None
    if not returns:
        raise Diverged("no update happened within the budget")
    return float(np.mean(returns[-plan.last_evals :]))
