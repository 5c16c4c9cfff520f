"""Environments of an experiment."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)

from ppo_plus import PPO_Plus, SupervisedVecEnv
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.envs.vec_env import EnvPoolVecEnv, GymVectorEnv
from ppo_plus.zoo.envs import make_envs, settle
from ppo_plus.zoo.experiment import load_experiment

CARTPOLE = load_experiment("CartPole-v1", overrides={"n_envs": 2})


def test_as_many_as_the_experiment_has_or_as_asked_for():
    assert make_envs(CARTPOLE).num_envs == 2
    assert make_envs(CARTPOLE, 3).num_envs == 3
    assert make_envs(CARTPOLE, evaluation=True).num_envs == 1


def test_order_of_wrappers():
    experiment = CARTPOLE.with_hyperparams(
        {
            "env_wrapper": [{"gymnasium.wrappers.TimeAwareObservation": {"flatten": True}}],
            "vec_env_wrapper": "stable_baselines3.common.vec_env.VecCheckNan",
            "normalize": True,
            "frame_stack": 3,
        }
    )
    env = make_envs(experiment)
    assert isinstance(env, VecFrameStack)
    assert isinstance(env.venv, VecNormalize)
    assert type(env.venv.venv).__name__ == "VecCheckNan"
    # Outermost the wrapper that lets them go on where they stood.
    assert env.env_method("class_name") == ["Resumable"] * 2
    (first, _) = env.get_attr("env")
    assert isinstance(first.env, Monitor)
    assert env.observation_space.shape == (15,)


def test_images_are_transposed_for_evaluation_as_for_training():
    experiment = load_experiment("CarRacing-v3", overrides={"n_envs": 1})
    for env in (make_envs(experiment), make_envs(experiment, evaluation=True)):
        assert isinstance(env, VecTransposeImage)
        assert env.observation_space.shape == (2, 64, 64)
        env.close()


@pytest.mark.parametrize("vec_env", ["dummy", pytest.param("subproc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("evaluation", [False, True])
def test_they_go_on_where_they_stood(vec_env, evaluation):
    experiment = CARTPOLE.replace(vec_env=vec_env, normalize={}, frame_stack=2)
    env, other = (make_envs(experiment, 1, evaluation=evaluation) for _ in range(2))
    env.reset()
    for _ in range(30):
        env.step(np.ones(1, dtype=int))
    assert set_state(other, get_state(env)) is None
    for _ in range(30):
        (ours, _, _, _), (theirs, _, _, _) = (each.step(np.zeros(1, dtype=int)) for each in (env, other))
        np.testing.assert_array_equal(theirs, ours)
    env.close()
    other.close()


@pytest.mark.parametrize(("normalize", "gamma"), [({}, 0.98), ({"gamma": 0.5}, 0.98)])
def test_the_discount_of_normalization_is_the_algorithms(normalize, gamma):
    env = make_envs(CARTPOLE.replace(normalize=normalize))
    assert (env.gamma, env.norm_obs, env.norm_reward, env.training) == (gamma, True, True, True)


def test_a_changed_discount_reaches_normalization():
    experiment = CARTPOLE.with_hyperparams({"normalize": {"norm_obs": False}, "gamma": 0.7})
    env = make_envs(experiment)
    assert (env.gamma, env.norm_obs) == (0.7, False)


def test_evaluation_neither_learns_statistics_nor_scales_rewards():
    normalize = unwrap_vec_normalize(make_envs(CARTPOLE.replace(normalize={}), evaluation=True))
    assert (normalize.training, normalize.norm_obs, normalize.norm_reward) == (False, True, False)


def test_seeds():
    def first(**kwargs):
        return make_envs(CARTPOLE.replace(seed=3), **kwargs).reset()

    np.testing.assert_array_equal(first(), first())
    np.testing.assert_array_equal(first()[1], first(seed=4)[0])
    assert not np.array_equal(first()[0], first(evaluation=True)[0])
    np.testing.assert_array_equal(first(evaluation=True, seed=3)[0], first()[0])


def test_arguments_of_the_environment():
    experiment = CARTPOLE.replace(env_kwargs={"sutton_barto_reward": True}, eval_env_kwargs={})

    def rewards(env):
        return [unwrapped._sutton_barto_reward for unwrapped in env.get_attr("unwrapped")]

    assert rewards(make_envs(experiment)) == [True, True]
    assert rewards(make_envs(experiment, evaluation=True)) == [False]
    assert rewards(make_envs(experiment.replace(eval_env_kwargs=None), evaluation=True)) == [True]
    assert make_envs(experiment, render_mode="rgb_array").render_mode == "rgb_array"


def test_monitor_files(tmp_path):
    make_envs(CARTPOLE, monitor_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


def test_kinds_of_vector_environments():
    assert isinstance(make_envs(CARTPOLE), DummyVecEnv)
    env = make_envs(CARTPOLE.replace(vec_env="subproc"))
    assert isinstance(env, SupervisedVecEnv)
    np.testing.assert_array_equal(env.reset(), make_envs(CARTPOLE).reset())
    env.close()


@pytest.mark.parametrize("kind", ["dummy", "subproc"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env_id": "CartPol-v1"}, "Did you mean: `CartPole`"),
        ({"env_id": "ALE/Nope-v5"}, "Nope|ALE"),
        ({"env_kwargs": {"wheels": 3}}, "wheels"),
    ],
)
def test_mistakes_show_with_their_own_message(kind, change, message):
    with pytest.raises((gym.error.Error, TypeError), match=message):
        make_envs(CARTPOLE.replace(vec_env=kind, **change))


def test_atari():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    env = make_envs(load_experiment("ALE/Pong-v5", overrides={"n_envs": 1}))
    assert env.observation_space.shape == (4, 84, 84)
    env.close()


def test_environments_stepped_all_at_once_train_and_log_their_episodes_but_do_not_evaluate(tmp_path):
    experiment = CARTPOLE.replace(vec_env="gymnasium", n_envs=3)
    env = make_envs(experiment, monitor_dir=tmp_path)
    assert isinstance(unwrapped(env), GymVectorEnv) and env.num_envs == 3
    assert isinstance(unwrapped(make_envs(experiment, evaluation=True)), DummyVecEnv)
    env.reset()
    ends = 0
    for _ in range(200):
        _, _, dones, infos = env.step(np.ones(3, dtype=np.int64))
        ends += sum("episode" in info for info in infos)
    env.close()
    rows = (tmp_path / "all.monitor.csv").read_text().splitlines()[2:]
    # Always to the same side: no episode is over at once, as a step that only resets would seem to be.
    assert len(rows) == ends > 30 and all(float(row.split(",")[1]) > 5 for row in rows)


def test_the_seed_reaches_environments_that_are_stepped_all_at_once():
    first, same, other = (make_envs(CARTPOLE.replace(vec_env="gymnasium", seed=seed)).reset() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_what_wraps_single_environments_is_refused_where_there_are_none():
    experiment = CARTPOLE.replace(vec_env="gymnasium", monitor_kwargs={"allow_early_resets": True})
    with pytest.raises(ValueError, match="vec_env='gymnasium'.*use one of dummy, subproc"):
        make_envs(experiment)


def test_envpool(tmp_path):
    pytest.importorskip("envpool", reason="EnvPool is not installed")
    env = make_envs(CARTPOLE.replace(vec_env="envpool", n_envs=2), monitor_dir=tmp_path)
    assert isinstance(unwrapped(env), EnvPoolVecEnv)
    with pytest.raises(ValueError, match="EnvPool has no environment 'Nope-v1'"):
        make_envs(CARTPOLE.replace(vec_env="envpool", env_id="Nope-v1"))


def atari(**changes):
    return load_experiment("BreakoutNoFrameskip-v4").replace(n_envs=2, **changes)


def test_atari_of_envpool_is_what_wrappers_and_stacking_make(tmp_path):
    pytest.importorskip("envpool", reason="EnvPool is not installed")
    pytest.importorskip("ale_py", reason="Atari is not installed")
    single = make_envs(atari())
    pool = make_envs(atari(vec_env="envpool"), monitor_dir=tmp_path)
    inner = unwrapped(pool)
    assert isinstance(inner, EnvPoolVecEnv)
    assert (pool.observation_space, pool.action_space) == (single.observation_space, single.action_space)
    config = inner.env.config
    expected = {"episodic_life": True, "reward_clip": True, "stack_num": 4, "noop_max": 30}
    assert {name: config[name] for name in expected} == expected
    PPO_Plus("CnnPolicy", pool, n_steps=8, batch_size=16, n_epochs=1, device="cpu").learn(16)


@pytest.mark.parametrize(
    "changes", [{"env_wrapper": ()}, {"env_kwargs": {"full_action_space": True}}, {"env_id": "ALE/Breakout-v5"}]
)
def test_what_envpool_cannot_make_of_atari_is_refused(changes):
    with pytest.raises(ValueError, match="vec_env='envpool' makes Atari games named .*NoFrameskip-v4.*use 'subproc'"):
        make_envs(atari(vec_env="envpool").replace(**changes))


def test_a_missing_envpool_is_named():
    if importlib.util.find_spec("envpool"):
        pytest.skip("EnvPool is installed")
    with pytest.raises(ImportError, match=r"pip install '\.\[envpool\]'"):
        make_envs(CARTPOLE.replace(vec_env="envpool"))


def test_the_fastest_is_settled_in_a_line_that_says_why(capsys):
    settled = settle(CARTPOLE.replace(vec_env="auto", n_envs=8))
    assert settled == CARTPOLE.replace(vec_env="gymnasium", n_envs=8)
    assert capsys.readouterr().err.startswith("--vec-env auto: gymnasium (")
    # Settled is settled.
    assert settle(settled) is settled and capsys.readouterr().err == ""
    env = make_envs(CARTPOLE.replace(vec_env="auto", n_envs=8))
    assert isinstance(unwrapped(env), GymVectorEnv)
    assert isinstance(unwrapped(make_envs(CARTPOLE.replace(vec_env="auto", n_envs=8), evaluation=True)), DummyVecEnv)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"env_wrapper": "gymnasium.wrappers.TimeAwareObservation"}, "env_wrapper"),
        ({"frame_stack": 2}, "frame_stack"),
        ({"env_kwargs": {"sutton_barto_reward": True}}, "env_kwargs"),
        ({"monitor_kwargs": {"allow_early_resets": True}}, "monitor_kwargs"),
        ({"vec_env_wrapper": "stable_baselines3.common.vec_env.VecCheckNan"}, "vec_env_wrapper"),
    ],
)
def test_settings_of_single_environments_limit_the_choice(settings, reason, capsys):
    experiment = CARTPOLE.with_hyperparams(settings).replace(vec_env="auto", n_envs=8)
    assert settle(experiment).vec_env in ("dummy", "subproc")
    assert f"single environments are needed for {reason}" in capsys.readouterr().err


def test_faults_limit_the_choice(capsys):
    experiment = CARTPOLE.replace(vec_env="auto", n_envs=8)
    assert settle(experiment, timeout=9).vec_env == "subproc"
    assert settle(experiment, restarts=2).vec_env in ("dummy", "subproc")
    assert "needed for --restart-envs" in capsys.readouterr().err


def unwrapped(env):
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    return env
