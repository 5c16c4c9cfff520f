"""Action masks: the alternatives that an environment allows in its present state.

A mask has the structure of the action space: a dict for ``Dict``, a tuple for ``Tuple``. In it, ``Discrete(n)`` has
``n`` entries, ``MultiDiscrete`` those of its components one after another (or a tuple with one array for each),
``MultiBinary`` two for each bit (may it be 0, may it be 1); ``Box`` has none and may be left out. Flat, as in
sb3-contrib, these entries follow each other in the order of the space's ``spaces``.

The *layout* is that structure with the number of alternatives of each choice: ``{"mode": [4], "where": [3, 3]}``.

Masks come from a method ``action_masks()`` of the environments (sb3-contrib's convention and its ``ActionMasker``), or
are an entry of a Dict observation. ``N`` environments, ``M`` entries.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

#: The method of an environment that returns its mask.
METHOD = "action_masks"
#: Single masks that are not arrays.
NESTED = (Mapping, tuple, list)


@dataclass(frozen=True)
class MaskSource:
    """The source of an environment's masks.

    :param layout: see the module
    :param key: the entry of the observations that is the mask; ``None``: the environments' method
    """

    layout: Any
    key: str | None = None

    @property
    def choices(self) -> list[int]:
        """The number of alternatives of each choice, in order."""
        return choices_of(self.layout)

    def read(self, env: VecEnv, obs: Any, step: int) -> np.ndarray | None:
        """The present masks, checked, booleans ``(N, M)``; ``None`` if the policy takes them from ``obs``.

        :raises ValueError: not a mask of this action space, or one that allows nothing; names the environment
        """
        given = env.env_method(METHOD) if self.key is None else obs[self.key]
        masks = as_masks(f"{self} at step {step}", given, self.layout)
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
            f"choices among {self.layout}. End the episode there, or allow an action that does nothing"
        )

    def __str__(self) -> str:
        return f"{METHOD}()" if self.key is None else f"the mask observation[{self.key!r}]"


def find_masks(env: VecEnv, layout: Any, key: str | None = None) -> MaskSource | None:
    """The source of an environment's masks; ``None`` if it has none."""
    if key is None and not _has_method(env):
        return None
    if not choices_of(layout):
        raise ValueError(
            f"the environment has a method {METHOD}(), but action_space={env.action_space} has no choices to mask: "
            "give the method another name, or bound the Box"
        )
    if key is not None:
        warn_of_order(layout)
    return MaskSource(layout, key)


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


def choices_of(layout: Any) -> list[int]:
    """The number of alternatives of each choice in a layout, in order."""
    if isinstance(layout, list):
        return layout
    parts = layout.values() if isinstance(layout, dict) else layout
    return [n for part in parts for n in choices_of(part)]


def as_masks(name: str, given: Any, layout: Any) -> np.ndarray:
    """``N`` masks of zeros and ones as booleans ``(N, M)``, checked.

    :param name: theirs in messages
    :param given: a list or an array of ``N`` masks; or one structure, whose arrays have ``N`` rows
    """
    if isinstance(given, np.ndarray) and given.dtype == object:
        given = list(given)
    is_structure = isinstance(given, Mapping) or (isinstance(given, tuple) and isinstance(layout, tuple))
    if not is_structure and isinstance(given, Sequence) and any(isinstance(mask, NESTED) for mask in given):
        given = np.concatenate([flat(name, mask, layout, batched=False) for mask in given])
    else:
        given = flat(name, given, layout)
    array = given.numpy(force=True) if isinstance(given, th.Tensor) else given
    masks: np.ndarray = array.astype(bool)
    if array.dtype != bool and not np.array_equal(masks, array):
        raise ValueError(
            f"{name}: a mask must be of zeros and ones, not {array[:1]}: is it normalized or scaled on the way?"
        )
    return masks


def flat(name: str, given: Any, layout: Any, batched: bool = True) -> Any:
    """Masks in the structure of the action space as one array or tensor ``(N, M)``.

    :param name: theirs in messages
    :param batched: whether ``given`` has arrays of ``N`` rows, or is a single mask
    :raises ValueError: it has another structure or size than the layout
    """
    parts = _parts(name, given, layout, tuple if batched else (tuple, list))
    if parts:
        # Parts without choices may be missing.
        present = [part for part in parts if part[1] is not None or choices_of(part[2])]
        each = [flat(f"{name}, entry {key!r}", part, sub, batched) for key, part, sub in present]
        return th.cat(each, dim=1) if isinstance(each[0], th.Tensor) else np.concatenate(each, axis=1)
    n_entries, is_tensor = sum(choices_of(layout)), isinstance(given, th.Tensor)
    try:
        rows = given if is_tensor else np.asarray(given)
    except ValueError:
        # Parts of different lengths.
        rows = np.asarray(None)
    rows = rows if batched or rows.dtype == object else rows[None]
    if not rows.ndim or rows.dtype == object or math.prod(rows.shape[1:]) != n_entries:
        found = "a mask that is not an array" if rows.dtype == object else f"a mask of shape {tuple(rows.shape[1:])}"
        raise ValueError(
            f"{name}: {found} does not fit: {n_entries} entries are needed, one for each alternative of choices among "
            f"{layout}"
        )
    if not is_tensor:
        warn_of_order(layout)
    return rows.reshape(len(rows), n_entries)


def _parts(name: str, given: Any, layout: Any, sequence: Any) -> list[tuple[Any, Any, Any]]:
    """The parts of a mask in the structure of a layout: key, mask and layout of each; none if the mask is flat."""
    if isinstance(layout, dict) and isinstance(given, Mapping):
        if unknown := [key for key in given if key not in layout]:
            raise ValueError(f"{name}: a mask for {unknown} does not fit choices among {layout}")
        return [(key, given.get(key), sub) for key, sub in layout.items()]
    # A flat mask may be a list, too, but of numbers.
    nested = isinstance(given, sequence) and any(part is None or hasattr(part, "__len__") for part in given)
    if nested and isinstance(layout, (tuple, list)) and len(given) == len(layout):
        subs = layout if isinstance(layout, tuple) else [[n] for n in layout]
        return list(zip(range(len(subs)), given, subs, strict=True))
    return []


def warn_of_order(layout: Any) -> None:
    """Warn once of a flat mask for a Dict with entries of the same size: no check notices another order."""
    parts = [] if isinstance(layout, list) else list(layout.values() if isinstance(layout, dict) else layout)
    sizes = [sum(choices_of(part)) for part in parts if choices_of(part)]
    if isinstance(layout, dict) and len(set(sizes)) < len(sizes):
        _warn_of_order(str(layout))
    for part in parts:
        warn_of_order(part)


@cache
def _warn_of_order(layout: str) -> None:
    warnings.warn(
        "the action mask is flat, and its order cannot be checked, since entries of the Dict action space have the same "
        f"size: make sure that its order is that of {layout} (Gymnasium sorts the keys of Dict({{...}}), but not those "
        "of Dict(a=..., b=...)), or give the mask as a dict",
        stacklevel=2,
    )


def nothing_allowed(masks: np.ndarray, choices: Sequence[int]) -> Any:
    """Whether some choice of each mask ``(N, M)`` has no alternative left, booleans ``(N,)``."""
    starts = np.cumsum([0, *choices[:-1]])
    return np.logical_not(np.logical_or.reduceat(masks, starts, axis=1).all(axis=1))


def check_mask_key(key: Any, observation_space: spaces.Space[Any], layout: Any) -> None:
    """Check that an entry of the observations can be the mask."""
    if not isinstance(observation_space, spaces.Dict) or key not in observation_space.spaces:
        raise ValueError(f"action_mask_key={key!r} is not an entry of observation_space={observation_space}")
    space, n_entries = observation_space[key], sum(choices_of(layout))
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)) or np.prod(space.shape) != n_entries or not n_entries:
        raise ValueError(
            f"action_mask_key={key!r}: {space} is not a mask for choices among {layout}: "
            f"make it MultiBinary({n_entries})"
        )
    if len(observation_space.spaces) == 1:
        raise ValueError(f"action_mask_key={key!r} is the only entry of observation_space={observation_space}")
