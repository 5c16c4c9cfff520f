"""What callbacks find as their environments, and what they change there, is what it is with SB3's PPO."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ppo_plus import PPO_Plus, as_vec_env, make_vec


class Game(gym.Env):
    """Its score is the sum of its level over steps."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)
    level, score = 1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        self.score += self.level
        return np.zeros(1, np.float32), float(self.level), self.t == 2, False, {}

    def set_level(self, level):
        self.level = level


class Custom(gym.Wrapper):
    """A wrapper of the user, with an attribute and without one that gets attributes of what it wraps."""

    level = 0


KINDS = {
    "single": lambda make: make(),
    "monitored": lambda make: Monitor(make()),
    "dummy": lambda make: DummyVecEnv([make]),
    "dummy of monitored": lambda make: DummyVecEnv([lambda: Monitor(make())]),
    "make_vec_env": lambda make: make_vec_env(make, 1),
    "normalized": lambda make: VecNormalize(make_vec_env(make, 1)),
    "make_vec": lambda make: make_vec(make),
    "id": lambda make: "Game-v0",
}
INSIDE = {"bare": Game, "wrapped": lambda: Custom(Game())}


@pytest.fixture(autouse=True)
def game():
    register("Game-v0", entry_point=Game)
    yield
    del registry["Game-v0"]


class Changing(BaseCallback):
    """Changes the environment by each of the ways of public code, and notes what it finds."""

    def _on_training_start(self):
        self.found = []

    def _on_step(self):
        env = self.training_env.unwrapped.envs[0]
        chain = [env]
        while isinstance(chain[-1], gym.Wrapper):
            chain.append(chain[-1].env)
        self.found += [*map(type, chain), type(env.unwrapped), env.unwrapped.score, env.unwrapped.level]
        if isinstance(env, Monitor):
            self.found += [env.get_episode_rewards()[:], env.get_total_steps()]
        if self.n_calls == 3:
            chain[-2 if len(chain) > 2 else -1].level = 3
        elif self.n_calls == 5:
            chain[-1].level = 4
        elif self.n_calls == 7:
            env.unwrapped.set_level(5)
        return True


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_find_and_change_what_they_do_with_sb3(kind, inside):
    found = []
    for algorithm in (PPO, PPO_Plus):
        env = KINDS[kind](INSIDE[inside])
        attributes = set(vars(env)) if isinstance(env, DummyVecEnv) else None
        options = {"compile": False} if algorithm is PPO_Plus else {}
        model = algorithm("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu", **options)
        callback = Changing()
        model.learn(16, callback)
        found.append(callback.found)
        # Nothing is left in the vector environment of the user.
        assert attributes is None or {"step_wait", "reset", "set_attr"}.isdisjoint(vars(env))
    assert found[0] == found[1]


def test_what_was_passed_stays_what_is_trained_on():
    env = Monitor(Game())
    model = PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", compile=False)
    env.env.level = 4
    model.learn(8)
    assert model.env.envs == [env] and env.env.score == 32 and env.get_episode_rewards() == [8.0] * 4


def test_gymnasiums_vector_environments_keep_theirs():
    made = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    singles = [*made.envs]
    env = as_vec_env(made)
    assert made.envs == singles
    PPO_Plus("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", compile=False).learn(16)
    assert made.envs == singles
