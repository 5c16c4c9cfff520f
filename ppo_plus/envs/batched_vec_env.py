"""The base class of adapters for objects that step all environments at once, with SB3's ``VecEnv`` interface."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices


class BatchedVecEnv(VecEnv):
    """The base class of adapters for an object ``env`` that steps all environments at once.

    There are no single environments to access. The adapters compute the statistics of episodes.
    """

    def __init__(self, env: Any, num_envs: int, observation_space: spaces.Space, action_space: spaces.Space):
        self.env = env
        self._actions: Any = None
        self._start_time = time.time()
        super().__init__(num_envs, observation_space, action_space)

    def seconds(self) -> float:
        """Seconds since the environments were made, as a ``Monitor`` counts them."""
        return round(time.time() - self._start_time, 6)

    def step_async(self, actions: Any) -> None:
        """Prepare a step.

        :param actions: array ``(N, ...)``, or for Dict and Tuple spaces a list of ``N`` actions, or a batch
        """
        space = self.action_space
        if not isinstance(space, (spaces.Dict, spaces.Tuple)):
            actions = np.asarray(actions, dtype=space.dtype).reshape(self.num_envs, *space.shape)  # type: ignore[misc]
        elif not isinstance(actions, (dict, tuple)):
            actions = concatenate(space, actions, create_empty_array(space, self.num_envs))  # type: ignore[arg-type]
        self._actions = actions

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the single environments; ``render_mode`` is always available."""
        if attr_name == "render_mode":
            return [getattr(self.env, "render_mode", None) for _ in self._get_indices(indices)]
        raise self._no_access(f"get the attribute {attr_name!r}")

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise self._no_access(f"set the attribute {attr_name!r}")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise self._no_access(f"call {method_name!r}")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Whether the environments are wrapped; always true of ``Monitor``, whose work the adapter does."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def close(self) -> None:
        self.env.close()

    def _no_access(self, action: str) -> AttributeError:
        return AttributeError(f"cannot {action}: {self.env} does not consist of single environments")
