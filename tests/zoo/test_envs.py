"""Environments of an experiment."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)

from ppo_plus import SupervisedVecEnv
from ppo_plus.envs.resumable.state import get_state, set_state
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import load_experiment

CARTPOLE = load_experiment("CartPole-v1", overrides={"n_envs": 2})


def test_number_of_environments():
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
def test_resumed_environments_continue_where_they_stopped(vec_env, evaluation):
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


@pytest.mark.parametrize("vec_env", ["envpool", "gymnasium", "auto"])
def test_other_vector_environments_are_passed_in_python(vec_env):
    with pytest.raises(ValueError, match=f"vec_env='{vec_env}' must be one of dummy, subproc.* passed to PPO_Plus in"):
        make_envs(CARTPOLE.replace(vec_env=vec_env))
