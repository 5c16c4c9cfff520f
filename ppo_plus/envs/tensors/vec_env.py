"""Environments in tensors with SB3's ``VecEnv`` interface, and one in tensors.

Training calls :meth:`TensorVecEnv.step_tensors`. Evaluation, callbacks and other algorithms call SB3's methods
(``reset``, ``step``, …), which convert to NumPy and so wait for the device.

``N`` is the number of environments.
"""

import warnings
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecTransposeImage
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from ppo_plus.envs.checks import TIMEOUT, check_shape
from ppo_plus.envs.tensors.env import Obs, TensorEnv, as_numpy, as_tensor
from ppo_plus.envs.vec_env import BatchedVecEnv, rows_of
from ppo_plus.policy.masking import METHOD
from ppo_plus.policy.observations import as_dict
from ppo_plus.trees import mapped, tree_map, widest


class Stepped(NamedTuple):
    """The result of a step, in tensors; what a :class:`~ppo_plus.Transition` has, too, is as there.

    :param dones: which episodes have ended, booleans ``(N,)``
    :param timeouts: those that only a time limit has ended
    :param returns: sums of rewards of the episodes so far, including this step, shape ``(N,)``
    :param lengths: numbers of their steps, integers ``(N,)``
    """

    obs: Obs
    rewards: th.Tensor
    dones: th.Tensor
    timeouts: th.Tensor
    final_obs: Obs | None
    returns: th.Tensor
    lengths: th.Tensor
    log: Mapping[str, Any]
    infos: Mapping[str, Any]


class TensorVecEnv(BatchedVecEnv):
    """A :class:`~ppo_plus.TensorEnv` as a ``VecEnv``.

    Nested Dict observations are flattened (``"camera/rgb"``), and images get their channels first, as in SB3.

    :param env: the environments
    :raises ValueError: their spaces are not supported
    """

    def __init__(self, env: TensorEnv):
        self.device = env.device
        self._layout = ObservationLayout(env.observation_space)
        super().__init__(env, env.num_envs, self._layout.space, env.action_space)
        self._begin()

    def _begin(self) -> None:
        self._returns = th.zeros(self.num_envs, dtype=widest(self.device), device=self.device)
        self._lengths = th.zeros(self.num_envs, dtype=th.long, device=self.device)
        #: Whether the next step is checked: the first one after each reset.
        self._unchecked = True

    @th.no_grad()
    def reset_tensors(self) -> Obs:
        """Start all episodes again, with the seed and options that were set since; returns the first observations."""
        obs = self._layout(self.env.reset(self._seeds[0], **self._options_of_reset()))
        self._reset_seeds()
        self._reset_options()
        self._begin()
        check_shape(obs, self.observation_space, self.num_envs)
        return obs

    @th.no_grad()
    def step_tensors(self, actions: Obs | np.ndarray) -> Stepped:
        """Take a step; the actions are those of the simulator, on any device.

        :raises ValueError: the tensors that it returns have other shapes than its spaces
        """
        step = self.env.step(as_tensor(actions, self.device))
        obs, rewards = self._layout(step.obs), step.rewards.reshape(-1).float()
        terminated, truncated = step.terminated.reshape(-1).bool(), step.truncated.reshape(-1).bool()
        if self._unchecked:
            check_shape(obs, self.observation_space, self.num_envs)
            if {rewards.shape, terminated.shape, truncated.shape} != {(self.num_envs,)}:
                raise ValueError(
                    f"env={self.env!r} returned {len(rewards)} rewards, {len(terminated)} terminated and "
                    f"{len(truncated)} truncated: return one number for each of its {self.num_envs} environments"
                )
            self._unchecked = False
        dones, timeouts = terminated | truncated, truncated & ~terminated
        returns, lengths = self._returns + rewards, self._lengths + 1
        self._returns, self._lengths = returns.masked_fill(dones, 0.0), lengths.masked_fill(dones, 0)
        final_obs = None if step.final_obs is None else self._layout(step.final_obs)
        if final_obs is not None:
            check_shape(final_obs, self.observation_space, self.num_envs, "final_obs")
        return Stepped(obs, rewards, dones, timeouts, final_obs, returns, lengths, step.log, step.infos)

    def reset(self) -> Obs:
        obs = self.reset_tensors()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return as_numpy(obs)

    def step_wait(self) -> VecEnvStepReturn:
        step = self.step_tensors(self._actions)
        return as_numpy(step.obs), as_numpy(step.rewards), as_numpy(step.dones), self.infos(step)

    def infos(self, step: Stepped) -> list[dict[str, Any]]:
        """The infos of a step as in SB3: what the simulator has for each environment, and final observations, time
        limits and statistics of ended episodes."""
        own = {key: part for key, part in step.infos.items() if key not in ("episode", "terminal_observation", TIMEOUT)}
        columns = mapped(lambda part: as_numpy(part) if isinstance(part, th.Tensor) else part, own)
        infos = rows_of(columns, self.num_envs)
        ended = step.dones.nonzero().squeeze(1)
        if len(ended):
            columns = (ended, step.timeouts[ended], step.returns[ended], step.lengths[ended])
            for i, timeout, returned, length in zip(*(column.tolist() for column in columns), strict=True):
                infos[i] |= {TIMEOUT: timeout, "episode": self.episode(returned, length)}
                if step.final_obs is not None:
                    infos[i]["terminal_observation"] = as_numpy(mapped(itemgetter(i), step.final_obs))
        return infos

    def has_attr(self, attr_name: str) -> bool:
        return attr_name == "render_mode" or (attr_name == METHOD and self.env.has_masks)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        if method_name == METHOD and self.env.has_masks:
            masks = as_numpy(self.env.action_masks())
            return [tree_map(itemgetter(i), masks) for i in self._get_indices(indices)]
        return super().env_method(method_name, *args, indices=indices, **kwargs)

    def get_images(self) -> Sequence[np.ndarray | None]:
        pictures = self.env.render()
        pictures = pictures.numpy(force=True) if isinstance(pictures, th.Tensor) else pictures
        return [*pictures] if np.ndim(pictures) == 4 else [pictures]


def warn_of_numpy(env: VecEnv) -> None:
    """Warn where a wrapper makes training step environments in tensors through NumPy."""
    if isinstance(env, VecEnvWrapper) and isinstance(env.unwrapped, TensorVecEnv):
        warnings.warn(
            f"{type(env).__name__} works in NumPy, so environments in tensors are stepped through the host, which is "
            "slow: leave it out, or wrap the simulator; in place of VecNormalize, pass normalize_observations=True and "
            "normalize_values=True to PPO_Plus",
            stacklevel=5,
        )


class ObservationLayout:
    """Converts observations to SB3's space: one Dict, single precision, images with their channels first."""

    def __init__(self, space: spaces.Space[Any]):
        space, self._is_tuple = as_dict(space), isinstance(space, spaces.Tuple)
        flat = _flat(space)
        #: Whether the channels of an observation come last, by entry.
        self._last = {key: is_image_space(sub) and not is_image_space_channels_first(sub) for key, sub in flat.items()}
        flat |= {key: VecTransposeImage.transpose_space(flat[key]) for key, last in self._last.items() if last}
        self.space = spaces.Dict(list(flat.items())) if isinstance(space, spaces.Dict) else flat[""]

    def __call__(self, obs: Obs) -> Obs:
        flat = _flat(as_dict(obs) if self._is_tuple else obs)
        for key, last in self._last.items():
            if not isinstance(flat.get(key), th.Tensor):
                what = f"observations{key and f'[{key!r}]'} must be tensors, not {type(flat.get(key)).__name__}"
                raise TypeError(f"{what}; reset() returns them without an info")
            tensor = flat[key].permute(0, 3, 1, 2) if last else flat[key]
            flat[key] = tensor.float() if tensor.is_floating_point() else tensor
        return {key: flat[key] for key in self._last} if isinstance(self.space, spaces.Dict) else flat[""]


def _flat(nested: Any, before: str = "") -> dict[str, Any]:
    """A nesting of dicts, or of Dict spaces, as one dict; anything else by the key ``""``."""
    if not hasattr(nested, "items"):
        return {before: nested}
    parts = (_flat(part, f"{before}/{key}" if before else key) for key, part in nested.items())
    return {key: value for part in parts for key, value in part.items()}
