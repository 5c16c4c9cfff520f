"""A ``DummyVecEnv`` in less time, and those of users, which get its methods."""

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from ppo_plus.envs.checks import (
    IMMUTABLE,
    TIMEOUT,
    Numbers,
    as_reward,
    check_info,
    check_obs,
    check_step_info,
    copied,
    counted,
)
from ppo_plus.envs.layers import layers


class LeanVecEnv(DummyVecEnv):
    """A ``DummyVecEnv`` that returns the same values, as independent of later steps, in less time.

    ``PPO_Plus`` also gives its methods to a ``DummyVecEnv`` (:func:`prepare`).
    """

    #: Index of the environment that is stepped or reset now, for messages.
    _current: int | None = None

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        for i in self._get_indices(indices):
            self.envs[i].set_wrapper_attr(attr_name, value)

    def reset(self) -> VecEnvObs:
        for i, env in enumerate(self.envs):
            self._current = i
            options = {"options": self._options[i]} if self._options[i] else {}
            obs, info = env.reset(seed=self._seeds[i], **options)
            check_info(info)
            check_obs(obs, self.observation_space, values=False)
            self.reset_infos[i] = info
            self._save_obs(i, obs)
        self._current = None
        self._reset_seeds()
        self._reset_options()
        return _copied_obs(self)

    def step_wait(self) -> VecEnvStepReturn:
        space, only = self.observation_space, self.buf_obs.get(None)  # type: ignore[call-overload]
        shape = None if only is None else only.shape[1:]
        rewards, dones, infos = self.buf_rews, self.buf_dones, []
        for i, (env, action) in enumerate(zip(self.envs, self.actions, strict=True)):
            self._current = i
            obs, reward, terminated, truncated, info = env.step(action)
            rewards[i] = reward if isinstance(reward, float) else as_reward(reward)
            check_step_info(info)
            self.buf_infos[i] = info
            info[TIMEOUT] = truncated and not terminated
            dones[i] = done = terminated or truncated
            if done:
                check_obs(obs, space, values=False)
                info["terminal_observation"] = copied(obs)
            # Before the reset, which may write into them. Most infos have nothing but this key.
            infos.append({TIMEOUT: info[TIMEOUT]} if len(info) == 1 else _copied(info))
            if done:
                with counted(env, infos[i]):
                    obs, reset_info = env.reset()
                check_info(reset_info)
                self.reset_infos[i] = reset_info
            if type(obs) is np.ndarray and obs.shape == shape:
                only[i] = obs
            else:
                check_obs(obs, space, values=False)
                self._save_obs(i, obs)
        self._current = None
        return _copied_obs(self), rewards.copy(), dones.copy(), infos


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of an info. Most of its values are numbers and need none."""
    if type(info) is not dict:
        return copy.deepcopy(info)
    return {key: value if type(value) in IMMUTABLE else copy.deepcopy(value) for key, value in info.items()}


def _copied_obs(env: DummyVecEnv) -> VecEnvObs:
    return dict_to_obs(env.observation_space, OrderedDict((key, array.copy()) for key, array in env.buf_obs.items()))


def prepare(env: Any) -> None:
    """Put :class:`Numbers` into each ``Monitor`` of an environment, and give a ``DummyVecEnv`` the methods of
    :class:`LeanVecEnv` that it does not override."""
    for layer in layers(env):
        if isinstance(layer, Monitor) and not isinstance(layer.env, Numbers):
            layer.env = Numbers(layer.env)
        elif isinstance(layer, DummyVecEnv) and type(layer)._save_obs is DummyVecEnv._save_obs:
            for name in ("reset", "step_wait", "set_attr"):
                if name not in vars(layer) and getattr(type(layer), name) is getattr(DummyVecEnv, name):
                    setattr(layer, name, getattr(LeanVecEnv, name).__get__(layer))
