"""Budgets are whole rollouts, and seeds do not overlap."""

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.tune.plan import PRUNERS, SAMPLERS, Plan, rollout_size
from ppo_plus.zoo.tune.space import read_space

CARTPOLE = load_experiment("CartPole-v1")
SPACE = read_space()


@given(st.integers(1, 300_000), st.integers(1, 20), st.integers(1, 3000), st.integers(1, 16))
def test_budget_and_interval_are_whole_rollouts(n_timesteps, n_evals, n_steps, n_envs):
    experiment = Experiment("CartPole-v1", 1, n_envs=n_envs, hyperparams={"n_steps": n_steps})
    plan = Plan(n_timesteps, n_evals=n_evals, last_evals=1).on_rollouts(experiment)
    assert plan.n_timesteps >= n_timesteps
    assert plan.eval_freq * plan.n_evals == plan.n_timesteps
    assert plan.eval_freq % rollout_size(experiment) == 0
    assert 1 <= plan.last_evals <= plan.n_evals <= n_evals


@pytest.mark.parametrize(
    ("options", "n_trials", "n_baselines", "n_runs"),
    [
        ({}, 40, 1, (40, 16, 40)),
        ({}, 40, 2, (40, 16, 50)),
        ({"race_seeds": 0, "confirm_seeds": 0}, 2, 1, (2, 0, 0)),
        ({"n_seeds": 2, "race_seeds": 1}, 2, 1, (4, 1, 20)),
        ({}, 1, 1, (1, 0, 0)),
        ({}, 2, 2, (2, 0, 0)),
        ({}, 2, 3, (2, 0, 0)),
    ],
)
def test_a_plan_in_words(options, n_trials, n_baselines, n_runs):
    runs = "at most {} runs of the search, {} of the race and {} of the confirmation, with 64 timesteps each"
    assert Plan(64, **options).describe(n_trials, n_baselines) == runs.format(*n_runs)


@given(st.floats(1, 500), st.integers(1, 60), st.integers(1, 2), st.integers(0, 3), st.integers(0, 12))
def test_a_plan_within_a_time(n_runs, n_trials, n_baselines, race_seeds, confirm_seeds):
    plan = Plan(64, race_seeds=race_seeds, confirm_seeds=confirm_seeds if confirm_seeds >= 10 else 0)
    fitted, n = plan.within(n_runs, n_trials, n_baselines)
    least = min(n_trials, n_baselines + 1)
    assert least <= n <= n_trials and fitted.n_finalists <= plan.n_finalists
    assert sum(fitted.n_runs(n, n_baselines)) <= n_runs or (n, fitted.race_seeds, fitted.confirm_seeds) == (least, 0, 0)
    confirmation = (plan.n_finalists + n_baselines) * plan.confirm_seeds
    if sum(plan.n_runs(n_trials, n_baselines)) <= n_runs and confirmation <= n_runs / 2:
        assert (fitted, n) == (plan, n_trials)


def test_what_a_shorter_time_leaves_out():
    """Trials and finalists first, then the whole confirmation, and last the race."""
    found = [Plan(64).within(n_runs, 40, 2) for n_runs in (200, 106, 100, 60, 59, 8, 4)]
    assert [(n, plan.n_finalists, plan.confirm_seeds, plan.race_seeds) for plan, n in found] == [
        (40, 3, 10, 2),
        (40, 3, 10, 2),
        (36, 3, 10, 2),
        (22, 1, 10, 2),
        (40, 3, 0, 2),
        (4, 3, 0, 2),
        (4, 3, 0, 0),
    ]


def test_seeds_do_not_overlap():
    plan = Plan(1000, n_seeds=3, race_seeds=4, confirm_seeds=12, seed=5)
    seeds = [*plan.screening_seeds, *plan.racing_seeds, *plan.confirmation_seeds]
    assert len(seeds) == 19 and min(seeds) == 5
    environments = [seed + k for seed in seeds for k in range(1_000)]
    assert len(set(environments)) == len(environments)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"n_timesteps": 0}, "n_timesteps=0"),
        ({"n_evals": 2, "last_evals": 3}, r"last_evals=3 \(--last-evals\) must be at most n_evals=2 \(--n-evaluations"),
        ({"race_share": 1.5}, "race_share=1.5"),
        ({"confirm_seeds": 5}, "at least 10"),
        ({"race_seeds": -1}, "race_seeds=-1"),
        ({"race_seeds": 1000}, "at most 1000"),
        ({"seed": 2**32 - 1}, "a smaller one"),
    ],
)
def test_a_plan_that_cannot_be(argument, message):
    with pytest.raises(ValueError, match=message):
        Plan(**{"n_timesteps": 1000, **argument})


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_sample_and_differ_from_trial_to_trial(name):
    plan = Plan(1000, sampler=name)
    space = {"x": FloatDistribution(0, 1)}

    def sample(trial_number):
        study = optuna.create_study(sampler=plan.make_sampler(trial_number))
        study.add_trials([optuna.create_trial(value=x, params={"x": x}, distributions=space) for x in (0.2, 0.4, 0.9)])
        return study.ask(space).params["x"]

    assert sample(0) == sample(0) != sample(1)


def test_pruners():
    kinds = {"median": MedianPruner, "hyperband": HyperbandPruner, "none": NopPruner}
    assert {name: type(Plan(1000, pruner=name).make_pruner()) for name in PRUNERS} == kinds


@pytest.mark.parametrize("argument", [{"sampler": "best"}, {"pruner": "best"}])
def test_unknown_names(argument):
    with pytest.raises(ValueError, match="'best' must be one of"):
        Plan(1000, **argument)
