"""Stable-Baselines3's ``DummyVecEnv`` with checks of observations, and without its deep copies, which take long."""

from collections import OrderedDict
from copy import deepcopy
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from ppo_plus.envs.outputs import as_reward, check_info, check_obs, check_step_info

#: Types whose values need no copies.
IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})
TIMEOUT = "TimeLimit.truncated"


class LeanVecEnv(DummyVecEnv):
    """A ``DummyVecEnv`` that returns the same values, as independent of later steps, in less time.

    :class:`~ppo_plus.envs.errors.CheckedEnvs` also calls its methods with a ``DummyVecEnv``.
    """

    #: Index of the environment that is stepped or reset now, for messages.
    current: int | None = None

    def reset(self) -> VecEnvObs:
        for i, env in enumerate(self.envs):
            self.current = i
            options = {"options": self._options[i]} if self._options[i] else {}
            obs, info = env.reset(seed=self._seeds[i], **options)
            check_info(info)
            check_obs(obs, self.observation_space, values=False)
            self.reset_infos[i] = info
            self._save_obs(i, obs)
        self.current = None
        self._reset_seeds()
        self._reset_options()
        return _copied_obs(self)

    def step_wait(self) -> VecEnvStepReturn:
        space, only = self.observation_space, self.buf_obs.get(None)  # type: ignore[call-overload]
        shape = None if only is None else only.shape[1:]
        rewards, dones, infos = self.buf_rews, self.buf_dones, []
        for i, (env, action) in enumerate(zip(self.envs, self.actions, strict=True)):
            self.current = i
            obs, reward, terminated, truncated, info = env.step(action)
            rewards[i] = reward if isinstance(reward, float) else as_reward(reward)
            if type(info) is not dict:
                check_step_info(info)
            self.buf_infos[i] = info
            info[TIMEOUT] = truncated and not terminated
            dones[i] = done = terminated or truncated
            if done:
                check_obs(obs, space, values=False)
                info["terminal_observation"] = obs
                obs, reset_info = env.reset()
                check_info(reset_info)
                self.reset_infos[i] = reset_info
            if type(obs) is np.ndarray and obs.shape == shape:
                only[i] = obs
            else:
                check_obs(obs, space, values=False)
                self._save_obs(i, obs)
            # Most infos have nothing but this key.
            infos.append({TIMEOUT: info[TIMEOUT]} if len(info) == 1 else _copied(info))
        self.current = None
        return _copied_obs(self), rewards.copy(), dones.copy(), infos


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of an info. Most of its values are numbers and need none."""
    if type(info) is not dict:
        return deepcopy(info)
    return {key: value if type(value) in IMMUTABLE else deepcopy(value) for key, value in info.items()}


def _copied_obs(env: DummyVecEnv) -> VecEnvObs:
    return dict_to_obs(env.observation_space, OrderedDict((key, array.copy()) for key, array in env.buf_obs.items()))
