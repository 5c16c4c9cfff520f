"""Budgets are whole rollouts, and seeds do not overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.tune.plan import Plan, rollout_size
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
    ("options", "n_trials", "text"),
    [
        ({}, 40, "40 trials of 64 timesteps, then up to 16 runs of the race and 40 runs of the confirmation"),
        ({"race_seeds": 0, "confirm_seeds": 0}, 2, "2 trials of 64 timesteps, no race and no confirmation"),
        (
            {"n_seeds": 2, "race_seeds": 1},
            2,
            "of 64 timesteps on each of 2 seeds, then up to 1 run of the race and 20 ",
        ),
        ({}, 1, "1 trial of 64 timesteps, no race and no confirmation"),
    ],
)
def test_a_plan_in_words(options, n_trials, text):
    assert text in Plan(64, **options).describe(n_trials)


def test_a_plan_with_two_baselines_in_words():
    later = "then up to 16 runs of the race and 50 runs of the confirmation"
    assert Plan(64).describe(40, n_baselines=2) == f"40 trials of 64 timesteps, {later}"
    assert Plan(64).describe(2, n_baselines=2) == Plan(64).describe(2, n_baselines=3)
    assert Plan(64).describe(2, n_baselines=2).endswith("no race and no confirmation")


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
