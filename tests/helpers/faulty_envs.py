"""Environments that fail in a chosen way, alone and among others."""

import os
import signal
import time
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ppo_plus import SupervisedVecEnv
from ppo_plus.envs.lean_vec_env import LeanVecEnv

#: What happens in place of a step.
FAULTS = {
    "raise": "raised ValueError('boom')",
    "nan": "returned an observation that is not finite: array(",
    "infinite reward": "returned a reward that is not finite: inf",
    "large reward": "returned a reward that is too large for single precision: 1e+300",
    "shape": "returned an observation of shape (2,), but its space Box(-inf, inf, (3,), float32) has (3,)",
    "text": "returned an observation of dtype <U1, whose values float32 of its space cannot represent: array(",
    "rows": "returned an observation that is not an array (",
    "no info": "returned None as info: return a dict",
    "old": "raised ValueError('not enough values to unpack (expected 5, got 4)')",
    "kill": "died with its process (SIGKILL)",
    "exit": "died with its process (exit code 7)",
    "hang": "gave no answer within 0.5 s",
    "unsendable": "raised ",
    "unreadable": "returned an object that cannot be unpickled (TypeError(",
}


class Unreadable(Exception):
    """It can be pickled, and not unpickled."""

    def __init__(self, code, text):
        super().__init__(text)


class Failing(gym.Env):
    """Random observations, episodes of 8 steps, and a fault in one of them. Fresh environments, whose seeds are large,
    have none.

    :param fault: one of :data:`FAULTS`, or ``None``
    :param at: the step, counted over all episodes; 0: of the first reset
    :param p: probability of a fault in any other step, also in fresh environments
    """

    replayable = True
    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Discrete(2)
    level = 1.0

    def __init__(self, fault=None, at=3, p=0.0):
        self.fault, self.at, self.p = fault, at, p
        self.n = self.t = 0

    @property
    def n_files(self):
        return len(os.listdir("/proc/self/fd"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.due():
            raise ValueError("boom")
        return self.observe(), {}

    def due(self):
        return self.fault is not None and self.n == self.at and (self._np_random_seed or 0) < 100

    def observe(self):
        return self.np_random.normal(size=3).astype(np.float32)

    def step(self, action):
        self.n += 1
        self.t += 1
        obs, reward, info = self.observe(), float(self.np_random.normal()) * self.level + action, {}
        if self.due() or self.np_random.random() < self.p:
            if self.fault == "raise":
                raise ValueError("boom")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "hang":
                time.sleep(1e6)
            if self.fault == "old":
                return obs, reward, False, info
            obs = {"nan": obs * np.nan, "shape": obs[:2], "text": np.array(list("abc")), "rows": [[1], [1, 2]]}.get(
                self.fault, obs
            )
            reward = {"infinite reward": np.inf, "large reward": 1e300}.get(self.fault, reward)
            infos = {"unsendable": {"lock": time.sleep, "here": lambda: None}, "no info": None}
            info = (infos | {"unreadable": {"error": Unreadable(1, "x")}}).get(self.fault, {})
        return obs, reward, False, self.t == 8, info


class Masked(Failing):
    replayable = True

    def action_masks(self):
        if self.n == 0 and self.fault == "mask" and self._np_random_seed < 100:
            raise ValueError("boom")
        return np.array([self.t % 2 == 0, True])


class Structured(Failing):
    replayable = True
    observation_space = spaces.Dict(near=Failing.observation_space, kind=spaces.Discrete(4, start=1))

    def observe(self):
        return {"near": super().observe(), "kind": int(self.np_random.integers(1, 5))}


def supervised(*env_fns, seed=5, said=None, **kwargs):
    """Environments in separate processes, of which what is said of restarts goes into a list. Forked, since other
    processes take seconds to start."""
    kwargs.setdefault("timeout", 0.5 if any("hang" in str(each) for each in env_fns) else None)
    env = SupervisedVecEnv(env_fns, start_method="fork", report=[].append if said is None else said.append, **kwargs)
    env.seed(seed)
    return env


def plain(*env_fns):
    """The same environments in this process, without supervision."""
    env = LeanVecEnv(env_fns)
    env.seed(5)
    return env


def fine_and(fault, at=3, cls=Failing, **kwargs):
    """The second of three environments fails."""
    return [cls, partial(cls, fault, at, **kwargs), cls]


ACTIONS = np.array([1, 0, 1])


def equal(a, b):
    """Bit by bit, but for the time that an episode took."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a if key != "t")
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
