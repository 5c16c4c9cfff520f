"""Gymnasium's vector environments with SB3's ``VecEnv`` interface.

The adapter records episode statistics, so no ``Monitor`` or ``VecMonitor`` is needed. What happens at the end of an
episode depends on the autoreset mode of the vector environment (https://farama.org/Vector-Autoreset-Mode):

``SAME_STEP``
    As in SB3: the step that ends an episode returns the first observation of the next one, and
    ``infos[i]["terminal_observation"]`` is the last observation of the old one.
``NEXT_STEP``
    Gymnasium's default. The step that ends an episode returns its last observation, with ``dones[i]`` true. The next
    step ignores the action and returns the first observation of the next episode. That row is a reset, not a
    transition: ``dones[i]`` is true again, because an episode starts after it, and ``infos[i]`` is
    ``{"VectorEnv.autoreset": True}``.
    ``PPO_Plus`` excludes such rows from training, and its callbacks find ``dones`` without them. Other algorithms would
    train on them; use ``SAME_STEP`` with those: ``gymnasium.make_vec(id, n, vector_kwargs={"autoreset_mode":
    gymnasium.vector.AutoresetMode.SAME_STEP})``. Do not wrap the adapter in a ``VecMonitor``, which would count each
    reset as an episode of one step.

``N`` is the number of environments.
"""

import copy
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.checked_envs import monitored
from ppo_plus.envs.checks import AUTORESET, TIMEOUT, Info, row_of
from ppo_plus.envs.layers import Adapter, layer_with
from ppo_plus.policy.masking import METHOD
from ppo_plus.trees import mapped


class BatchedVecEnv(Adapter, VecEnv):
    """The base class of adapters for an object ``env`` that steps all environments at once.

    There are no single environments to access. The adapters compute the statistics of episodes.
    """

    def __init__(self, env: Any, num_envs: int, observation_space: spaces.Space, action_space: spaces.Space):
        self.env = env
        self._actions: np.ndarray | tuple[Any, ...] | dict[str, Any] | None = None
        self._start_time = time.time()
        super().__init__(num_envs, observation_space, action_space)

    def episode(self, returned: float, length: float) -> dict[str, Any]:
        """What a ``Monitor`` says of an episode that has ended: return, length, and seconds since the start."""
        return {"r": round(float(returned), 6), "l": int(length), "t": round(time.time() - self._start_time, 6)}

    def _options_of_reset(self) -> dict[str, Any]:
        """The argument ``options`` of the next reset, if there are any, as in SB3.

        :raises ValueError: they differ between environments
        """
        if any(options != self._options[0] for options in self._options):
            raise ValueError(f"options={self._options!r} must be the same for all environments of {self.env}")
        return {"options": self._options[0]} if self._options[0] else {}

    def step_async(self, actions: np.ndarray | Sequence[Any] | dict[str, Any]) -> None:
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

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        if method_name == "render":  # `VecEnv.render` calls it in the mode "human"
            return [self.env.render()]
        raise self._no_access(f"call {method_name!r}")

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Whether the environments are wrapped; always true of ``Monitor``, whose work the adapter does."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def close(self) -> None:
        self.env.close()

    def _no_access(self, action: str) -> AttributeError:
        return AttributeError(f"cannot {action}: {self.env} does not consist of single environments")


class GymVectorEnv(BatchedVecEnv):
    """A Gymnasium vector environment as a ``VecEnv``.

    Takes ``SyncVectorEnv``, ``AsyncVectorEnv``, natively vectorized environments
    (``vectorization_mode="vector_entry_point"``) and vector wrappers around these, in the autoreset modes ``SAME_STEP``
    and ``NEXT_STEP`` (see :mod:`ppo_plus.envs.vec_env`), and owns them from now on. ``env_method``, ``get_attr`` and
    ``set_attr`` reach the single environments of a ``SyncVectorEnv`` or ``AsyncVectorEnv``, all at once.

    What the environment calls ``info`` are *columns*: an array with a row per environment for each key, and under
    ``"_" + key`` which of the rows are set.

    :param env: for example ``gymnasium.make_vec("CartPole-v1", num_envs=8)``
    :raises ValueError: no supported autoreset mode in the environment's metadata
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        mode, base = (env.metadata or {}).get("autoreset_mode"), env.unwrapped
        value = getattr(mode, "value", mode)
        if value not in ("SameStep", "NextStep"):
            raise ValueError(
                f'metadata["autoreset_mode"]={mode!r} of env={env} must be SAME_STEP or NEXT_STEP of '
                "gymnasium.vector.AutoresetMode"
            )
        self.autoreset = AutoresetMode(value)
        if value == "NextStep" and isinstance(base, AsyncVectorEnv) and not base.shared_memory:
            raise ValueError(
                "AsyncVectorEnv with shared_memory=False and autoreset_mode=NEXT_STEP resets a second time after "
                "reset(): use shared memory or AutoresetMode.SAME_STEP"
            )
        #: Environments that the next step resets instead of stepping (``NEXT_STEP`` only), booleans ``(N,)``.
        self.resetting = np.zeros(env.num_envs, dtype=bool)
        #: Which rows of the last step were transitions, booleans ``(N,)``.
        self.stepped = ~self.resetting
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)
        super().__init__(env, env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = dict(env.metadata)
        self._singles = isinstance(base, (SyncVectorEnv, AsyncVectorEnv))
        #: The vector environment that has all masks; ``None``: the single ones may have theirs.
        self._masking = layer_with(METHOD, env)
        self._has_monitors = self.has_attr("get_episode_rewards")

    def reset(self) -> VecEnvObs:
        # Seeds are consecutive, and a vector environment derives the same ones from the first.
        obs, columns = self.env.reset(seed=self._seeds[0], **self._options_of_reset())
        self.reset_infos = rows_of(columns, self.num_envs)
        self._reset_seeds()
        self._reset_options()
        self.resetting = np.zeros(self.num_envs, dtype=bool)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        return mapped(np.array, obs)  # type: ignore[no-any-return]

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, columns = self.env.step(self._actions)
        # Copied, since the environment may reuse its arrays.
        obs, rewards = mapped(np.array, obs), np.asarray(rewards).reshape(self.num_envs)
        terminated, truncated = np.asarray(terminated, dtype=bool), np.asarray(truncated, dtype=bool)
        resetting, stepped = self.resetting, ~self.resetting
        self.stepped = stepped
        dones = terminated | truncated
        infos = rows_of(columns, self.num_envs)

        # Most steps end no episode.
        ended = np.flatnonzero(dones & stepped).tolist()
        np.add(self._returns, rewards, out=self._returns, where=stepped)
        self._lengths += stepped
        if ended:
            self._end_episodes(ended, obs, columns, infos)
            for i in ended:
                infos[i][TIMEOUT] = bool(truncated[i] and not terminated[i])
                # Monitors count whole games, of which an episode may be one life.
                if monitored(infos[i]) is None and (truncated[i] or not self._has_monitors):
                    infos[i]["episode"] = self.episode(self._returns[i], self._lengths[i])
                if monitored(infos[i]) is not None:
                    self._returns[i] = self._lengths[i] = 0
        for i in np.flatnonzero(resetting).tolist():
            self.reset_infos[i], infos[i] = infos[i], {AUTORESET: True}
        if self.autoreset == AutoresetMode.NEXT_STEP:
            self.resetting = dones
        return obs, rewards.astype(np.float32), dones | resetting, infos

    def _end_episodes(self, ended: list[int], obs: Any, columns: Info, infos: list[Info]) -> None:
        """Put final observations and infos of the environments ``ended`` where SB3 expects them, in ``infos``."""
        resets = self.autoreset == AutoresetMode.SAME_STEP
        final_obs = columns.get("final_obs", columns.get("final_observation")) if resets else obs
        if final_obs is None:
            raise ValueError(f'{self.env} has ended an episode without infos["final_obs"], the last observations')
        final_infos = rows_of(columns.get("final_info", {}) if resets else {}, self.num_envs)
        # Gymnasium's is an array of whole observations, also where those are dicts.
        is_array = isinstance(final_obs, np.ndarray)
        for i in ended:
            if resets:
                self.reset_infos[i], infos[i] = infos[i], final_infos[i]
                if monitored(self.reset_infos[i]) is not None:
                    # Gymnasium's `vector.RecordEpisodeStatistics` puts it beside the infos of the reset.
                    infos[i].setdefault("episode", self.reset_infos[i].pop("episode"))
            infos[i]["terminal_observation"] = mapped(np.array, final_obs[i]) if is_array else row_of(final_obs, i)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return list(self.env.render())

    def has_attr(self, attr_name: str) -> bool:
        in_all = self._singles and all(self.env.unwrapped.call("has_wrapper_attr", attr_name))
        return attr_name == "render_mode" or in_all or (attr_name == METHOD and self._masking is not None)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        if method_name == METHOD and self._masking is not None:
            masks = self._masking.action_masks()
            return [row_of(masks, i) for i in self._get_indices(indices)]
        if not self._singles:
            return super().env_method(method_name, *args, indices=indices, **kwargs)
        self._require_all(indices)
        self._require(method_name)
        return list(self.env.unwrapped.call(method_name, *args, **kwargs))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        if attr_name == "render_mode" or not self._singles:
            return super().get_attr(attr_name, indices)
        self._require(attr_name)
        # Its `get_attr` would call a function.
        values = self.env.unwrapped.call("get_wrapper_attr", attr_name)
        return [values[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        if not self._singles:
            return super().set_attr(attr_name, value, indices)
        self._require_all(indices)
        # A list would be one value for each.
        self.env.unwrapped.set_attr(attr_name, [value] * self.num_envs)

    def _require_all(self, indices: VecEnvIndices) -> None:
        if sorted(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ValueError(f"indices={indices!r}: {self.env} can only reach all its environments at once")

    def _require(self, attribute: str) -> None:
        # A missing attribute would end the processes of an `AsyncVectorEnv`.
        if not self.has_attr(attribute):
            raise AttributeError(f"the environments of {self.env} have no attribute {attribute!r}")


def rows_of(columns: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """Columns as ``n`` new dicts with one value per key, without those that only the adapter needs."""
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, column in columns.items():
        if key in ("final_obs", "final_observation", "final_info") or (str(key).startswith("_") and key[1:] in columns):
            continue
        values: Sequence[Any] = [column] * n  # one value for all environments, or one for each
        if isinstance(column, dict):
            values = rows_of(column, n)
        elif getattr(column, "shape", ())[:1] == (n,):
            # Copied, because rows are views and the environment may reuse the array, or what is in it.
            column = copy.deepcopy(np.asarray(column))
            values = column.tolist() if column.ndim == 1 else list(column)
        elif isinstance(column, (list, tuple)) and len(column) == n:
            values = column
        for i in np.flatnonzero(columns.get(f"_{key}", np.ones(n))).tolist():
            rows[i][key] = values[i]
    return rows
