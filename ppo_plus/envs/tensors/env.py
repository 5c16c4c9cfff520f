"""Environments in tensors: many at once, whose observations, rewards and actions never leave their device.

:class:`~ppo_plus.TensorEnv` is their interface. Gymnasium's vector environments in tensors are recognized
(``GymTensors``). For any other simulator, derive a class and implement
:meth:`~ppo_plus.TensorEnv.reset` and :meth:`~ppo_plus.TensorEnv.step`, and if they apply
:meth:`~ppo_plus.TensorEnv.action_masks` and :meth:`~ppo_plus.TensorEnv.close`.

``N`` is the number of environments.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from ppo_plus.envs.layers import Adapter, layer_with
from ppo_plus.policy.masking import METHOD
from ppo_plus.trees import mapped

#: A tensor with ``N`` rows, or a dict of them.
Obs = Any

#: Actions without bounds are clipped here: gradients, noise and simulators break down long before.
UNBOUNDED = 100.0


class Transition(NamedTuple):
    """The result of a step of ``N`` environments.

    The simulator may write into these tensors again: what is stored is copied.

    :param obs: observations to act on next; after the end of an episode, the first one of the next episode
    :param rewards: shape ``(N,)``
    :param terminated: which episodes have reached a terminal state, booleans ``(N,)``
    :param truncated: which episodes a time limit has cut, booleans ``(N,)``; without effect where ``terminated``
    :param final_obs: the last observations of the episodes that have ended, in ``N`` rows, of which only theirs are
        read; ``None``: unknown, or no episode has ended
    :param log: numbers to log, or 0-d tensors, by name
    :param infos: further tensors ``(N,)`` by name, or dicts of them, from which streams read (:class:`ppo_plus.Stream`)
    """

    obs: Obs
    rewards: th.Tensor
    terminated: th.Tensor
    truncated: th.Tensor
    final_obs: Obs | None = None
    log: Mapping[str, Any] = {}
    infos: Mapping[str, Any] = {}


class TensorEnv:
    """``N`` environments in tensors; the base class for your own.

    The step that ends an episode starts the next one. ``reset`` and ``step`` are called without gradients: a simulator
    that differentiates uses :class:`torch.enable_grad`.

    :param num_envs: ``N``
    :param observation_space: of one environment
    :param action_space: of one environment. Actions of a Box without bounds are clipped at ±:data:`UNBOUNDED`
    :param device: of its tensors
    """

    #: How to make the simulator return final observations, for the warning if it does not.
    remedy = "return it as the final_obs of the Transition"

    def __init__(
        self,
        num_envs: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "cpu",
    ):
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = bounded(action_space)
        #: Whether a Box of actions had no bounds.
        self.unbounded = self.action_space != action_space
        self.device = th.device(device)

    def reset(self, seed: int | None = None) -> Obs:
        """Start all episodes again.

        :param seed: of the random numbers from now on; ``None``: continue the present sequence
        :return: the first observations, ``N`` rows
        """
        raise NotImplementedError

    def step(self, actions: Obs) -> Transition:
        """Take a step.

        :param actions: in the space's dtype, shape ``(N, *action_space.shape)``; for Dict and Tuple a dict or tuple
        """
        raise NotImplementedError

    def action_masks(self) -> Obs | None:
        """The present action masks (:mod:`ppo_plus.policy.masking`), zeros and ones ``(N, M)`` or the structure of the
        action space with ``N`` rows in each tensor. Environments without masks do not override it."""
        return None

    @property
    def has_masks(self) -> bool:
        """Whether there are action masks."""
        return type(self).action_masks is not TensorEnv.action_masks

    def render(self) -> np.ndarray | None:
        """A picture ``(H, W, 3)``, or ``None``."""
        return None

    def close(self) -> None:
        """Free the resources of the simulator."""


def bounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The action space, with bounds if it is a Box without."""
    if isinstance(space, spaces.Box) and not space.is_bounded():
        low = np.where(np.isfinite(space.low), space.low, np.minimum(space.high, 0) - UNBOUNDED)
        high = np.where(np.isfinite(space.high), space.high, np.maximum(space.low, 0) + UNBOUNDED)
        return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]
    return space


class GymTensors(Adapter, TensorEnv):
    """A Gymnasium vector environment that returns tensors: ManiSkill's ``ManiSkillVectorEnv``, one in Gymnasium's
    ``JaxToTorch``, or your own with a :class:`torch.device`; in autoreset mode ``SAME_STEP``.

    Final observations are ``infos["final_obs"]``, or ``infos["final_observation"]``.
    """

    remedy = 'put it into infos["final_obs"]'

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode, resets = (env.metadata or {}).get("autoreset_mode"), getattr(env, "auto_reset", True)
        if getattr(mode, "value", mode) not in (None, AutoresetMode.SAME_STEP.value) or resets is False:
            raise ValueError(
                f"env={env!r} has autoreset mode {mode}, but environments in tensors have to start the next episode in "
                "the step that ends one: make it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
            )
        self.env, self.render_mode, self._masking = env, env.render_mode, layer_with(METHOD, env)
        device = getattr(env, "device", None) or getattr(env.unwrapped, "device", None) or "cpu"
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space, device)

    def reset(self, seed: int | None = None, **options: Any) -> Obs:
        obs, _ = self.env.reset(seed=seed, **options)
        return as_tensor(obs, self.device)

    def step(self, actions: Obs) -> Transition:
        *results, infos = self.env.step(actions)
        obs, rewards, terminated, truncated = as_tensor(tuple(results), self.device)
        final = infos.get("final_obs", infos.get("final_observation"))
        final = None if final is None else as_tensor(final, self.device)
        if isinstance(infos.get("final_info"), Mapping):
            infos = _of_step(infos, infos["final_info"], as_tensor(infos["_final_info"], self.device))
        return Transition(obs, rewards, terminated, truncated, final, infos=infos)

    @property
    def has_masks(self) -> bool:
        return self._masking is not None

    def action_masks(self) -> Obs | None:
        return as_tensor(self._masking.action_masks(), self.device)

    def render(self) -> np.ndarray | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _of_step(infos: Mapping[str, Any], final: Mapping[str, Any], ended: th.Tensor) -> dict[str, Any]:
    """The infos of a step: those in ``final`` of the episodes that it has ended, where others may be of the reset."""
    merged = dict(infos)
    for key, value in final.items():
        other = infos.get(key)
        if isinstance(value, Mapping):
            merged[key] = _of_step(other if isinstance(other, Mapping) else {}, value, ended)
        elif np.shape(value)[:1] == ended.shape:
            value = as_tensor(value, ended.device)
            mask = ended.view(-1, *[1] * (value.ndim - 1))
            merged[key] = value if other is None else value.where(mask, as_tensor(other, ended.device))
    return merged


def as_tensor(value: Any, device: th.device) -> Obs:
    """Arrays of any kind as tensors on a device, in any nesting of dicts and tuples."""
    return mapped(lambda part: th.as_tensor(part, device=device), value)


def as_numpy(value: Obs) -> Any:
    """Tensors as NumPy arrays with their own memory, in any nesting of dicts and tuples."""
    return mapped(lambda tensor: tensor.cpu().numpy().copy(), value)
