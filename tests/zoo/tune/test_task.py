"""What a worker must know about a study: baselines, candidates that fit, and plain data that imports nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo_plus.zoo.experiment import Experiment, load_experiment
from ppo_plus.zoo.installation import ALLOWED_PACKAGES
from ppo_plus.zoo.tune.plan import Plan, rollout_size
from ppo_plus.zoo.tune.space import read_space, setting
from ppo_plus.zoo.tune.task import TuningTask, largest_divisor

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
    task = TuningTask(CARTPOLE, SPACE, Plan(50_000)).fitted()
    sampled = dict(n_steps=n_steps, batch_size=batch_size, use_sde=use_sde, target_kl=target_kl, n_envs=n_envs)
    experiment = task.candidate({**sampled, "sde_sample_freq": 4, "kl_control": "penalty"})
    rollout = rollout_size(experiment)
    assert setting(experiment, "n_steps") <= n_steps and experiment.n_envs == n_envs
    assert n_envs * (task.plan.eval_freq // n_envs) % rollout == 0
    assert setting(experiment, "batch_size") == min(batch_size, rollout)
    assert setting(experiment, "sde_sample_freq") == (4 if use_sde else -1)
    assert setting(experiment, "kl_control") == ("stop" if target_kl is None else "penalty")


def test_a_budget_that_grows_says_so(capsys):
    TuningTask(CARTPOLE, {"gamma": {"choices": [0.9]}}, Plan(20_480)).fitted()
    assert capsys.readouterr().err == ""
    task = TuningTask(CARTPOLE, SPACE, Plan(20_000)).fitted()
    assert f"each run has {task.plan.n_timesteps:,} timesteps instead of 20,000" in capsys.readouterr().err
    odd = CARTPOLE.with_hyperparams({"n_steps": 125})
    with pytest.raises(ValueError, match="n_timesteps=20000 becomes 256000.*use n_timesteps=128000"):
        TuningTask(odd, SPACE, Plan(20_000)).fitted()
    assert TuningTask(odd, SPACE, Plan(128_000)).fitted().plan.n_timesteps == 256_000


def test_every_choice_of_n_steps_fits_the_interval():
    task = TuningTask(CARTPOLE, SPACE, Plan(50_000)).fitted()
    choices = task.search_space().dimensions["n_steps"].values
    assert {32, 2048} <= set(choices)
    for n_steps in set(choices) - {2048}:
        assert setting(task.candidate({"n_steps": n_steps}), "n_steps") == n_steps


def test_rollouts_must_fit_between_evaluations():
    with pytest.raises(ValueError, match=r"n_steps: none of \[500, 5000\] fits: with n_envs=8, rollouts must divide"):
        TuningTask(CARTPOLE, {"n_steps": {"choices": [500, 5000]}}, Plan(20_480)).fitted()
    task = TuningTask(CARTPOLE, {"n_steps": {"choices": [64, 500]}}, Plan(20_480)).fitted()
    assert set(task.search_space().dimensions["n_steps"].values) == {64, 32, 2048}


def test_the_discount_reaches_the_normalization():
    from ppo_plus.zoo.experiment import make_envs

    task = TuningTask(CARTPOLE.replace(normalize={}), SPACE, Plan(50_000)).fitted()
    envs = make_envs(task.candidate({"gamma": 0.9}))
    assert envs.gamma == 0.9
    envs.close()


def test_default_is_what_the_algorithm_does_by_itself():
    task = TuningTask(load_experiment("MountainCar-v0"), SPACE, Plan(50_000)).fitted()
    default = task.baselines()["default"]
    assert (default.n_envs, default.normalize, default.hyperparams, default.policy_kwargs) == (1, None, {}, {})
    assert task.baselines()["settings file"] == task.experiment
    same = TuningTask(Experiment("CartPole-v1", 1000), SPACE, Plan(50_000)).fitted()
    assert list(same.baselines()) == ["default"]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_a_task_travels_as_plain_data(env_id):
    task = TuningTask(load_experiment(env_id, vec_env="subproc"), SPACE, Plan(50_000)).fitted()
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
    data = TuningTask(CARTPOLE, SPACE, Plan(50_000)).fitted().to_json()
    data["settings"]["env_wrapper"] = "surprise.Wrapper"
    with pytest.raises(ValueError, match=remedy):
        TuningTask.from_json({**data, **wanted})
    assert not (tmp_path / "ran").exists()


def test_a_study_imports_what_the_worker_allows():
    task = TuningTask(CARTPOLE, SPACE, Plan(50_000), (*ALLOWED_PACKAGES, "my_envs"), ("my_envs.all",)).fitted()
    for allowed in (None, (*ALLOWED_PACKAGES, "my_envs")):
        assert TuningTask.from_json(task.to_json(), allowed) == task


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_largest_divisor(number, limit):
    found = largest_divisor(number, limit)
    assert number % found == 0 and found <= max(limit, 1)
    assert not any(number % n == 0 for n in range(found + 1, min(limit, number) + 1))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"clip_range": {"choices": [0.2, -0.1]}}, "clip_range: -0.1 cannot be used: clip_range=-0.1 must be"),
        ({"gamma": {"low": 0.9, "high": 1.1}}, "gamma: 1.1 cannot be used: gamma=1.1 must be a number in"),
        (
            {"learning_rate_schedule": {"choices": ["fall"]}, "learning_rate": {"choices": [0.01]}},
            "learning_rate_schedule: 'fall' cannot be used",
        ),
        ({"policy_kwargs": {"activation_fn": {"choices": ["relu"]}}}, "'relu' must be a class, such as nn.ReLU"),
        ({"policy_kwargs": {"net_arch": {"choices": [[-3]]}}}, r"net_arch: \[-3\] cannot be used"),
        ({"sde_sample_freq": {"choices": [-1, -7]}}, "sde_sample_freq: -7 cannot be used"),
        ({"kl_control": {"choices": ["stop", "go"]}}, "kl_control: 'go' cannot be used"),
        ({"n_envs": {"choices": [1, 2]}, "ent_coef": {"choices": ["much"]}}, "ent_coef: 'much' cannot be used"),
    ],
)
def test_an_invalid_value_is_an_error_before_anything_runs(space, message):
    with pytest.raises(ValueError, match=f"search space: .*{message}"):
        TuningTask(load_experiment("CartPole-v1"), space, Plan(2048)).checked()
