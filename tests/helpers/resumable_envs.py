"""Environments whose state can be saved and restored, and checks that they continue with the same steps."""

import copy
import pickle
from collections import deque
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from ppo_plus import Resumable
from ppo_plus.envs.resumable.state import get_state, set_state

PLAIN = (bool, int, float, str, bytes, type(None), np.number, np.bool_)


class Fading(gym.Env):
    """Its episodes depend on how many there were, so that none can be replayed: it tells its state itself."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(3)
    light = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.light *= 0.99
        self.place = self.np_random.normal(size=2)
        return self.seen(), {}

    def step(self, action):
        self.place = self.place + self.light * self.np_random.normal(size=2) + 0.1 * action
        return self.seen(), float(self.place.sum()), bool(self.place[0] > 2.0), False, {"light": self.light}

    def get_action_meanings(self):
        return ["NOOP", "LEFT", "RIGHT"]

    def seen(self):
        return (self.light * self.place).astype(np.float32)

    def get_state(self):
        return {"light": self.light, "place": self.place}

    def set_state(self, state):
        self.light, self.place = state["light"], state["place"]


class Pictures(gym.Env):
    """Dict observations with an image; an episode depends on nothing before it, and the class says so."""

    replayable = True

    def __init__(self):
        image, vector = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(-np.inf, np.inf, (3,))
        self.observation_space = spaces.Dict(image=image, vector=vector)
        self.action_space = spaces.Dict(arm=spaces.Box(-1.0, 1.0, (2,)), grip=spaces.Tuple([spaces.Discrete(3)]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.vector = np.full(3, (options or {}).get("start", 0.0), np.float32)
        return self.seen(), {}

    def step(self, action):
        self.vector = self.vector + np.float32(action["arm"].sum() + action["grip"][0])
        return self.seen(), float(self.vector[0]), bool(self.np_random.random() < 0.1), False, {}

    def seen(self):
        return {"image": self.np_random.integers(0, 255, (8, 8, 3), np.uint8), "vector": self.vector}


def made(env_class, max_episode_steps=9):
    """As ``gym.make`` makes it, in its wrappers."""
    return gym.make(EnvSpec("Own-v0", entry_point=env_class, max_episode_steps=max_episode_steps))


#: Processes that have all that this one has; those of `test_in_new_processes` have not.
FORKED = partial(SubprocVecEnv, start_method="fork")


def vectorized(make, n=2, kind=DummyVecEnv, resumable=Resumable, **kwargs):
    return kind([lambda: resumable(Monitor(make()))] * n, **kwargs)


def actions_of(env, n_steps, seed=0, hold=3):
    """Random actions, each taken a few times so that bodies move."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    rows = [[space.sample() for _ in range(env.num_envs)] for _ in range(1 + n_steps // hold)]
    structured = isinstance(space, (spaces.Dict, spaces.Tuple))
    return [rows[t // hold] if structured else np.array(rows[t // hold]) for t in range(n_steps)]


def bits(value):
    """Equal for what is equal bit by bit; the time that an episode took is left out."""
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items() if key != "t"}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


def gone(env, actions):
    """What environments give on their way, and how many of their episodes end on it."""
    steps = [env.step(each) for each in actions]
    # Of the two kinds of SB3's vectorized environments one rounds rewards.
    found = [bits((obs, rewards.astype(np.float32), dones, infos)) for obs, rewards, dones, infos in steps]
    return found, sum(int(dones.sum()) for _, _, dones, _ in steps)


def carried(state):
    """The state as another process would get it: nothing in it but plain values."""

    def check(value):
        if isinstance(value, np.ndarray):
            assert not value.dtype.hasobject
        elif isinstance(value, dict):
            assert type(value) is dict
            check([*value, *value.values()])
        elif isinstance(value, (list, tuple, set, deque)):
            for each in value:
                check(each)
        else:
            assert isinstance(value, PLAIN), value

    check(state)
    return pickle.loads(pickle.dumps(state))


def check_goes_on(make, before, after, points=2, make_other=None, min_ends=1):
    """At several points, others go on as the environments themselves do.

    :param make: makes the environments
    :param before: steps before each point
    :param after: steps that are compared behind it
    :param make_other: makes those that are given the state; ``None``: as ``make``
    :param min_ends: episodes that must end while they are compared
    """
    env = make()
    env.seed(11)
    env.reset()
    for point in range(points):
        gone(env, actions_of(env, before, seed=point))
        state = carried(get_state(env))
        assert state["reason"] is None
        actions = actions_of(env, after, seed=100 + point)
        other = (make_other or make)()
        try:
            assert set_state(other, state) is None
            assert bits(get_state(other)["envs"]) != [] and _steps(other) == _steps(env)
            theirs, _ = gone(other, actions)
        finally:
            other.close()
        ours, ends = gone(env, actions)
        assert ends >= min_ends
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert a == b, f"step {step} behind point {point}"
    env.close()


def _steps(env):
    """How far each environment is in its episode, and how many steps were taken."""
    return [len(rewards) for rewards in env.get_attr("rewards")], env.get_attr("total_steps")
