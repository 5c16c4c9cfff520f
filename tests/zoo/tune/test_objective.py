"""The score of a run: evaluations after updates, the last one included."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from tuning_envs import FailingAt150

from ppo_plus.zoo.experiment import Experiment, Part
from ppo_plus.zoo.tune import objective
from ppo_plus.zoo.tune.objective import Diverged, score
from ppo_plus.zoo.tune.plan import Plan

SMALL = Experiment("CartPole-v1", 512, hyperparams={"n_steps": 128, "n_epochs": 1, "compile": False})
PLAN = Plan(512, n_evals=4, last_evals=3, n_eval_episodes=2)


def run(experiment, seed=0, plan=PLAN):
    reports = []
    value = score(experiment, plan, seed, lambda timesteps, mean: reports.append((timesteps, mean)))
    return value, reports


def test_score_is_the_mean_of_the_last_evaluations():
    value, reports = run(SMALL)
    assert [timesteps for timesteps, _ in reports] == [128, 256, 384, 512]
    assert value == np.mean([mean for _, mean in reports[-3:]])


def test_same_seed_same_score():
    assert run(SMALL) == run(SMALL) != run(SMALL, seed=1)


def test_each_evaluation_follows_an_update(monkeypatch):
    """However long a rollout is: nothing is evaluated before the first update, and the last one is."""
    updates = []
    original = objective.Reporter._on_step

    def on_step(self):
        updates.append(self.model._n_updates)
        return original(self)

    monkeypatch.setattr(objective.Reporter, "_on_step", on_step)
    run(SMALL.replace(hyperparams={"n_steps": 512, "n_epochs": 1, "compile": False}))
    assert updates == [1]


class Stop(BaseCallback):
    """Ends training before the first update."""

    def _on_step(self):
        return False


def test_no_update_no_score():
    with pytest.raises(Diverged, match="no update"):
        run(SMALL.replace(callback=(Part("Stop", Stop, {}),)))


class NaNWhileEvaluated(gym.Wrapper):
    """Observations that are not finite."""

    def step(self, action):
        obs, *rest = self.env.step(action)
        return obs * np.nan, *rest


def test_a_run_whose_evaluation_is_not_finite_has_no_score(monkeypatch):
    make = objective.make_envs

    def make_envs(experiment, **kwargs):
        part = Part("NaNWhileEvaluated", NaNWhileEvaluated, {})
        return make(experiment.replace(env_wrapper=(part,)) if kwargs.get("evaluation") else experiment, **kwargs)

    monkeypatch.setattr(objective, "make_envs", make_envs)
    with pytest.raises(Diverged, match="observation=.* is not finite"):
        run(SMALL)


def test_failing_environments_are_restarted_as_often_as_allowed():
    failing = SMALL.replace(env_wrapper=(Part("FailingAt150", FailingAt150, {}),), n_envs=1)
    value = score(failing, PLAN, 0, lambda *_: None, restarts=100)
    assert value > 0
    with pytest.raises(Diverged, match=r"environment 0, .*: raised ValueError\('boom'\). All restarts=2 are used up"):
        score(failing, PLAN, 0, lambda *_: None, restarts=2)
    with pytest.raises(ValueError, match="boom"):
        score(failing, PLAN, 0, lambda *_: None)
