"""Stable-Baselines3's ``DummyVecEnv`` without its deep copies of all observations and infos, which take long."""

from collections import OrderedDict
from copy import deepcopy
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from ppo_plus.envs.resumable.attributes import IMMUTABLE


class LeanVecEnv(DummyVecEnv):
    """A ``DummyVecEnv`` that returns the same values, as independent of later steps, in less time.

    :param env_fns: functions that make the environments
    """

    def step_wait(self) -> VecEnvStepReturn:
        for i, env in enumerate(self.envs):
            obs, self.buf_rews[i], terminated, truncated, info = env.step(self.actions[i])  # type: ignore[call-overload]
            self.buf_infos[i] = info
            self.buf_dones[i] = done = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = obs
                obs, self.reset_infos[i] = env.reset()
            self._save_obs(i, obs)
        infos = [_copied(info) for info in self.buf_infos]
        return self._obs_from_buf(), self.buf_rews.copy(), self.buf_dones.copy(), infos

    def _obs_from_buf(self) -> VecEnvObs:
        arrays = OrderedDict((key, array.copy()) for key, array in self.buf_obs.items())
        return dict_to_obs(self.observation_space, arrays)


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of an info. Most of its values are numbers and need none."""
    if type(info) is not dict:
        return deepcopy(info)
    return {key: value if type(value) in IMMUTABLE else deepcopy(value) for key, value in info.items()}
