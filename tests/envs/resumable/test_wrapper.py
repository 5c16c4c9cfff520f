"""An episode is replayed, also in another process, and the wrapper changes nothing else."""

import copy
import pickle
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from resumable_envs import FORKED, Fading, Forgetful, Pictures, actions_of, bits, carried, gone, made, vectorized
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from ppo_plus import PPO_Plus, Resumable
from ppo_plus.envs.resumable import wrapper
from ppo_plus.envs.resumable.state import get_state, set_state

pytestmark = pytest.mark.usefixtures("no_process_stays")


@pytest.mark.slow
def test_in_new_processes():
    env_ids = ["CartPole-v1", "LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3", "Hopper-v5"]
    made, actions = [], []
    for env_id in env_ids:
        env = vectorized(lambda env_id=env_id: gym.make(env_id, max_episode_steps=40), n=1)
        env.seed(11)
        env.reset()
        gone(env, actions_of(env, 95))
        made.append(env)
        actions.append([action[0] for action in actions_of(env, 90, seed=1)])
    states = [carried(env.envs[0].get_episode_state()) for env in made]

    class Player(gym.Env):
        """Takes a whole way as one action, since the environments differ."""

        observation_space = action_space = spaces.Discrete(1)

        def play(self, env_id, state, way):
            env = Resumable(Monitor(gym.make(env_id, max_episode_steps=40)))
            return env.set_episode_state(state), played(env, way)

    def played(env, way):
        found = []
        for action in way:
            step = env.step(action)
            found.append([step, env.reset() if step[2] or step[3] else None])
        return bits(found)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        players = SubprocVecEnv([Player], start_method="spawn")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for env_id, env, state, way in zip(env_ids, made, states, actions, strict=True):
        ((reason, theirs),) = players.env_method("play", env_id, state, way)
        assert reason is None
        assert theirs == played(env.envs[0], way), env_id
    players.close()


def test_actions_are_copied_since_callers_reuse_arrays():
    env, other = (vectorized(lambda: gym.make("Pendulum-v1")) for _ in range(2))
    env.seed(0)
    env.reset()
    action = np.zeros((2, 1), np.float32)
    for t in range(20):
        action[:] = np.sin(t)
        env.step(action)
    assert set_state(other, get_state(env)) is None


def test_small_states():
    """The actions of an episode are one array, and so are the rewards in a Monitor."""
    env = vectorized(lambda: gym.make("HalfCheetah-v5"), n=1)
    env.reset()
    sizes = []
    for _ in range(2):
        gone(env, actions_of(env, 450))
        sizes.append(len(pickle.dumps(get_state(env))))
    assert sizes[1] - sizes[0] < 450 * (6 * 4 + 8) + 500


@pytest.mark.parametrize("change", ["set_attr", "set_wrapper_attr"])
def test_an_attribute_that_was_set(change):
    env = vectorized(lambda: gym.make("CartPole-v1"))
    env.reset()
    if change == "set_attr":
        env.set_attr("gravity", 1.0)
    else:
        env.env_method("set_wrapper_attr", "gravity", 1.0)
    assert "attribute 'gravity' of <Monitor<" in get_state(env)["reason"]


def test_episodes_without_end(monkeypatch):
    monkeypatch.setattr(wrapper, "MAX_STEPS", 10)
    env = vectorized(lambda: gym.make("Pendulum-v1"), n=1)
    env.reset()
    gone(env, actions_of(env, 10))
    assert get_state(env)["reason"] is None
    gone(env, actions_of(env, 100))
    assert "more than 10 steps" in get_state(env)["reason"]
    assert len(env.envs[0]._episode.actions) == 11
    gone(env, actions_of(env, 91))
    assert get_state(env)["reason"] is None


def test_an_environment_that_was_reset_from_within():
    inner = Monitor(gym.make("CartPole-v1"))
    inner.reset()
    env = Resumable(inner)
    env.step(0)
    assert "before its Resumable was reset" in env.get_episode_state()["reason"]


@pytest.mark.parametrize("kind", [DummyVecEnv, FORKED], ids=["dummy", "subproc"])
def test_environments_made_otherwise(kind):
    env = vectorized(lambda: gym.make("Pendulum-v1"))
    env.seed(0)
    env.reset()
    gone(env, actions_of(env, 30))
    other = vectorized(lambda: gym.make("Pendulum-v1", g=9.0), kind=kind)
    assert "the same actions led <Monitor<" in set_state(other, get_state(env))
    # They begin anew where the others would.
    assert bits(other.reset()) == bits(env.reset())
    other.close()
    other = vectorized(lambda: wrappers.ClipAction(gym.make("Pendulum-v1")), kind=kind)
    assert "Monitor of ClipAction of TimeLimit" in set_state(other, get_state(env))
    other.close()


def test_what_differs_only_in_what_is_drawn():
    """Observations are the same, but the generator is not where it was."""

    class Drawing(Pictures):
        replayable = True
        drawn = 0

        def step(self, action):
            self.np_random.random(self.drawn)
            return {"image": np.zeros((8, 8, 3), np.uint8), "vector": self.vector}, 0.0, False, False, {}

    env, other = Resumable(Drawing()), Resumable(Drawing())
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert other.set_episode_state(env.get_episode_state()) is None
    other.unwrapped.drawn = 1
    assert "led <Drawing" in other.set_episode_state(env.get_episode_state())


class Masked(Fading):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 3}
    render_mode = "rgb_array"
    level = 1

    def action_masks(self):
        return [True, False, True]

    def render(self):
        return np.full((2, 2, 3), self.level, np.uint8)


def test_everything_else_is_the_environments():
    env = vectorized(lambda: made(Masked))
    assert env.env_is_wrapped(Monitor) == env.env_is_wrapped(Resumable) == [True, True]
    assert is_wrapped(env.envs[0], wrappers.TimeLimit)
    assert env.env_method("action_masks") == [[True, False, True]] * 2
    assert env.get_attr("light") == [1.0, 1.0]
    env.reset()
    assert set(env.env_method("get_state")[0]) == {"light", "place"}
    assert env.metadata == Masked.metadata and env.render_mode == "rgb_array"
    assert env.envs[0].spec == env.envs[0].env.spec
    assert isinstance(env.envs[0].unwrapped, Masked)
    assert env.envs[0].render().max() == 1
    env.seed(5)
    env.reset()
    assert env.get_attr("np_random_seed") == [5, 6]


def test_attributes_are_set_where_they_were_set_before():
    env = vectorized(lambda: gym.make("CartPole-v1"), resumable=lambda env: Resumable(Forgetful(env)))
    env.set_attr("level", 3)
    assert [vars(each.env)["level"] for each in env.envs] == [3, 3]
    env.env_method("set_wrapper_attr", "gravity", 1.0)
    assert [each.unwrapped.gravity for each in env.envs] == [1.0, 1.0]


def test_copies_are_independent():
    env = Resumable(gym.make("CartPole-v1"))
    env.reset(seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    other.step(1)
    assert len(env._episode.actions) == 0
    assert other._base is other.unwrapped


def test_ppo_plus_wraps_what_it_makes():
    model = PPO_Plus("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, n_epochs=1)
    assert model.env.env_method("class_name") == ["Resumable"]
    assert model.env.env_is_wrapped(Monitor) == [True]
    model.learn(16)
    assert get_state(model.env)["reason"] is None


def test_ppo_plus_wraps_a_single_environment_once():
    env = Resumable(Monitor(gym.make("CartPole-v1")))
    assert PPO_Plus("MlpPolicy", env).env.envs == [env]
    (wrapped,) = PPO_Plus("MlpPolicy", gym.make("CartPole-v1")).env.envs
    assert [type(layer).__name__ for layer in (wrapped, wrapped.env)] == ["Resumable", "Monitor"]
