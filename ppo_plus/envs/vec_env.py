"""Gymnasium's vector environments and EnvPool, with SB3's ``VecEnv`` interface.

:func:`~ppo_plus.as_vec_env` picks the adapter. The adapters record episode statistics, so no ``Monitor`` or
``VecMonitor`` is needed. What happens at the end of an episode depends on the autoreset mode of the vector environment
(https://farama.org/Vector-Autoreset-Mode):

``SAME_STEP``
    As in SB3: the step that ends an episode returns the first observation of the next one, and
    ``infos[i]["terminal_observation"]`` is the last observation of the old one.
``DISABLED``
    The adapter resets the environments whose episodes have ended. The result is the same as with ``SAME_STEP``.
``NEXT_STEP``
    Gymnasium's default, and EnvPool's mode. The step that ends an episode returns its last observation, with
    ``dones[i]`` true. The next step ignores the action and returns the first observation of the next episode. That row
    is a reset, not a transition: ``dones[i]`` is true again, because an episode starts after it, and ``infos[i] ==
    {"autoreset": True}``. ``PPO_Plus`` excludes such rows from training, and its callbacks find ``dones`` without them.
    Other algorithms would train on them; use ``SAME_STEP`` with those: ``gymnasium.make_vec(id, n,
    vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP})``. Do not wrap the adapter in a
    ``VecMonitor``, which would count each reset as an episode of one step, or in a ``VecNormalize``, which would count
    a return of 0 for it: :class:`ppo_plus.VecNormalizeTransitions` does not.

``N`` is the number of environments.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.batched_vec_env import BatchedVecEnv
from ppo_plus.envs.outputs import mapped, row_of
from ppo_plus.envs.tensors.simulators import as_tensor_env
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.trees import tree_map

#: Info key that marks a row as a reset instead of a transition (``NEXT_STEP`` only).
AUTORESET = "autoreset"


def is_reset(info: dict[str, Any]) -> bool:
    """Whether a step only reset the environment, and so is not a transition."""
    return bool(info.get(AUTORESET))


def as_vec_env(env: Any, groups: Sequence[str] | None = None) -> Any:
    """Wrap vector environments, and those in tensors, in SB3's ``VecEnv`` interface.

    :param env: anything that ``PPO_Plus`` takes as its environment
    :param groups: the groups of a simulator's observations to use, as entries of a Dict; ``None``: only the policy's
    :return: a :class:`~ppo_plus.envs.vec_env.GymVectorEnv` or :class:`~ppo_plus.envs.vec_env.EnvPoolVecEnv`
        around a vector environment, a :class:`~ppo_plus.envs.tensors.vec_env.TensorVecEnv` around one in tensors;
        everything else, such as a ``VecEnv`` or a single environment, unchanged
    :raises ValueError: a vector environment that the adapters do not support
    """
    if isinstance(env, VecEnv):
        return env
    # First, since newer EnvPools are Gymnasium vector environments, too.
    if _is_envpool(env):
        return EnvPoolVecEnv(env)
    if type(env).__name__ == "NumpyToTorch":
        # Gymnasium's wrapper of NumPy's environments, which gains nothing.
        env = env.env
    in_tensors = as_tensor_env(env, groups)
    if in_tensors is not None:
        return TensorVecEnv(in_tensors)
    if isinstance(env, VectorEnv):
        return GymVectorEnv(env)
    return env


class _VectorAdapter(BatchedVecEnv):
    """The base class of both adapters, which own the vector environment from now on.

    What the environment calls ``info`` are *columns*: an array with a row per environment for each key, and under
    ``"_" + key`` which of the rows are set.
    """

    #: Info keys that are not passed on, since only the adapter needs them.
    bookkeeping: frozenset[str] = frozenset()
    autoreset = AutoresetMode.NEXT_STEP
    _render_arguments: dict[str, Any] = {}
    #: Whether the environments report the statistics of their episodes.
    _has_monitors = False

    def __init__(self, env: Any, num_envs: int, observation_space: spaces.Space, action_space: spaces.Space):
        #: Environments that the next step resets instead of stepping (``NEXT_STEP`` only), booleans ``(N,)``.
        self.resetting = np.zeros(num_envs, dtype=bool)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        #: Writes episodes to a file like a ``Monitor``; ``None``: they are not written.
        self.episode_log: ResultsWriter | None = None
        super().__init__(env, num_envs, observation_space, action_space)
        if getattr(env, "metadata", None):
            self.metadata = dict(env.metadata)

    def _begin(self, obs: Any, columns: dict[str, Any]) -> VecEnvObs:
        """Begin all episodes, with what ``reset`` of the environment returned."""
        self.reset_infos = self._rows(columns)
        self._reset_seeds()
        self._reset_options()
        self.resetting = np.zeros(self.num_envs, dtype=bool)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        return mapped(np.array, obs)  # type: ignore[no-any-return]

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, columns = self.env.step(self._actions)
        # Copied, since the environment may reuse its arrays.
        obs, rewards = mapped(np.array, obs), np.asarray(rewards)
        terminated, truncated = np.asarray(terminated, dtype=bool), np.asarray(truncated, dtype=bool)
        resetting, stepped = self.resetting, ~self.resetting
        dones = terminated | truncated
        infos = self._rows(columns)

        # Most steps end no episode.
        ended = np.flatnonzero(dones & stepped).tolist()
        counted, finished = self._counted(rewards, ended, truncated, columns)
        np.add(self._returns, counted, out=self._returns, where=stepped)
        self._lengths += stepped
        if ended:
            obs, seconds = self._end_episodes(ended, obs, columns, infos), self.seconds()
            for i in ended:
                info = infos[i]
                info["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
                if i in finished and not self._has_monitors:
                    episode = {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": seconds}
                    info.setdefault("episode", episode)
                if self.episode_log is not None and "episode" in info:
                    self.episode_log.write_row(info["episode"])
            self._returns[finished] = 0.0
            self._lengths[finished] = 0
        for i in np.flatnonzero(resetting).tolist():
            self.reset_infos[i], infos[i] = infos[i], {AUTORESET: True}
        if self.autoreset == AutoresetMode.NEXT_STEP:
            self.resetting = dones
        return obs, rewards.astype(np.float32), dones | resetting, infos

    def _end_episodes(self, ended: list[int], obs: Any, columns: dict[str, Any], infos: list[dict[str, Any]]) -> Any:
        """Put final observations and infos of the environments ``ended`` where SB3 expects them, in ``infos``; returns
        the observations to act on next."""
        if self.autoreset == AutoresetMode.SAME_STEP:
            if "final_obs" not in columns:
                raise ValueError(
                    f"env={self.env} has autoreset mode {self.autoreset.value}, but no final_obs in its infos: add it, "
                    "or use another mode"
                )
            final_infos, final_obs = self._rows(columns.get("final_info", {})), columns["final_obs"]
            # Gymnasium's is an array of whole observations, also where those are dicts.
            is_array = isinstance(final_obs, np.ndarray)
            for i in ended:
                self.reset_infos[i], infos[i] = infos[i], final_infos[i]
                last = mapped(np.array, final_obs[i]) if is_array else row_of(final_obs, i)
                infos[i]["terminal_observation"] = last
            return obs
        for i in ended:
            infos[i]["terminal_observation"] = row_of(obs, i)
        if self.autoreset == AutoresetMode.NEXT_STEP:
            return obs
        mask = np.isin(np.arange(self.num_envs), ended)
        first_obs, columns = self.env.reset(options={"reset_mask": mask})
        reset_infos = self._rows(columns)
        for i in ended:
            self.reset_infos[i] = reset_infos[i]
        return tree_map(lambda old, new: np.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new, old), obs, first_obs)

    def _rows(self, columns: dict[str, Any]) -> list[dict[str, Any]]:
        return _rows(columns, self.num_envs, self.bookkeeping)

    def _counted(
        self, rewards: np.ndarray, ended: list[int], truncated: np.ndarray, columns: dict[str, Any]
    ) -> tuple[np.ndarray, list[int]]:
        """The rewards, and which of the episodes that ``ended``, the statistics count."""
        return rewards, ended

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One RGB image ``(H, W, 3)`` per environment; ``None`` unless ``render_mode`` is ``"rgb_array"``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"render_mode={self.render_mode!r} gives no images: use 'rgb_array'", stacklevel=2)
            return [None] * self.num_envs
        return list(self.env.render(**self._render_arguments))

    def close(self) -> None:
        if self.episode_log is not None:
            self.episode_log.close()
        super().close()


class GymVectorEnv(_VectorAdapter):
    """A Gymnasium vector environment as a ``VecEnv``.

    Takes ``SyncVectorEnv``, ``AsyncVectorEnv``, natively vectorized environments
    (``vectorization_mode="vector_entry_point"``) and vector wrappers around these, in every autoreset mode (see
    :mod:`ppo_plus.envs.vec_env`). ``env_method`` reaches the single environments of a ``SyncVectorEnv`` or
    ``AsyncVectorEnv``, all at once; for their attributes use its own ``get_attr`` and ``set_attr``.

    :param env: for example ``gymnasium.make_vec("CartPole-v1", num_envs=8)``
    :raises ValueError: no supported autoreset mode in the environment's metadata
    :raises TypeError: not a vector environment
    """

    bookkeeping = frozenset({"final_obs", "final_info"})

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        if not isinstance(env, VectorEnv):
            raise TypeError(f"env={env!r} must be a gymnasium.vector.VectorEnv")
        mode, base = (env.metadata or {}).get("autoreset_mode"), env.unwrapped
        try:
            self.autoreset = AutoresetMode(getattr(mode, "value", mode))
        except ValueError:
            raise ValueError(
                f'metadata["autoreset_mode"]={mode!r} of env={env} must be a gymnasium.vector.AutoresetMode'
            ) from None
        is_next_step = self.autoreset == AutoresetMode.NEXT_STEP
        if is_next_step and isinstance(base, AsyncVectorEnv) and not base.shared_memory:
            raise ValueError(
                "AsyncVectorEnv with shared_memory=False and autoreset_mode=NEXT_STEP resets a second time after "
                "reset(): use shared memory or AutoresetMode.SAME_STEP"
            )
        super().__init__(env, env.num_envs, env.single_observation_space, env.single_action_space)
        self._singles = isinstance(base, (SyncVectorEnv, AsyncVectorEnv))
        # They also know when a whole Atari game is over.
        self._has_monitors = self.has_attr("get_episode_rewards")

    def reset(self) -> VecEnvObs:
        if any(options != self._options[0] for options in self._options):
            raise ValueError(f"options={self._options!r} must be the same for all environments of {self.env}")
        # Seeds are consecutive, and a vector environment derives the same ones from the first.
        return self._begin(*self.env.reset(seed=self._seeds[0], options=dict(self._options[0]) or None))

    def has_attr(self, attr_name: str) -> bool:
        in_all = self._singles and all(self.env.unwrapped.call("has_wrapper_attr", attr_name))
        return attr_name == "render_mode" or in_all

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        if not self._singles:
            return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)
        if sorted(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ValueError(f"indices={indices!r}: {self.env} can only reach all its environments at once")
        # First, since a missing attribute would end the processes of an `AsyncVectorEnv`.
        if not self.has_attr(method_name):
            raise AttributeError(f"the environments of {self.env} have no attribute {method_name!r}")
        return list(self.env.unwrapped.call(method_name, *method_args, **method_kwargs))


class EnvPoolVecEnv(_VectorAdapter):
    """An EnvPool (Weng et al. 2022, arXiv:2206.10558) as a ``VecEnv``.

    Its autoreset mode is ``NEXT_STEP`` (see :mod:`ppo_plus.envs.vec_env`). Its seed is an argument of
    ``envpool.make``; :meth:`seed` cannot change it. Atari: episode statistics are those of whole games with unclipped
    rewards, also where each life is an episode.

    :param env: for example ``envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=0)``
    :raises ValueError: not made with ``env_type="gymnasium"``, or asynchronous (``batch_size`` below ``num_envs``)
    :raises TypeError: not an EnvPool
    """

    bookkeeping = frozenset({"env_id", "players"})

    def __init__(self, env: Any):
        if not _is_envpool(env):
            raise TypeError(f"env={env!r} must come from envpool.make")
        if not isinstance(getattr(env, "observation_space", None), spaces.Space):
            raise ValueError(f'env={env!r} must be made with envpool.make(..., env_type="gymnasium")')
        config = env.config
        if env.is_async:
            raise ValueError(
                f"batch_size={config['batch_size']} must be num_envs={config['num_envs']}: leave batch_size out, "
                "so that every step covers all environments"
            )
        super().__init__(env, int(config["num_envs"]), env.observation_space, env.action_space)
        self._render_arguments = {"env_ids": np.arange(self.num_envs)}

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Has no effect; warns if ``seed``, of which it takes 31 bits, is not what the pool was made with."""
        actual = self.env.config.get("seed")
        if seed is not None and seed % 2**31 != actual:
            warnings.warn(
                f"seed={seed} does not reach the environments: EnvPool keeps the seed that it was made with, {actual}. "
                f"Use envpool.make(..., seed={seed})",
                stacklevel=2,
            )
        return [None] * self.num_envs

    def reset(self) -> VecEnvObs:
        if any(self._options):
            raise ValueError(f"options={self._options!r} cannot be set at reset: pass them to envpool.make")
        return self._begin(*self.env.reset())

    def _counted(
        self, rewards: np.ndarray, ended: list[int], truncated: np.ndarray, columns: dict[str, Any]
    ) -> tuple[np.ndarray, list[int]]:
        if "lives" not in columns:
            return rewards, ended
        # Atari: the rewards before they were clipped, of the whole game, not only of a life.
        return columns["reward"], [i for i in ended if columns["terminated"][i] or truncated[i]]


def _is_envpool(env: Any) -> bool:
    # EnvPool generates its classes, so they are recognized by their methods.
    return all(hasattr(type(env), name) for name in ("async_reset", "send", "recv", "all_env_ids"))


def _rows(columns: dict[str, Any], n: int, skip: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Columns as ``n`` new dicts with one value per key, without the keys to skip."""
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, column in columns.items():
        if key in skip or (key.startswith("_") and key[1:] in columns):
            continue
        values = _values(column, n)
        mask = columns.get("_" + key)
        if mask is None or mask.all():
            for row, value in zip(rows, values, strict=True):
                row[key] = value
        else:
            for i in np.flatnonzero(mask):
                rows[i][key] = values[i]
    return rows


def _values(column: Any, n: int) -> list[Any]:
    """One value for each of ``n`` environments; Python numbers where they are numbers."""
    if isinstance(column, dict):
        return list(_rows(column, n))
    if isinstance(column, np.ndarray) and len(column.shape) and len(column) == n:
        # Copied, because rows are views and the environment may reuse the array.
        return column.tolist() if column.ndim == 1 else list(column.copy())
    if isinstance(column, (list, tuple)) and len(column) == n:
        return list(column)
    # One value for all environments.
    return [column] * n
