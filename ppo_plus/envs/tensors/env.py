"""Environments in tensors: many at once, whose observations, rewards and actions never leave their device.

:class:`~ppo_plus.TensorEnv` is their interface. The adapters of simulators that are recognized unchanged are in
``envs/tensors/simulators.py``. For any other simulator, derive a class and implement
:meth:`~ppo_plus.TensorEnv.reset` and :meth:`~ppo_plus.TensorEnv.step`, and if they apply
:meth:`~ppo_plus.TensorEnv.action_masks` and :meth:`~ppo_plus.TensorEnv.close`.

``N`` is the number of environments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

#: A tensor with ``N`` rows, or a dict of them.
Obs = Any

#: Actions without bounds are clipped here: gradients, noise and simulators break down long before.
UNBOUNDED = 100.0

#: Names that simulators use for the policy's group of observations.
POLICY_GROUPS = ("policy", "actor", "state", "obs")


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
    """

    obs: Obs
    rewards: th.Tensor
    terminated: th.Tensor
    truncated: th.Tensor
    final_obs: Obs | None = None
    log: Mapping[str, Any] = {}


class TensorEnv:
    """``N`` environments in tensors; the base class for your own.

    The step that ends an episode starts the next one.

    :param num_envs: ``N``
    :param observation_space: of one environment
    :param action_space: of one environment. Actions of a Box without bounds are clipped at ±:data:`UNBOUNDED`
    :param device: of its tensors
    """

    #: How to make the simulator return final observations, for the warning if it does not.
    remedy = "return it as the final_obs of the Transition"

    def __init__(
        self, num_envs: int, observation_space: Any, action_space: Any, device: th.device | str = "cpu"
    ) -> None:
        self.num_envs = num_envs
        self.observation_space = gym_space(observation_space)
        given = gym_space(action_space)
        self.action_space = bounded(given)
        #: Whether a Box of actions had no bounds.
        self.unbounded = self.action_space != given
        self.device = th.device(device)

    def reset(self, seed: int | None = None) -> Obs:
        """Start all episodes again.

        :param seed: of the random numbers from now on; ``None``: continue the present sequence
        :return: the first observations, ``N`` rows
        """
        raise NotImplementedError

    def step(self, actions: Any) -> Transition:
        """Take a step.

        :param actions: in the action space's dtype, shape ``(N, *action_space.shape)``; for Dict and Tuple spaces a
            dict or tuple of them
        """
        raise NotImplementedError

    def action_masks(self) -> Any:
        """The present action masks (:mod:`ppo_plus.policy.masking`), zeros and ones ``(N, M)`` or the structure of the
        action space with ``N`` rows in each tensor; or ``None``."""
        return None

    @property
    def has_masks(self) -> bool:
        """Whether there are action masks."""
        return type(self).action_masks is not TensorEnv.action_masks

    def render(self) -> Any:
        """A picture ``(H, W, 3)``, or ``None``."""
        return None

    def close(self) -> None:
        """Free the resources of the simulator."""


def gym_space(space: Any) -> spaces.Space[Any]:
    """A space of a simulator as one of Gymnasium's: simulators have other classes, with the same attributes."""
    if isinstance(space, spaces.Space):
        return space
    if isinstance(getattr(space, "spaces", None), Mapping):
        # Pairs, not a dict: Gymnasium would sort its keys.
        return spaces.Dict([(key, gym_space(sub)) for key, sub in space.spaces.items()])
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low") and hasattr(space, "high"):
        dtype = np.dtype(getattr(space, "dtype", None) or np.float32)
        shape = tuple(space.shape)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, shape, dtype.type)
    raise ValueError(f"{space!r} is not a supported space: use one of Gymnasium's")


def box(size: int | tuple[int, ...]) -> spaces.Box:
    """A Box of a size or shape, without bounds."""
    return spaces.Box(-np.inf, np.inf, (size,) if isinstance(size, int) else tuple(size), np.float32)


def bounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The action space with bounds for all its Boxes."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, bounded(sub)) for key, sub in space.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([bounded(sub) for sub in space])
    if isinstance(space, spaces.Box) and not space.is_bounded():
        low, high = (np.nan_to_num(each, posinf=UNBOUNDED, neginf=-UNBOUNDED) for each in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)  # type: ignore[arg-type]
    return space


def select_groups(
    space: spaces.Space[Any], wanted: Sequence[str] | None
) -> tuple[spaces.Space[Any], Callable[[Any], Obs]]:
    """The space of the groups of observations that are used, and a function that selects them: those that are
    ``wanted``; otherwise the policy's, if its name is known, or all."""
    if not isinstance(space, spaces.Dict):
        if wanted is not None:
            raise ValueError(f"groups={wanted!r}: the environment has only one group of observations, {space}")
        return space, lambda obs: obs
    names = list(space.spaces)
    if wanted is not None and (not wanted or not set(wanted) <= set(names)):
        raise ValueError(f"groups={wanted!r} must be groups of the environment, {names}")
    known = [key for key in POLICY_GROUPS if key in names]
    if wanted is None and (known or len(names) == 1):
        only = (known or names)[0]
        return space[only], lambda obs: obs[only]
    keys = list(wanted or names)
    return spaces.Dict([(key, space[key]) for key in keys]), lambda obs: {key: obs[key] for key in keys}
