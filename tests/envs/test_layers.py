"""One walk over the layers of an environment, which attributes with the same names do not disturb."""

import gymnasium as gym
import numpy as np
import pytest
from envs import ACTIONS, VECTOR, RandomEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from tensor_envs import TensorTwin

from ppo_plus import PPO_Plus, Resumable, as_vec_env
from ppo_plus.envs.layers import layers
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.resumable.state import get_state
from ppo_plus.saving.export import raw_observations

SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu", "seed": 0}


class Slotted:
    __slots__ = ("env",)


def simulator():
    made = Slotted()
    made.env = made
    return made


#: What an environment may call ``env``.
ATTRIBUTES = {
    "simulator": lambda env: simulator(),
    "none": lambda env: None,
    "itself": lambda env: env,
    "back": lambda env: TimeLimit(env, 5),  # what wraps it knows it, and it knows what wraps it
    "other": lambda env: gym.make("CartPole-v1"),
    "list": lambda env: [env, env],
}
NAMES = ("env", "venv", "envs")


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes_of_these_names_are_the_environments_own(kind):
    """It trains, and is evaluated in the training environment and in another."""

    def make():
        env = RandomEnv(ACTIONS["discrete"], VECTOR, max_steps=5)
        for name in NAMES:
            setattr(env, name, ATTRIBUTES[kind](env))
        return env

    model = PPO_Plus("MlpPolicy", VecNormalize(DummyVecEnv([lambda: Monitor(make())] * 2)), **SMALL).learn(32)
    assert np.isfinite(model.evaluate(2)).all()
    assert np.isfinite(model.evaluate(2, make())).all()
    model.learn(32, reset_num_timesteps=False)
    assert get_state(model.env)["reason"] is not None
    # Exporting names the wrappers that the policy does not contain.
    assert raw_observations(model, "environment")[2] == []


def test_so_are_those_of_simulators():
    env = TensorTwin(2, ACTIONS["discrete"])
    env.env = env.venv = env.envs = env
    assert np.isfinite(PPO_Plus("MlpPolicy", env, **SMALL).learn(32).evaluate(2)).all()


def kinds(env):
    return [type(layer) for layer in layers(env)]


def test_each_layer_is_met_once_from_the_outermost_on():
    first, second = (RandomEnv(ACTIONS["discrete"], VECTOR) for _ in range(2))
    env = LeanVecEnv([lambda: Resumable(Monitor(first)), lambda: TimeLimit(second, 3)])
    env = VecNormalize(VecMonitor(env))
    singles = [Resumable, Monitor, RandomEnv, TimeLimit, RandomEnv]
    assert kinds(env) == [VecNormalize, VecMonitor, LeanVecEnv, *singles]
    env.unwrapped.envs[1] = TimeLimit(first, 3)
    assert kinds(env) == [VecNormalize, VecMonitor, LeanVecEnv, *singles[:-1]]


def test_gymnasiums_vector_environments_have_layers_too():
    def vector(kind):
        made = kind([lambda: TimeLimit(RandomEnv(ACTIONS["discrete"]), 3)], autoreset_mode=AutoresetMode.SAME_STEP)
        return as_vec_env(RecordEpisodeStatistics(made))

    names = ["GymVectorEnv", "RecordEpisodeStatistics", "SyncVectorEnv", "TimeLimit", "RandomEnv"]
    assert [kind.__name__ for kind in kinds(vector(SyncVectorEnv))] == names
    # Those in other processes cannot be reached.
    env = vector(AsyncVectorEnv)
    assert [kind.__name__ for kind in kinds(env)] == [*names[:2], "AsyncVectorEnv"]
    env.close()
    assert kinds(as_vec_env(TensorTwin(2, ACTIONS["discrete"])))[1:] == [TensorTwin]


def test_a_wrapper_may_compute_what_it_wraps():
    class Lazy(gym.Wrapper):
        env = property(lambda self: self.made, lambda self, env: vars(self).update(made=env))

    inner = NormalizeObservation(RandomEnv(ACTIONS["discrete"]))
    env = Lazy(inner)
    assert list(layers(env)) == [env, inner, inner.env]
    # It is unknown, and so is the reason why it cannot resume.
    assert "Lazy" in Resumable(Lazy(gym.make("CartPole-v1"))).get_episode_state()["reason"]
