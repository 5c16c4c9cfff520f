"""Data sets of demonstrations, checked and as tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose

from ppo_plus.envs.checks import TIMEOUT
from ppo_plus.envs.normalization import observation_moments
from ppo_plus.model import Model
from ppo_plus.policy.masking import as_masks, nothing_allowed
from ppo_plus.policy.observations import as_dict, parts_of, to_network
from ppo_plus.require import LARGEST
from ppo_plus.trees import mapped, tree_leaves, tree_map

#: The entries of a data set, and what others call them.
NAMES = {
    "observations": ("obs",),
    "actions": ("acts",),
    "rewards": ("rews",),
    "terminations": ("terminals",),
    "truncations": ("timeouts",),
}
MASKS = "action_masks"
#: Ours, by every name; what else says how episodes end; and what is left out.
OURS = {other: name for name, others in NAMES.items() for other in (name, *others)} | {MASKS: MASKS}
ENDS = ("dones", "terminal", "infos")
LEFT_OUT = ("next_obs", "next_observations", "infos/", "metadata/")
#: The spaces of a reward, and of whether an episode ends.
REWARD, END = spaces.Box(-LARGEST, LARGEST, (), np.float64), spaces.Discrete(2)


def read_demonstrations(model: Model, dataset: Any) -> dict[str, Any]:
    """A data set (see :meth:`ppo_plus.PPO_Plus.pretrain`) as tensors on the model's device, with a row per transition:
    ``observations`` as the policy sees them, internal ``actions``, and if they are known ``rewards``, ``ends`` of
    episodes, ``cut`` (the ends that are not terminations) and ``action_masks``.

    Observations are added to the statistics by which they are normalized.

    :raises ValueError: something is missing, unknown, or does not fit the spaces: names the row
    """
    if isinstance(dataset, (str, Path)):
        try:
            with np.load(dataset) as file:
                dataset = dict(file)
        except (ValueError, TypeError, EOFError, BadZipFile) as error:
            raise ValueError(f"dataset={str(dataset)!r} must be an .npz file of arrays, without dicts") from error
    if isinstance(dataset, tuple):
        if len(dataset) > len(NAMES):
            raise ValueError(f"dataset has {len(dataset)} parts: give {[*NAMES]}, or a dict, which may have {MASKS!r}")
        dataset = dict(zip(NAMES, dataset, strict=False))
    episodes = dataset.iterate_episodes() if hasattr(dataset, "iterate_episodes") else dataset
    if _has_entries(episodes) or not hasattr(episodes, "__iter__"):
        parts = [_checked(model, "dataset", episodes, whole=False)]
    else:
        parts = [_checked(model, f"dataset[{i}]", part, whole=True) for i, part in enumerate(episodes)]
    if len({tuple(part) for part in parts}) != 1:
        raise ValueError("dataset has no episodes, or only some of them have rewards or masks: make them alike")
    data: dict[str, Any] = tree_map(lambda *rows: np.concatenate(rows), *parts)
    if model.policy.remembers and "ends" not in data:
        raise ValueError("dataset has no terminations: a policy with memory learns from whole episodes")
    normalize, observed = model.get_vec_normalize_env(), data.pop("observations")
    if normalize is not None and normalize.norm_obs:
        seen, statistics = parts_of(model.observation_space), observation_moments(normalize)
        if any(key not in seen or np.shape(moments.mean) != seen[key].shape for key, moments in statistics.items()):
            raise ValueError("VecNormalize is inside a wrapper that changes its observations: make it the outermost")
        for key, moments in statistics.items() if normalize.training else ():
            moments.update(observed[key] if key else observed)
        observed = normalize.normalize_obs(observed)
    if normalize is not None and normalize.norm_reward:
        data.pop("rewards", None)  # their scale in training is not known yet
    observations = to_network(observed, model.observation_space, model.device)
    if (normalizer := model.policy.observation_normalizer) is not None:
        normalizer.add(normalizer.moments_of(observations))
    data["actions"] = model.policy.distribution.from_env(data["actions"])
    return {"observations": observations} | {name: th.as_tensor(rows).to(model.device) for name, rows in data.items()}


def _has_entries(value: object) -> bool:
    return isinstance(value, Mapping) or any(hasattr(value, name) for name in ("acts", "actions"))


def _checked(model: Model, name: str, given: Any, whole: bool) -> dict[str, Any]:
    """The entries of a data set as arrays in the dtypes of their spaces; or of a dict, trajectory of imitation or
    episode of Minari that is ``whole``."""
    if not _has_entries(given):
        kinds = "a dict of arrays, a list of episodes, a data set of imitation or Minari, or the path of an .npz file"
        raise ValueError(f"{name} is {given!r:.100}, and has no observations and actions: give dataset as {kinds}")
    if not isinstance(given, Mapping):
        given = {key: getattr(given, key, None) for key in (*OURS, *ENDS)}
    given = {key: _plain(rows) for key, rows in given.items() if rows is not None}
    found = {OURS[key]: rows for key, rows in given.items() if key in OURS}
    others = [key for key in given if key not in (*OURS, *ENDS) and not str(key).startswith(LEFT_OUT)]
    if others or not {"observations", "actions"} <= found.keys() or len(found) < len(OURS.keys() & given.keys()):
        needed, optional = [*NAMES][:2], [*NAMES, MASKS][2:]
        raise ValueError(f"{name} has {[*given]}: it needs {needed}, and may have {optional}, each once")
    parts = zip(NAMES, (model.observation_space, model.action_space, REWARD, END, END), strict=True)
    data: dict[str, Any] = {
        key: cast(f"{name}[{key!r}]", found[key], space, key != "observations") for key, space in parts if key in found
    }
    if MASKS in found:
        data[MASKS] = as_masks(f"{name}[{MASKS!r}]", found[MASKS], model.policy.distribution.mask_layout)
    n = len(tree_leaves(data["actions"])[0])
    if whole and len(tree_leaves(data["observations"])[0]) == n + 1:
        data["observations"] = mapped(lambda rows: rows[:n], data["observations"])
    rows = {key: len(tree_leaves(part)[0]) for key, part in data.items()}
    ends = {key: given[key] for key in ("dones", "infos") if key in given}
    rows |= {key: np.size(each) for key, each in ends.items() if not isinstance(each, Mapping)}
    if {*rows.values()} != {n} or not n:
        raise ValueError(f"{name} has {rows} rows: give as many of each, and at least one")
    _require_allowed(model, name, data, n)
    _read_ends(data, given, n, whole)
    return data


def _plain(rows: Any) -> Any:
    """Rows of torch, pandas and imitation as NumPy's, in dicts and tuples."""
    if hasattr(rows, "to_numpy"):
        return rows.to_numpy()
    return mapped(lambda part: part.numpy(force=True) if isinstance(part, th.Tensor) else part, rows)


def _read_ends(data: dict[str, Any], given: Mapping[str, Any], n: int, whole: bool) -> None:
    """Replace what says how episodes end by ``ends`` and ``cut``. Without it, returns are unknown, and rewards of no
    use: imitation does not say it, but its infos may."""
    dones, terminal, infos = (given.get(key) for key in ENDS)
    terminations, truncations = data.pop("terminations", None), data.pop("truncations", None)
    if truncations is None and isinstance(infos, (list, np.ndarray)):
        truncations = np.array([bool(info.get(TIMEOUT, False)) for info in infos])
    if terminations is None and terminal is None and (dones is None or truncations is None):
        data.pop("rewards", None)
    truncations = np.zeros(n, bool) if truncations is None else truncations.astype(bool)
    if terminations is None and (whole or dones is not None):
        ended = (np.arange(n) == n - 1) & bool(terminal) if dones is None else np.ravel(dones).astype(bool)
        terminations = ended & ~truncations
    if terminations is not None:
        data["ends"] = terminations.astype(bool) | truncations | (np.arange(n) == n - 1)
        data["cut"] = data["ends"] & (terminations == 0)


def _require_allowed(model: Model, name: str, data: dict[str, Any], n: int) -> None:
    """:raises ValueError: an action is forbidden by its mask"""
    distribution, masks = model.policy.distribution, data.get(MASKS)
    if masks is None and model.action_mask_key is not None:
        masks = data["observations"][model.action_mask_key].reshape(n, -1).astype(bool)
    if masks is None:
        return
    # A masked action has the lowest of all log-probabilities.
    net, std = th.zeros(n, distribution.net_dim), th.ones(n, distribution.gaussian_dim)
    params = distribution.params(net, std, th.from_numpy(masks))
    log_probs = distribution.log_prob(params, th.from_numpy(distribution.from_env(data["actions"]))).numpy()
    forbidden = nothing_allowed(masks, distribution.mask_layout) | (log_probs < -LARGEST / 2)
    for row in np.flatnonzero(forbidden)[:1]:
        raise ValueError(f"row {row} of {name}['actions'] is forbidden by its mask: correct one of them")


def cast(
    name: str, rows: Any, space: spaces.Space, bounded: bool = True
) -> np.ndarray | dict[str, Any] | tuple[Any, ...]:
    """Rows as an array in the dtype of a space, for Dict and Tuple spaces as a dict or tuple of them.

    :param name: of the rows, for messages
    :param bounded: whether the bounds of a Box are checked
    :raises ValueError: the shape is another, or a row is not in the space: names the first one
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = as_dict(tree_map(lambda *parts: np.stack(parts), *rows) if isinstance(rows, list) else rows)
        entries = as_dict(space)
        if not isinstance(parts, Mapping) or not entries.keys() <= parts.keys():
            raise ValueError(f"{name} must have the entries {[*entries]}")
        read = {key: cast(f"{name}[{key!r}]", parts[key], sub, bounded) for key, sub in entries.items()}
        return read if isinstance(space, spaces.Dict) else tuple(read.values())
    array = np.atleast_1d(rows)
    n, shape = len(array), array.shape[:1] + (space.shape or ())
    if not space.shape and array.shape == (n, 1):
        array = array[:, 0]
    if isinstance(space, spaces.Discrete) and array.shape == (n, space.n):
        # One-hot.
        choices = array.argmax(axis=1)
        array = choices + space.start if np.array_equal(array, np.eye(int(space.n))[choices]) else array
    if is_image_space(space) and array.ndim == len(shape):
        array = maybe_transpose(array, space)
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}, and {space} needs {shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(space.dtype)
    low, high = _bounds(space) if bounded or not isinstance(space, spaces.Box) else (-LARGEST, LARGEST)
    fits = (low <= converted) & (converted <= high)
    if converted.dtype.kind != "f":
        fits &= converted == array
    for i in np.flatnonzero(~fits.all(axis=tuple(range(1, fits.ndim))))[:1]:
        raise ValueError(f"row {i} of {name} is {array[i].tolist()!r:.200}: it is not finite or not in {space}")
    return converted


def _bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return space.start, space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
