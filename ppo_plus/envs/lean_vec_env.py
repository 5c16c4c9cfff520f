"""A ``DummyVecEnv`` in less time, whose environments can resume in another process.

Nothing stands between ``envs[i]`` and the wrappers of the user: the vector environment steps each environment through a
:class:`~ppo_plus.Resumable` that is not in ``envs``.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from ppo_plus.envs.checks import IMMUTABLE, TIMEOUT, as_reward, check_info, check_obs, check_spaces, copied, counted
from ppo_plus.envs.resumable.attributes import State
from ppo_plus.envs.resumable.state import Resumable, as_resumable


class LeanVecEnv(DummyVecEnv):
    """A ``DummyVecEnv`` that returns the same values, as independent of later steps, in less time, and records what
    :mod:`ppo_plus.envs.resumable.state` needs.

    :raises ValueError: the spaces of an environment are not supported
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env]]):
        envs = [make() for make in env_fns]
        for env in envs:
            check_spaces(env)
        super().__init__([lambda env=env: env for env in envs])  # type: ignore[misc]
        self._known, self._resumables = [*self.envs], [as_resumable(env) for env in self.envs]

    def recorded(self) -> list[Resumable]:
        """The environments, each in the :class:`~ppo_plus.Resumable` that records it."""
        if self.envs != self._known:  # callbacks have put others into the list
            self._known, self._resumables = [*self.envs], [as_resumable(env) for env in self.envs]
        return self._resumables

    def resumable_method(self, name: str, *args: State, indices: VecEnvIndices = None) -> list[Any]:
        """Call a method of the recorders of environments."""
        recorded = self.recorded()
        return [getattr(recorded[i], name)(*args) for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        for env in self._get_target_envs(indices):
            env.set_wrapper_attr(attr_name, value)

    def reset(self) -> VecEnvObs:
        return reset_each(self, self.recorded())

    def step_wait(self) -> VecEnvStepReturn:
        return step_each(self, self.recorded())


def faster_methods(env: DummyVecEnv) -> dict[str, Callable[[], Any]]:
    """The methods of :class:`LeanVecEnv` for a user's ``DummyVecEnv``, except those that the user wrote or set."""

    def is_sb3s(name: str) -> bool:
        return name not in vars(env) and getattr(type(env), name) is getattr(DummyVecEnv, name)

    if not (is_sb3s("_save_obs") and is_sb3s("_obs_from_buf")):
        return {}
    ours = {"reset": lambda: reset_each(env, env.envs), "step_wait": lambda: step_each(env, env.envs)}
    return {name: own for name, own in ours.items() if is_sb3s(name)}


def reset_each(vec_env: Any, envs: Sequence[gym.Env]) -> VecEnvObs:
    """Reset the environments of a ``DummyVecEnv``, as it does."""
    for i, env in enumerate(envs):
        vec_env._current = i
        options = {"options": vec_env._options[i]} if vec_env._options[i] else {}
        obs, info = env.reset(seed=vec_env._seeds[i], **options)
        check_info(info)
        obs = check_obs(obs, vec_env.observation_space, values=False)
        vec_env.reset_infos[i] = info
        vec_env._save_obs(i, obs)
    vec_env._current = None
    vec_env._reset_seeds()
    vec_env._reset_options()
    return _copied_obs(vec_env)


def step_each(vec_env: Any, envs: Sequence[gym.Env]) -> VecEnvStepReturn:
    """Step the environments of a ``DummyVecEnv``, as it does, but copy what has to be copied only."""
    space, only = vec_env.observation_space, vec_env.buf_obs.get(None)
    shape = None if only is None else only.shape[1:]
    rewards, dones, infos = vec_env.buf_rews, vec_env.buf_dones, []
    for i, (env, action) in enumerate(zip(envs, vec_env.actions, strict=True)):
        vec_env._current = i
        obs, reward, terminated, truncated, info = env.step(action)
        rewards[i] = reward if isinstance(reward, float) else as_reward(reward)
        check_info(info)
        vec_env.buf_infos[i] = info
        info[TIMEOUT] = truncated and not terminated
        dones[i] = done = terminated or truncated
        if done:
            info["terminal_observation"] = copied(obs, space)
        # Before the reset, which may write into them. Most infos have nothing but this key.
        infos.append({TIMEOUT: info[TIMEOUT]} if len(info) == 1 else _copied(info))
        if done:
            with counted(env, infos[i]):
                obs, reset_info = env.reset()
            check_info(reset_info)
            vec_env.reset_infos[i] = reset_info
        if type(obs) is np.ndarray and obs.shape == shape:
            only[i] = obs
        else:
            vec_env._save_obs(i, check_obs(obs, space, values=False))
    vec_env._current = None
    return _copied_obs(vec_env), rewards.copy(), dones.copy(), infos


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of an info. Most of its values are numbers and need none."""
    if type(info) is not dict:
        return copy.deepcopy(info)
    return {key: value if type(value) in IMMUTABLE else copy.deepcopy(value) for key, value in info.items()}


def _copied_obs(env: DummyVecEnv) -> VecEnvObs:
    return dict_to_obs(env.observation_space, OrderedDict((key, array.copy()) for key, array in env.buf_obs.items()))
