"""`make_vec` makes single environments that resume exactly, one after another or in processes."""

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, VECTOR, RandomEnv, vec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import VecEnvWrapper, VecMonitor, VecNormalize

from ppo_plus import PPO_Plus, SupervisedVecEnv, as_vec_env, make_vec
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.vec_env import GymVectorEnv


@pytest.mark.slow
def test_make_vec_is_the_same_in_processes_or_not():
    given = {"n_envs": 2, "seed": 1, "env_kwargs": {"sutton_barto_reward": True}}
    apart = make_vec("CartPole-v1", vec_env="subproc", **given)
    here = make_vec("CartPole-v1", **given | {"seed": np.int64(1)})
    assert type(apart) is SupervisedVecEnv and type(here) is LeanVecEnv
    assert apart.env_method("class_name") == here.env_method("class_name") == ["Monitor"] * 2
    np.testing.assert_array_equal(apart.reset(), here.reset())
    for ours, theirs in zip(apart.step([0, 1]), here.step([0, 1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    apart.close()


def test_a_class_or_a_function_makes_environments():
    given = {"action_space": ACTIONS["discrete"]}
    for env in (make_vec(RandomEnv, 2, env_kwargs=given), make_vec(lambda: RandomEnv(**given), 2)):
        assert env.num_envs == 2 and type(env.envs[0].unwrapped) is RandomEnv


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    register = 'gymnasium.register("OfModule-v0", "gymnasium.envs.classic_control:CartPoleEnv")'
    (tmp_path / "registers_it.py").write_text(f"import gymnasium\n{register}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make_vec("registers_it:OfModule-v0", 2).num_envs == 2
    finally:
        gym.registry.pop("OfModule-v0", None)


def test_an_id_without_a_version_is_the_newest_one_which_is_named():
    with pytest.warns(UserWarning, match="latest versioned environment `CartPole-v1` instead of .* `CartPole`"):
        assert make_vec("CartPole").envs[0].spec.id == "CartPole-v1"


class Foreign(gym.vector.VectorEnv):
    """As SuperSuit's: there are no single environments to seed or to ask."""

    num_envs, render_mode = 2, None
    observation_space, action_space = VECTOR, ACTIONS["discrete"]

    def reset(self, seed=None, options=None):
        self.t = 0
        return np.zeros((2, 5), np.float32), [{}, {}]

    def step_async(self, actions):
        self.t += 1

    def step_wait(self):
        return np.zeros((2, 5), np.float32), np.ones(2), [False] * 2, [self.t % 4 == 0] * 2, [{}, {}]

    def get_attr(self, name):
        raise AttributeError(name)


class Adapting(VecEnvWrapper):
    """As SuperSuit's ``concat_vec_envs_v1(..., base_class="stable_baselines3")``."""

    def __init__(self, venv):
        self.venv, self.num_envs, self.render_mode = venv, venv.num_envs, None
        self.observation_space, self.action_space = venv.observation_space, venv.action_space

    def reset(self, seed=None, options=None):
        obs, self.reset_infos = self.venv.reset()
        return obs

    def step_wait(self):
        obs, rewards, terminated, truncated, infos = self.venv.step_wait()
        return obs, rewards, np.logical_or(terminated, truncated), infos

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * 2

    def getattr_recursive(self, name):
        raise AttributeError(name)

    def getattr_depth_check(self, name, already_found):
        return None

    def get_attr(self, attr_name, indices=None):
        return [None] * 2 if attr_name == "render_mode" else self.venv.get_attr(attr_name)


@pytest.mark.parametrize("wrap", [lambda env: env, VecMonitor, VecNormalize])
def test_wrappers_of_others_may_adapt_what_is_no_vec_env(wrap, tmp_path):
    env = wrap(Adapting(Foreign()))
    given = {"n_steps": 8, "batch_size": 8, "device": "cpu", "compile": False}
    with pytest.warns(UserWarning, match="cannot be seeded with seed=3"):
        model = PPO_Plus("MlpPolicy", env, seed=3, **given)
    model = PPO_Plus("MlpPolicy", env, **given).learn(32)
    assert model.num_timesteps == 32 and model.evaluate(2) == (4.0, 0.0)
    model.save(tmp_path / "model")
    assert PPO_Plus.load(tmp_path / "model", env, device="cpu").learn(16).num_timesteps == 16


def test_as_vec_env_leaves_the_rest_alone():
    def vector():
        return SyncVectorEnv([lambda: RandomEnv(ACTIONS["discrete"])], autoreset_mode=AutoresetMode.SAME_STEP)

    others = RandomEnv(ACTIONS["discrete"]), vec(ACTIONS["discrete"]), GymVectorEnv(vector()), "CartPole-v1", None
    assert all(as_vec_env(env) is env for env in others)
    assert isinstance(as_vec_env(vector()), GymVectorEnv)


@pytest.mark.parametrize(
    ("env_id", "options", "error", "message"),
    [
        ("CartPole-v1", {"n_envs": 0}, ValueError, "n_envs=0 must be at least 1"),
        ("CartPole-v1", {"vec_env": "envpool"}, ValueError, "vec_env='envpool' must be one of 'dummy', 'subproc'"),
        ("CartPole-v1", {"seed": "0"}, TypeError, "seed='0' must be"),
        ("CartPole-v1", {"n_workers": 2}, TypeError, "unexpected keyword argument 'n_workers'"),
        ("CartPole-v1", {"wrapper_class": 2, "vec_env": "subproc"}, TypeError, "keyword argument 'wrapper_class'"),
        ("CartPole-v1", {"env_kwargs": {"gravitty": 1}}, TypeError, "unexpected keyword argument 'gravitty'"),
        (RandomEnv(ACTIONS["discrete"]), {}, TypeError, "env_id=.* must be the id of an environment, or a class or"),
    ],
)
def test_wrong_arguments_are_named(env_id, options, error, message):
    with pytest.raises(error, match=message):
        make_vec(env_id, **options)


@pytest.mark.slow
def test_processes_are_supervised_as_asked():
    env = make_vec("CartPole-v1", 3, vec_env="subproc", n_workers=2, restarts=4, timeout=60)
    assert (env.n_workers, env.restarts, env.timeout) == (2, 4, 60)
    env.reset()
    with pytest.raises(ValueError, match="2 actions for 3 environments"):
        env.step(np.zeros(2, np.int64))
    env.close()
