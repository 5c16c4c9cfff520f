"""What a worker must know about a study: baselines, candidates that fit, and plain data that imports nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.plan import Plan, rollout_size
from ppo_plus.zoo.tune.space import read_space, setting
from ppo_plus.zoo.tune.task import TuningTask, largest_divisor, make_task

CARTPOLE = load_experiment("CartPole-v1")
SPACE = read_space()


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
    make_task(CARTPOLE, {"gamma": {"choices": [0.9]}}, Plan(20_480))
    assert capsys.readouterr().err == ""
    task = make_task(CARTPOLE, SPACE, Plan(20_000))
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


def test_rollouts_must_fit_between_evaluations():
    with pytest.raises(ValueError, match=r"n_steps: none of \[500, 5000\] fits: with n_envs=8, rollouts must divide"):
        make_task(CARTPOLE, {"n_steps": {"choices": [500, 5000]}}, Plan(20_480))
    task = make_task(CARTPOLE, {"n_steps": {"choices": [64, 500]}}, Plan(20_480))
    assert set(task.search_space().dimensions["n_steps"].values) == {64, 32, 2048}


def test_the_discount_reaches_the_normalization():
    from ppo_plus.zoo.envs import make_envs

    task = make_task(CARTPOLE.replace(normalize={}), SPACE, Plan(50_000))
    envs = make_envs(task.candidate({"gamma": 0.9}))
    assert envs.gamma == 0.9
    envs.close()


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
    again = TuningTask.from_json(task.to_json())
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
    """Access to the database does not let anyone run code on the workers' machines."""
    (tmp_path / "surprise.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    data = make_task(CARTPOLE, SPACE, Plan(50_000)).to_json()
    data["settings"]["env_wrapper"] = "surprise.Wrapper"
    with pytest.raises(ValueError, match=remedy):
        TuningTask.from_json({**data, **wanted})
    assert not (tmp_path / "ran").exists()


def test_a_study_imports_what_the_worker_allows():
    task = make_task(CARTPOLE, SPACE, Plan(50_000), (*ALLOWED_PACKAGES, "my_envs"), ("my_envs.all",))
    for allowed in (None, (*ALLOWED_PACKAGES, "my_envs")):
        assert TuningTask.from_json(task.to_json(), allowed) == task


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_largest_divisor(number, limit):
    found = largest_divisor(number, limit)
    assert number % found == 0 and found <= max(limit, 1)
    assert not any(number % n == 0 for n in range(found + 1, min(limit, number) + 1))
