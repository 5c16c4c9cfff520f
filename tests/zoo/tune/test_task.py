"""What a study is about: a plan of whole rollouts and separate seeds, baselines, candidates that fit, plain data that
imports nothing, and the score of a run: evaluations after updates, the last one included."""

import errno
import json
from unittest.mock import Mock

import numpy as np
import optuna
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from stable_baselines3.common.callbacks import BaseCallback
from tuning_envs import FailingAt150, NotFinite

from ppo_plus import Cost, PPO_Plus
from ppo_plus.zoo.experiment import Experiment, Part, load_experiment, make_envs, make_model, with_recommended
from ppo_plus.zoo.tune.space import read_space, setting
from ppo_plus.zoo.tune.task import SAMPLERS, Diverged, Plan, TuningTask, score

CARTPOLE = load_experiment("CartPole-v1", variant="rl_zoo3")
SPACE = read_space()
WRAPPER = "gymnasium.wrappers.TimeAwareObservation"


@given(st.integers(1, 300_000), st.integers(1, 20), st.integers(1, 3000), st.integers(1, 16))
def test_budget_and_interval_are_whole_rollouts(n_timesteps, n_evals, n_steps, n_envs):
    experiment = Experiment("CartPole-v1", 1, n_envs=n_envs, hyperparams={"n_steps": n_steps})
    plan = TuningTask(experiment, SPACE, Plan(n_timesteps, n_evals=n_evals)).fitted().plan
    assert plan.n_timesteps >= n_timesteps
    assert plan.eval_freq * plan.n_evals == plan.n_timesteps
    assert plan.eval_freq % (n_steps * n_envs) == 0
    assert 1 <= plan.n_evals <= n_evals


def test_a_space_is_the_same_for_the_workers():
    """JSON has text as keys; YAML reads ``on`` and ``off`` as true and false."""
    space = {"normalize_advantage": {"choices": {True: True, False: False}}, "n_epochs": {"choices": {1: 3, 2: 10}}}
    task = TuningTask(CARTPOLE, space, Plan(10_000)).fitted()
    assert task.to_json()["space"] == task.space == json.loads(json.dumps(space))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for baseline in task.baselines().values():
        study.enqueue_trial(task.search_space().params(baseline))
        task.search_space().sample(study.ask())


@pytest.mark.parametrize(
    ("options", "n_trials", "n_baselines", "n_runs"),
    [
        ({}, 40, 1, (40, 40)),
        ({}, 40, 2, (40, 50)),
        ({"confirm_seeds": 0}, 2, 1, (2, 0)),
        ({"n_seeds": 2}, 2, 1, (4, 20)),
        ({}, 1, 1, (1, 0)),
        ({}, 2, 2, (2, 0)),
        ({}, 2, 3, (2, 0)),
    ],
)
def test_the_most_runs_of_a_plan(options, n_trials, n_baselines, n_runs):
    assert Plan(64, **options).n_runs(n_trials, n_baselines) == n_runs


def test_seeds_do_not_overlap():
    plan = Plan(1000, n_seeds=3, confirm_seeds=12, seed=5)
    seeds = [*plan.seeds("screening"), *plan.seeds("confirmation")]
    assert len(seeds) == 15 and min(seeds) == 5
    environments = [seed + k for seed in seeds for k in range(1_000)]
    assert len(set(environments)) == len(environments)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"n_timesteps": 0}, "n_timesteps=0"),
        ({"confirm_seeds": 5}, "at least 10"),
        ({"confirm_seeds": -1}, "confirm_seeds=-1"),
        ({"seed": 2**32 - 9}, "seed=4294967287 must be at least 0 and at most 2147483648"),
        ({"sampler": "best"}, "'best' must be one of"),
        ({"pruner": "best"}, "'best' must be one of"),
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
    rollout = setting(experiment, "n_steps") * n_envs
    assert setting(experiment, "n_steps") <= n_steps and experiment.n_envs == n_envs
    assert n_envs * (task.plan.eval_freq // n_envs) % rollout == 0
    assert setting(experiment, "batch_size") == min(batch_size, rollout)
    assert setting(experiment, "sde_sample_freq") == (4 if use_sde else -1)
    assert setting(experiment, "kl_control") == ("stop" if target_kl is None else "penalty")


@pytest.mark.parametrize("env_id", ["MountainCarNoVel-v0", "InvertedDoublePendulum-v5", "PongNoFrameskip-v4"])
def test_sequences_of_memory_stay_long(env_id):
    task = TuningTask(load_experiment(env_id, variant="lstm"), SPACE, Plan(1_000_000)).fitted()
    assert all(setting(task.candidate({"n_steps": n}), "n_steps") % 16 == 0 for n in (32, 128, 512, 1024))


def test_what_reads_images_is_in_the_default_baseline_too():
    own = {"n_joints": 7}  # an own policy's
    reading = {"features_extractor_class": "stable_baselines3.common.torch_layers.FlattenExtractor", **own}
    experiment = CARTPOLE.with_hyperparams({"policy_kwargs": {**reading, "net_arch": [8]}})
    default = TuningTask(experiment, SPACE, Plan(50_000)).baselines()["default"]
    assert default.policy_kwargs.keys() == reading.keys()


def test_an_exploration_is_in_place_of_gsde_and_drawn_as_often_as_its_settings_say():
    explores = CARTPOLE.with_hyperparams({"exploration": "StateDependentNoise()", "sde_sample_freq": 4})
    space = {"sde_sample_freq": {"choices": [8]}, "use_sde": {"choices": [True]}}
    task = TuningTask(explores, space, Plan(50_000)).checked()
    assert setting(task.candidate({}), "sde_sample_freq") == 4
    assert not setting(task.candidate({"use_sde": True}), "use_sde")
    with pytest.raises(ValueError, match="search space: kl_control: 'stopp' cannot be used"):
        TuningTask(explores, {"kl_control": {"choices": ["stopp"]}}, Plan(50_000)).checked()


def test_a_run_that_is_out_of_memory_is_a_failed_trial(monkeypatch):
    def learn(*args, **kwargs):
        raise th.cuda.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(PPO_Plus, "learn", learn)
    with pytest.raises(Diverged, match="out of memory: tried to allocate 80 GiB"):
        score(CARTPOLE, Plan(2048), 0, lambda steps, value: None)


def test_vec_normalize_leaves_out_what_the_policy_normalizes():
    inside = {"normalize_observations": True, "normalize_values": True}
    space = {name: {"choices": [False, True]} for name in inside}
    task = TuningTask(CARTPOLE.replace(normalize={"clip_obs": 5.0}), space, Plan(50_000)).checked()
    assert task.candidate({}).normalize == {"clip_obs": 5.0}
    candidate = task.candidate(inside)
    assert candidate.normalize == {"clip_obs": 5.0, "norm_obs": False, "norm_reward": False}
    envs = make_envs(candidate)
    make_model(candidate, envs)
    envs.close()


@pytest.mark.parametrize(("own", "further"), [(None, []), (WRAPPER, []), ([WRAPPER, WRAPPER], [[WRAPPER, WRAPPER]])])
def test_wrappers_are_chosen_among_those_of_the_baseline(own, further):
    experiment = load_experiment("CartPole-v1", overrides={"env_wrapper": own})
    task = TuningTask(experiment, {"env_wrapper": {"choices": [None, WRAPPER]}}, Plan(2048)).checked()
    assert [*task.search_space().dimensions["env_wrapper"].values.values()] == [None, WRAPPER, *further]


def test_the_default_keeps_what_makes_the_environment():
    """Without masks, costs, and what only the critic may see, its runs would be of another task; with other threads, or
    compiled, they would cost something else."""
    kept = {"action_mask_key": "action_mask", "compile": False, "n_threads": 1, "streams": [Cost("cost", limit=1.0)]}
    experiment = CARTPOLE.replace(
        policy_kwargs={"actor_keys": ["a"], "net_arch": [8]}, hyperparams=kept | {"gamma": 0.9}
    )
    default = TuningTask(experiment, SPACE, Plan(1000)).baselines()["default"]
    assert (default.hyperparams, default.policy_kwargs) == (kept, {"actor_keys": ["a"]})


def test_every_agent_of_a_game_counts():
    """Rollouts fit the budget, and the recommended sizes are those of as many rows."""
    pytest.importorskip("mpe2")
    game = Experiment("pettingzoo:mpe2.simple_spread_v3", 1, n_envs=8, hyperparams={"n_steps": 64})
    task = TuningTask(game, SPACE, Plan(10_000, n_evals=5)).fitted()
    assert task.plan.eval_freq == 3 * 8 * 64 * 2 and task.plan.n_evals == 4
    assert setting(task.candidate({"n_steps": 1000}), "n_steps") == 128
    found = with_recommended(game.replace(hyperparams={}, n_timesteps=1_000_000), [])
    assert (setting(found, "n_steps"), setting(found, "batch_size")) == (80, 64)


def test_rollouts_fit_between_evaluations():
    """Whatever is sampled, n_steps is the largest that fits: 8 environments, 2,048 timesteps between evaluations."""
    task = TuningTask(CARTPOLE, {"n_steps": {"choices": [64, 500, 5000]}}, Plan(20_480)).fitted()
    assert set(task.search_space().dimensions["n_steps"].values) == {64, 500, 5000, 32, 2048}
    # Those of the default, of 2,048 timesteps, do not fit: its last one exceeds the budget.
    assert setting(task.baselines()["default"], "n_steps") == 2048
    n_steps = {64: 64, 100: 64, 500: 256, 5000: 256}
    assert {n: setting(task.candidate({"n_steps": n}), "n_steps") for n in n_steps} == n_steps


def test_default_is_what_the_algorithm_does_by_itself():
    task = TuningTask(load_experiment("MountainCar-v0"), SPACE, Plan(50_000)).fitted()
    default = task.baselines()["default"]
    assert (default.n_envs, default.normalize, default.hyperparams, default.policy_kwargs) == (1, None, {}, {})
    assert task.baselines()["settings file"] == task.experiment
    same = TuningTask(Experiment("CartPole-v1", 1000), SPACE, Plan(50_000)).fitted()
    assert list(same.baselines()) == ["default"]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCarContinuous-v0"])
def test_recorded_settings_are_read_back(env_id):
    task = TuningTask(load_experiment(env_id, vec_env="subproc"), SPACE, Plan(50_000)).fitted()
    assert task.read(json.loads(json.dumps(task.experiment.settings()))) == task.experiment


def test_a_study_imports_nothing_that_the_worker_does_not_allow(tmp_path, monkeypatch):
    """Access to the database does not let anyone run code on the workers' machines."""
    (tmp_path / "surprise.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    task = TuningTask(CARTPOLE, SPACE, Plan(50_000)).fitted()
    with pytest.raises(ValueError, match="--gym-packages surprise, or --trust-config"):
        task.read({**task.experiment.settings(), "env_wrapper": "surprise.Wrapper"})
    assert not (tmp_path / "ran").exists()


def test_a_full_disk_is_not_a_fault_of_the_settings(monkeypatch):
    monkeypatch.setattr("ppo_plus.zoo.tune.task.make_envs", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError) as error:
        TuningTask(CARTPOLE, SPACE, Plan(50_000)).checked()
    assert error.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"gamma": {"low": 0.9, "high": 1.1}}, "gamma: 1.1 cannot be used: gamma=1.1 must be a number in"),
        (
            {"learning_rate_schedule": {"choices": ["fall"]}, "learning_rate": {"choices": [0.01]}},
            "learning_rate_schedule: 'fall' cannot be used",
        ),
        ({"policy_kwargs": {"activation_fn": {"choices": ["relu"]}}}, "'relu' must be a class, such as torch.nn.ReLU"),
        ({"policy_kwargs": {"net_arch": {"choices": [[-3]]}}}, r"net_arch: \[-3\] cannot be used"),
        ({"sde_sample_freq": {"choices": [-1, -7]}}, "sde_sample_freq: -7 cannot be used"),
        ({"target_kl": {"low": 0.01, "high": 0.1}}, "a baseline has target_kl=None: use choices with null"),
        ({"n_envs": {"choices": [1, 2]}, "ent_coef": {"choices": ["much"]}}, "ent_coef: 'much' cannot be used"),
    ],
)
def test_an_invalid_value_is_an_error_before_anything_runs(space, message):
    with pytest.raises(ValueError, match=f"search space: .*{message}"):
        TuningTask(load_experiment("CartPole-v1"), space, Plan(2048)).checked()


SMALL = Experiment("CartPole-v1", 512, hyperparams={"n_steps": 128, "n_epochs": 1, "compile": False})
FOUR_EVALUATIONS = Plan(512, n_evals=4, last_evals=3, n_eval_episodes=1)


def run(experiment, seed=0, plan=FOUR_EVALUATIONS):
    reports = []
    value = score(experiment, plan, seed, lambda timesteps, mean: reports.append((timesteps, mean)))
    return value, reports


@pytest.mark.slow
def test_score_is_the_mean_of_the_last_evaluations():
    value, reports = run(SMALL)
    assert [timesteps for timesteps, _ in reports] == [128, 256, 384, 512]
    assert value == np.mean([mean for _, mean in reports[-3:]])
    assert run(SMALL) == (value, reports) != run(SMALL, seed=1)


class Stop(BaseCallback):
    """Ends training before the first update."""

    def _on_step(self):
        return False


def test_no_update_no_score():
    with pytest.raises(Diverged, match="no update"):
        run(SMALL.replace(callback=(Part("Stop", Stop, {}),)))


@pytest.mark.parametrize("supervision", [{}, pytest.param({"timeout": 60.0}, marks=pytest.mark.slow)])
def test_a_run_whose_environments_are_not_finite_has_no_score(supervision):
    diverging = SMALL.replace(env_wrapper=(Part("NotFinite", NotFinite, {}),), n_envs=1)
    with pytest.raises(Diverged, match="is not finite"):
        score(diverging, FOUR_EVALUATIONS, 0, lambda *_: None, **supervision)


@pytest.mark.slow
def test_failing_environments_are_restarted_as_often_as_allowed():
    failing = SMALL.replace(env_wrapper=(Part("FailingAt150", FailingAt150, {}),), n_envs=1)
    value = score(failing, FOUR_EVALUATIONS, 0, lambda *_: None, restarts=100)
    assert value > 0
    with pytest.raises(Diverged, match=r"environment 0, .*: raised ValueError\('boom'\). All restarts=2 are used up"):
        score(failing, FOUR_EVALUATIONS, 0, lambda *_: None, restarts=2)
    with pytest.raises(ValueError, match="boom"):
        score(failing, FOUR_EVALUATIONS, 0, lambda *_: None)
