"""Budgets are whole rollouts, seeds do not overlap, and settings fit each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.plan import Plan, Task, largest_divisor, make_task, rollout_size, tell_budget
from ppo_plus.zoo.tune.space import read_space, setting

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


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([32, 100, 2048, 4096]),
    st.sampled_from([32, 1024, 100_000]),
    st.booleans(),
    st.sampled_from([None, 0.01]),
    st.integers(1, 16),
)
def test_candidates_fit(n_steps, batch_size, use_sde, target_kl, n_envs):
    task = make_task(CARTPOLE, SPACE, Plan(50_000))
    sampled = dict(n_steps=n_steps, batch_size=batch_size, use_sde=use_sde, target_kl=target_kl, n_envs=n_envs)
    experiment = task.candidate({**sampled, "sde_sample_freq": 4, "kl_control": "penalty"})
    rollout = rollout_size(experiment)
    assert setting(experiment, "n_steps") <= n_steps and experiment.n_envs == n_envs
    assert n_envs * (task.plan.eval_freq // n_envs) % rollout == 0
    assert setting(experiment, "batch_size") == min(batch_size, rollout)
    assert setting(experiment, "sde_sample_freq") == (4 if use_sde else -1)
    assert setting(experiment, "kl_control") == ("stop" if target_kl is None else "penalty")


def test_a_budget_that_grows_says_so(capsys):
    tell_budget(20_480, make_task(CARTPOLE, {"gamma": {"choices": [0.9]}}, Plan(20_480)))
    assert capsys.readouterr().err == ""
    task = make_task(CARTPOLE, SPACE, Plan(20_000))
    tell_budget(20_000, task)
    assert f"runs get {task.plan.n_timesteps:,} timesteps instead of 20,000" in capsys.readouterr().err
    odd = CARTPOLE.with_hyperparams({"n_steps": 125})
    with pytest.raises(ValueError, match="n_timesteps=20000 becomes 256000.*give n_timesteps=128000"):
        make_task(odd, SPACE, Plan(20_000))
    assert make_task(odd, SPACE, Plan(128_000)).plan.n_timesteps == 256_000


def test_every_choice_of_n_steps_fits_the_interval():
    task = make_task(CARTPOLE, SPACE, Plan(50_000))
    choices = task.search_space().dimensions["n_steps"].values
    assert {32, 2048} <= set(choices)
    for n_steps in set(choices) - {2048}:
        assert setting(task.candidate({"n_steps": n_steps}), "n_steps") == n_steps


def test_rollouts_that_fit_no_interval_are_refused_and_the_others_left_out(capsys):
    with pytest.raises(ValueError, match=r"n_steps: none of \[500, 5000\] fits: with n_envs=8, rollouts must divide"):
        make_task(CARTPOLE, {"n_steps": {"choices": [500, 5000]}}, Plan(20_480))
    with pytest.raises(ValueError, match=r"n_steps: nothing between 300 and 400 fits"):
        make_task(CARTPOLE, {"n_steps": {"low": 300, "high": 400}}, Plan(20_480))
    task = make_task(CARTPOLE, {"n_steps": {"choices": [64, 500]}}, Plan(20_480))
    assert set(task.search_space().dimensions["n_steps"].values) == {64, 32, 2048}
    tell_budget(20_480, task)
    why = "n_steps times n_envs must divide the 2,048 timesteps"
    assert f"n_steps=500 of the search space will not be tried with n_envs=8: {why}" in capsys.readouterr().err
    # The default has 2048 with its one environment; with eight, a candidate would get another one.
    assert make_task(CARTPOLE, {"n_steps": {"choices": [64, 2048]}}, Plan(20_480)).left_out() == [2048]


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


def test_the_discount_reaches_the_normalization():
    from ppo_plus.zoo.envs import make_envs

    task = make_task(CARTPOLE.replace(normalize={}), SPACE, Plan(50_000))
    envs = make_envs(task.candidate({"gamma": 0.9}))
    assert envs.gamma == 0.9
    envs.close()


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


def test_default_is_what_the_algorithm_does_by_itself():
    task = make_task(load_experiment("MountainCar-v0"), SPACE, Plan(50_000))
    default = task.baselines()["default"]
    assert (default.n_envs, default.normalize, default.hyperparams, default.policy_kwargs) == (1, None, {}, {})
    assert task.baselines()["settings file"] == task.experiment
    same = make_task(Experiment("CartPole-v1", 1000), SPACE, Plan(50_000))
    assert list(same.baselines()) == ["default"]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_a_task_travels_as_plain_data(env_id):
    task = make_task(load_experiment(env_id, vec_env="subproc"), SPACE, Plan(50_000))
    again = Task.from_json(task.to_json())
    assert again == task
    assert again.read(task.experiment.settings()) == task.experiment


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        ({"packages": None}, "--trust-config"),
        ({"packages": ["gymnasium", "surprise"]}, "--gym-packages surprise"),
        ({"env_id": "surprise.envs:Nice-v0"}, "--gym-packages surprise"),
    ],
)
def test_a_study_imports_nothing_that_the_worker_does_not_allow(wanted, remedy, tmp_path, monkeypatch):
    """Whoever can write to the database runs no code on the workers' machines."""
    (tmp_path / "surprise.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    data = make_task(CARTPOLE, SPACE, Plan(50_000)).to_json()
    data["settings"]["env_wrapper"] = "surprise.Wrapper"
    with pytest.raises(ValueError, match=remedy):
        Task.from_json({**data, **wanted})
    assert not (tmp_path / "ran").exists()


def test_a_study_imports_what_the_worker_allows():
    task = make_task(CARTPOLE, SPACE, Plan(50_000), (*ALLOWED_PACKAGES, "my_envs"), ("my_envs.all",))
    for allowed in (None, (*ALLOWED_PACKAGES, "my_envs")):
        assert Task.from_json(task.to_json(), allowed) == task


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_largest_divisor(number, limit):
    found = largest_divisor(number, limit)
    assert number % found == 0 and found <= max(limit, 1)
    assert not any(number % n == 0 for n in range(found + 1, min(limit, number) + 1))
