"""Action masks: the alternatives that an environment allows in its present state.

The layout is sb3-contrib's, flat: for every choice one boolean per alternative, one choice after another.
``Discrete(n)`` has ``n`` entries, ``MultiDiscrete`` those of its components in turn, ``MultiBinary`` two for each bit
(may it be 0, may it be 1), ``Box`` none; the spaces in a ``Dict`` or ``Tuple`` follow each other in order.

Masks come from a method ``action_masks()`` of the environments (sb3-contrib's convention and its ``ActionMasker``), or
are an entry of a Dict observation. ``N`` environments, ``M`` entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

#: The method of an environment that returns its mask.
METHOD = "action_masks"


@dataclass(frozen=True)
class MaskSource:
    """The source of an environment's masks.

    :param choices: alternatives of each choice, in order
    :param key: the entry of the observations that is the mask; ``None``: the environments' method
    """

    choices: Sequence[int]
    key: str | None = None

    def read(self, env: VecEnv, obs: Any, step: int) -> np.ndarray | None:
        """The present masks, checked, booleans ``(N, M)``; ``None`` if the policy takes them from ``obs``.

        :raises ValueError: not a mask of this action space, or one that allows nothing; names the environment
        """
        given = env.env_method(METHOD) if self.key is None else obs[self.key]
        masks = as_masks(f"{self} at step {step}", given, self.choices)
        # Gymnasium's vector environments by default ignore the action after the end of an episode.
        masks[getattr(env, "resetting", [])] = True
        forbidden = np.flatnonzero(nothing_allowed(masks, self.choices))
        if len(forbidden):
            i = int(forbidden[0])
            raise ValueError(self.forbids_all(i, step, masks[i]))
        return masks if self.key is None else None

    def forbids_all(self, env: int, step: int, mask: np.ndarray) -> str:
        """The message for a mask that allows nothing."""
        return (
            f"{self} of environment {env} at step {step} allows nothing to choose from: {mask.astype(int)} for "
            f"choices among {list(self.choices)}. End the episode there, or allow an action that does nothing"
        )

    def __str__(self) -> str:
        return f"{METHOD}()" if self.key is None else f"the mask observation[{self.key!r}]"


def find_masks(env: VecEnv, choices: Sequence[int], key: str | None = None) -> MaskSource | None:
    """The source of an environment's masks; ``None`` if it has none."""
    if key is None and not _has_method(env):
        return None
    if not choices:
        raise ValueError(
            f"the environment has a method {METHOD}(), but action_space={env.action_space} has no choices to mask: "
            "give the method another name, or bound the Box"
        )
    return MaskSource(choices, key)


def _has_method(env: VecEnv) -> bool:
    inner = env.unwrapped
    try:
        if type(inner).has_attr is not VecEnv.has_attr:
            return inner.has_attr(METHOD)
        # SB3 only tests whether this raises; but there are environments that have every attribute, as ``None``.
        return any(map(callable, inner.get_attr(METHOD)))
    except (AttributeError, NotImplementedError):
        # Vector environments in other processes may not have single environments.
        return False


def as_masks(name: str, given: Any, choices: Sequence[int]) -> np.ndarray:
    """``N`` masks of zeros and ones as booleans ``(N, M)``, checked; ``name`` is theirs in messages."""
    array = np.asarray(given)
    n_entries = sum(choices)
    if array.ndim == 0 or array[0].size != n_entries:
        raise ValueError(
            f"{name}: a mask of shape {array.shape[1:]} does not fit: {n_entries} entries are needed, one for each "
            f"alternative of choices among {list(choices)}"
        )
    masks: np.ndarray = array.reshape(len(array), n_entries).astype(bool)
    if array.dtype != bool and not np.array_equal(masks, array.reshape(masks.shape)):
        raise ValueError(
            f"{name}: a mask must be of zeros and ones, not {array[:1]}: is it normalized or scaled on the way?"
        )
    return masks


def nothing_allowed(masks: np.ndarray, choices: Sequence[int]) -> Any:
    """Whether some choice of each mask ``(N, M)`` has no alternative left, booleans ``(N,)``."""
    starts = np.cumsum([0, *choices[:-1]])
    return np.logical_not(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))


def check_mask_key(key: Any, observation_space: spaces.Space[Any], choices: Sequence[int]) -> None:
    """Check that an entry of the observations can be the mask."""
    if not isinstance(observation_space, spaces.Dict) or key not in observation_space.spaces:
        raise ValueError(f"action_mask_key={key!r} is not an entry of observation_space={observation_space}")
    space, n_entries = observation_space[key], sum(choices)
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)) or np.prod(space.shape) != n_entries or not n_entries:
        raise ValueError(
            f"action_mask_key={key!r}: {space} is not a mask for choices among {list(choices)}: "
            f"make it MultiBinary({n_entries})"
        )
    if len(observation_space.spaces) == 1:
        raise ValueError(f"action_mask_key={key!r} is the only entry of observation_space={observation_space}")
