"""The score of a run: evaluations after updates, the last one included."""

import numpy as np
import pytest

from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.tune import objective
from ppo_plus.zoo.tune.objective import Diverged, mean_of_last, resolve_compile, score
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


def test_no_update_no_score():
    with pytest.raises(Diverged, match="no update"):
        mean_of_last([], 3)


def test_an_experiment_says_whether_it_is_compiled(monkeypatch):
    monkeypatch.setattr(objective, "compiles", lambda _: True)
    auto = SMALL.replace(hyperparams={"n_steps": 128, "n_epochs": 1})
    short, long = (resolve_compile(auto, Plan(n, n_evals=1, last_evals=1)) for n in (512, 2**20))
    assert (short.hyperparams["compile"], long.hyperparams["compile"]) == (False, True)
    monkeypatch.setattr(objective, "compiles", lambda _: False)
    assert resolve_compile(auto, Plan(2**20)).hyperparams["compile"] is False
    given = auto.replace(hyperparams={"compile": True})
    assert resolve_compile(given, PLAN) is given
