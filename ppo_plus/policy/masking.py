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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from ppo_plus.policy.observations import parts_of
from ppo_plus.trees import named_parts, tree_leaves

#: The number of alternatives of each choice, in the structure of the action space (see the module).
MaskLayout = list[int] | dict[str, "MaskLayout"] | tuple["MaskLayout", ...]
#: Masks as environments and users give them: flat, or in the structure of the action space.
Masks = np.ndarray | th.Tensor | Mapping[Any, Any] | Sequence[Any]
#: A mask in each row.
Rows = TypeVar("Rows", np.ndarray, th.Tensor)
#: The method of an environment that returns its mask.
METHOD = "action_masks"


@dataclass(frozen=True)
class MaskSource:
    """The source of an environment's masks."""

    layout: MaskLayout
    #: The entry of the observations that is the mask; ``None``: the environments' method.
    key: str | None = None

    def read(self, env: VecEnv, obs: VecEnvObs, step: int) -> np.ndarray | None:
        """The present masks, checked, booleans ``(N, M)``; ``None`` if the policy takes them from ``obs``."""
        masks = env.env_method(METHOD) if self.key is None else parts_of(obs)[self.key]
        masks = as_masks(f"{self} at step {step}", masks, self.layout)
        # Gymnasium's vector environments by default ignore the action after the end of an episode.
        masks[getattr(env, "resetting", [])] = True
        forbidden = np.flatnonzero(nothing_allowed(masks, self.layout))
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


def find_masks(env: VecEnv, layout: MaskLayout, key: str | None = None) -> MaskSource | None:
    """The source of an environment's masks; ``None`` if it has none."""
    if key is None and not _has_method(env):
        return None
    if not choices_of(layout):
        raise ValueError(
            f"the environment has a method {METHOD}(), but action_space={env.action_space} has no choices to mask, "
            "or the policy class has no masks: give the method another name, bound the Box, or derive the class from "
            "ppo_plus.ActorCriticPolicy and override none of SB3's methods"
        )
    return MaskSource(layout, key)


def _has_method(env: VecEnv) -> bool:
    """:raises ValueError: some environments have one, and others have none"""
    inner: Any = env.unwrapped
    try:
        try:
            found = list(inner.env_method("has_wrapper_attr", METHOD))
        except (AttributeError, NotImplementedError, TypeError, ValueError, LookupError):
            found = []
        has_own = type(inner).has_attr is not VecEnv.has_attr
        if not any(found) and (has_own or not found):
            # Vector environments may not have single ones, or a wrapper of all of them may have the method.
            found = [inner.has_attr(METHOD)]
        if all(found) and not has_own:
            # Some environments have every attribute, as ``None``, and some the masks themselves.
            found = [callable(method) for method in inner.get_attr(METHOD)]
    except (AttributeError, NotImplementedError):
        return False
    if any(found) and not all(found):
        raise ValueError(f"only some of the environments have a method {METHOD}(): give all of them one, or none")
    return any(found)


def choices_of(layout: MaskLayout) -> list[int]:
    """The number of alternatives of each choice in a layout, in order."""
    if isinstance(layout, list):
        return layout
    return [n for part in named_parts(layout).values() for n in choices_of(part)]


def as_masks(name: str, masks: Masks, layout: MaskLayout) -> np.ndarray:
    """``N`` masks of zeros and ones as booleans ``(N, M)``, checked; for the arguments see :func:`flat_masks`."""
    masks = flat_masks(name, masks, layout)
    numbers = np.asarray(masks.numpy(force=True) if isinstance(masks, th.Tensor) else masks)
    booleans: np.ndarray = numbers.astype(bool)
    if numbers.dtype != bool and not np.array_equal(booleans, numbers):
        raise ValueError(
            f"{name}: a mask must be of zeros and ones, not {numbers[:1]}, for choices among {layout}: is it scaled?"
        )
    return booleans


def flat_masks(name: str, masks: Masks, layout: MaskLayout) -> np.ndarray | th.Tensor:
    """``N`` masks as one array or tensor ``(N, M)``.

    :param masks: a list or an array of ``N`` masks; or one structure, whose arrays or tensors have ``N`` rows
    """
    masks = masks.tolist() if isinstance(masks, np.ndarray) and masks.dtype.hasobject else masks
    try:
        # If the action space is a tuple, a tuple of dicts is one structure.
        kinds = tuple if isinstance(layout, tuple) else (Mapping, tuple, list)
        if isinstance(masks, (list, tuple)) and all(isinstance(mask, kinds) for mask in masks):
            singles: list[Any] = [_flat(mask, layout, batched=False) for mask in masks]
            return np.concatenate(singles)
        return _flat(masks, layout)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{name}: {error}, for choices among {layout}") from None


def _flat(mask: Any, layout: MaskLayout, batched: bool = True, where: str = "") -> np.ndarray | th.Tensor:
    """One structure as an array or tensor ``(N, M)``; its arrays have ``N`` rows if ``batched``, else ``N`` is 1."""
    if isinstance(mask, Mapping if isinstance(layout, dict) else tuple) and not isinstance(layout, list):
        parts, sublayouts = named_parts(mask), named_parts(layout)
        if unknown := [key for key in parts if key not in sublayouts]:
            raise ValueError(f"the mask has entries {unknown} that the action space has not")
        columns: list[Any] = [
            _flat(parts.get(key), sublayout, batched, f"{where}[{key!r}]")
            for key, sublayout in sublayouts.items()
            # Only what has no choices may be missing, or have parts without masks.
            if choices_of(sublayout) or tree_leaves(parts.get(key))
        ]
        return th.cat(columns, 1) if isinstance(columns[0], th.Tensor) else np.concatenate(columns, 1)
    if isinstance(layout, list) and isinstance(mask, (list, tuple)):
        # An array for each choice; those of several observations are a tuple, and have rows.
        has_rows = isinstance(mask, tuple) and len(mask) == len(layout) and np.ndim(mask[0]) == 2
        if has_rows or not batched:
            mask = th.hstack(mask) if isinstance(mask[0], th.Tensor) else np.hstack(mask)
    rows, n_entries = mask if isinstance(mask, th.Tensor) else np.asarray(mask), sum(choices_of(layout))
    rows = rows if batched else rows[None]
    if not rows.ndim or math.prod(rows.shape[1:]) != n_entries or rows.dtype == np.dtype(object):
        what = f"a mask{where} of shape {tuple(rows.shape[1:])}"
        raise ValueError(f"{what} does not fit: {n_entries} entries are needed, one for each alternative")
    return rows.reshape(len(rows), n_entries)


def nothing_allowed(masks: Rows, layout: MaskLayout) -> Rows:
    """Whether some choice of each mask ``(..., M)`` has no alternative left, booleans ``(...)``; arrays or tensors."""
    choices: list[int] = choices_of(layout)
    if isinstance(masks, th.Tensor):
        return ~th.stack([part.any(dim=-1) for part in th.split(masks, choices, dim=-1)]).all(dim=0)
    allowed = np.asarray(np.logical_or.reduceat(masks, np.cumsum([0, *choices[:-1]]), axis=-1).all(axis=-1))
    return ~allowed


def check_mask_key(key: str, observation_space: spaces.Space[Any], layout: MaskLayout) -> None:
    """Check that an entry of the observations can be the mask."""
    if not isinstance(observation_space, spaces.Dict) or key not in observation_space.spaces:
        raise ValueError(f"action_mask_key={key!r} is not an entry of observation_space={observation_space}")
    space, n_entries = observation_space[key], sum(choices_of(layout))
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)) or np.prod(space.shape) != n_entries or not n_entries:
        problem = f"action_mask_key={key!r}: {space} is not a mask for choices among {layout}"
        raise ValueError(f"{problem}: make it MultiBinary({n_entries}), or pass action_mask_key=None")
    if len(observation_space.spaces) == 1:
        raise ValueError(f"action_mask_key={key!r} is the only entry of the observations: add one to learn from")
