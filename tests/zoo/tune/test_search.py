"""Samplers and pruners by name."""

import optuna
import pytest
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

from ppo_plus.zoo.tune import search
from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.search import SAMPLERS, check_search, make_pruner, make_sampler


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_sample_and_differ_from_trial_to_trial(name):
    plan = Plan(1000, sampler=name)
    check_search(plan)

    def sample(trial_number):
        study = optuna.create_study(sampler=make_sampler(plan, trial_number))
        study.add_trials([optuna.create_trial(value=x, params={"x": x}, distributions=SPACE) for x in (0.2, 0.4, 0.9)])
        return study.ask(SPACE).params["x"]

    assert sample(0) == sample(0) != sample(1)


SPACE = {"x": optuna.distributions.FloatDistribution(0, 1)}


def test_pruners():
    kinds = {"median": MedianPruner, "hyperband": HyperbandPruner, "none": NopPruner}
    assert {name: type(make_pruner(Plan(1000, pruner=name))) for name in search.PRUNERS} == kinds


@pytest.mark.parametrize("argument", [{"sampler": "best"}, {"pruner": "best"}])
def test_unknown_names(argument):
    with pytest.raises(ValueError, match="'best' must be one of"):
        check_search(Plan(1000, **argument))
