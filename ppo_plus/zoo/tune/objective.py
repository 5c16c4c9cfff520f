"""The score of an experiment: the mean return of the policy at the end of a fixed budget."""

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus import EnvFault
from ppo_plus.zoo.callbacks import EvalAfterUpdates, Interruptible
from ppo_plus.zoo.experiment import Experiment, make_callbacks, make_envs, make_model
from ppo_plus.zoo.tune.plan import Plan

#: Called with the timesteps and the mean return of each evaluation. An exception ends the run.
Report = Callable[[int, float], None]


class Diverged(Exception):
    """A run without a score, caused by its settings: non-finite numbers, no update, too many failing environments."""


def score(experiment: Experiment, plan: Plan, seed: int, report: Report, **supervision: Any) -> float:
    """Train, evaluate after updates, and return the mean of the last evaluations. ``supervision`` has arguments of
    :func:`ppo_plus.zoo.experiment.make_envs` for environments that may fail.

    :raises Diverged: the run has no score
    """
    experiment, reporter = experiment.replace(seed=seed, n_timesteps=plan.n_timesteps), Reporter(report)
    try:
        with (
            closing(make_envs(experiment, **supervision)) as envs,
            closing(make_envs(experiment, n_envs=plan.n_eval_envs, evaluation=True, **supervision)) as eval_envs,
        ):
            evaluation = EvalAfterUpdates(
                eval_envs,
                eval_freq=plan.eval_freq,
                n_eval_episodes=plan.n_eval_episodes,
                deterministic=experiment.deterministic_eval,
                callback_after_eval=reporter,
                warn=False,
            )
            model = make_model(experiment, envs)
            callbacks = [evaluation, *make_callbacks(experiment), Interruptible()]
            model.learn(plan.n_timesteps, callback=callbacks, log_interval=None)  # type: ignore[arg-type]
    except (FloatingPointError, EnvFault) as error:
        if isinstance(error, EnvFault) and not supervision.get("restarts"):
            raise
        raise Diverged(str(error)) from None
    if not reporter.returns:
        raise Diverged("no update happened within the budget")
    return float(np.mean(reporter.returns[-plan.last_evals :]))


class Reporter(BaseCallback):
    """Reports the mean return of each evaluation."""

    def __init__(self, report: Report):
        super().__init__()
        self.report = report
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        mean = float(self.parent.last_mean_reward)  # type: ignore[union-attr]
        if not math.isfinite(mean):
            raise Diverged(f"the mean return is {mean} after {self.num_timesteps} timesteps")
        self.returns.append(mean)
        self.report(self.num_timesteps, mean)
        return True
