"""Data sets of demonstrations, checked and as tensors."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose

from ppo_plus.envs.checks import TIMEOUT
from ppo_plus.envs.normalization import observation_moments
from ppo_plus.model import Model
from ppo_plus.policy.masking import as_masks, nothing_allowed
from ppo_plus.policy.observations import as_dict, is_finite, to_network
from ppo_plus.require import LARGEST, require_spaces
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
#: What can be read, for messages.
KINDS = "a dict of arrays, a list of episodes, a data set of imitation or Minari, or the path of an .npz file"
#: The spaces of a reward, and of whether an episode ends.
REWARD, END = spaces.Box(-LARGEST, LARGEST, (), np.float64), spaces.Discrete(2)
#: Members of a space: an array, or a dict or tuple of them.
Nested = np.ndarray | dict[str, Any] | tuple[Any, ...]
#: Raised where a row is not what its space says.
MISTAKES = ValueError, TypeError, LookupError


def read_demonstrations(model: Model, dataset: Any) -> dict[str, Any]:
    """A data set (see :meth:`ppo_plus.PPO_Plus.pretrain`) as tensors on the model's device, with a row per transition:
    ``observations`` as the policy sees them, internal ``actions``, and if they are known ``rewards``, ``ends`` of
    episodes, ``cut`` (the ends that are not terminations) and ``action_masks``.

    Observations are added to the statistics by which they are normalized.

    :raises ValueError: something is missing, unknown, or does not fit the spaces: names the row
    """
    if isinstance(dataset, (str, Path)) and Path(dataset).suffix == ".npz":
        try:
            with np.load(dataset) as file:
                dataset = dict(file)
        except (ValueError, BadZipFile):
            raise ValueError(f"dataset={str(dataset)!r} must be a file of numpy.savez, of arrays of numbers") from None
    if isinstance(dataset, tuple) and len(dataset) == 2 and not any(map(_has_entries, dataset)):
        dataset = dict(zip(NAMES, dataset, strict=False))
    if hasattr(dataset, "to_numpy"):
        remedy = 'pass dict(observations=frame[["x", "y"]].to_numpy(), actions=frame["action"].to_numpy())'
        raise TypeError(f"dataset is a {type(dataset).__name__}, whose columns have no meaning here: {remedy}")
    episodes = dataset.iterate_episodes() if hasattr(dataset, "iterate_episodes") else dataset
    if _has_entries(episodes) and not any(hasattr(episodes, name) for name in ("terminal", "terminations")):
        data, last = _checked(model, "dataset", episodes, whole=False), np.array([-1])
    elif isinstance(episodes, str) or not (_has_entries(episodes) or isinstance(episodes, Iterable)):
        raise TypeError(f"dataset={dataset!r} must be {KINDS}")
    else:
        episodes = [episodes] if _has_entries(episodes) else episodes
        parts = [_checked(model, f"dataset[{i}]", part, whole=True) for i, part in enumerate(episodes)]
        if len({tuple(part) for part in parts}) != 1:
            raise ValueError("dataset has no episodes, or only some of them have rewards or masks: make them alike")
        data = tree_map(lambda *rows: np.concatenate(rows), *parts)
        last = np.cumsum([len(part["truncations"]) for part in parts]) - 1
    terminations, truncations = data.pop("terminations", None), data.pop("truncations", 0)
    if terminations is not None:
        data["ends"] = (terminations | truncations).astype(bool)
        data["ends"][last] = True
        data["cut"] = data["ends"] & (terminations == 0)
    elif model.policy.remembers:
        raise ValueError("dataset has no terminations: a policy with memory learns from whole episodes")
    normalize, observed = model.get_vec_normalize_env(), data.pop("observations")
    if normalize is not None:
        require_spaces(normalize, model.observation_space, model.action_space)
        for key, moments in observation_moments(normalize).items() if normalize.training else ():
            moments.update(observed[key] if key else observed)
        observed = normalize.normalize_obs(observed)
        if normalize.norm_reward:
            data.pop("rewards", None)  # their scale in training is not known yet
    observations = to_network(observed, model.observation_space, model.device)
    if (normalizer := model.policy.observation_normalizer) is not None:
        normalizer.add(normalizer.moments_of(observations))
    data["actions"] = model.policy.distribution.from_env(data["actions"])
    return {"observations": observations} | {name: th.as_tensor(rows).to(model.device) for name, rows in data.items()}


def _has_entries(value: object) -> bool:
    return isinstance(value, Mapping) or any(hasattr(value, name) for name in ("acts", "actions"))


def _entries(name: str, given: Any, whole: bool) -> dict[str, Any]:
    """The entries of a data set, or of a dict, trajectory of imitation or episode of Minari that is ``whole``, by our
    names; raises :class:`ValueError`."""
    if not _has_entries(given):
        raise ValueError(f"{name} is {given!r:.100}, and has no observations and actions: give dataset as {KINDS}")
    if not isinstance(given, Mapping):
        given = {key: getattr(given, key, None) for key in (*OURS, *ENDS)}
    given = {key: rows for key, rows in given.items() if rows is not None}
    data = {OURS[key]: _without_index(rows) for key, rows in given.items() if key in OURS}
    others = [key for key in given if key not in (*OURS, *ENDS) and not str(key).startswith(LEFT_OUT)]
    if others or not {"observations", "actions"} <= data.keys() or len(data) < len(OURS.keys() & given.keys()):
        needed, optional = [*NAMES][:2], [*NAMES, MASKS][2:]
        raise ValueError(f"{name} has {[*given]}: it needs {needed}, and may have {optional}, each once")
    n, dones, terminal, infos = _count(data["actions"]), *(given.get(key) for key in ENDS)
    last = np.arange(n) == n - 1
    timeouts = [bool(info.get(TIMEOUT, False)) for info in infos] if isinstance(infos, (list, np.ndarray)) else None
    is_known = terminal is not None or (dones is not None and ("truncations" in data or timeouts is not None))
    if "terminations" not in data and (whole or dones is not None):
        # imitation does not say how an episode has ended, but its infos may.
        dones = last & bool(terminal) if dones is None else np.ravel(as_array(dones)).astype(bool)
        data.setdefault("truncations", np.zeros(len(dones), int) if timeouts is None else dones & timeouts)
        if not is_known:
            data.pop("rewards", None)  # returns are unknown where the way an episode ended is
        data["terminations"] = dones & (np.ravel(as_array(data["truncations"])) == 0)
    if whole:
        data["observations"] = mapped(lambda rows: rows[:n] if len(rows) == n + 1 else rows, data["observations"])
        data.setdefault("truncations", last)
    return data


def _count(rows: Any) -> int:
    return len(rows) if isinstance(rows, list) else len(np.atleast_1d(tree_leaves(rows)[0]))


def _checked(model: Model, name: str, dataset: Any, whole: bool) -> dict[str, Any]:
    """The entries of a data set or an episode as arrays in the dtypes of their spaces."""
    given = _entries(name, dataset, whole)
    known = dict(zip(NAMES, (model.observation_space, model.action_space, REWARD, END, END), strict=True))
    n, distribution, masks = _count(given["actions"]), model.policy.distribution, given.get(MASKS)
    if not n:
        raise ValueError(f"{name} is empty: give it at least one transition")
    if (n_observations := _count(given["observations"])) != n:
        raise ValueError(f"{name} has {n_observations:,} observations and {n:,} actions: give as many of both")
    if isinstance(model.action_space, spaces.Discrete):
        given["actions"] = _choices(given["actions"], model.action_space)
    data: dict[str, Any] = {
        key: _rows(f"{name}[{key!r}]", given[key], space, n, key != "observations")
        for key, space in known.items()
        if key in given
    }
    if masks is not None:
        data[MASKS] = masks = as_masks(f"{name}[{MASKS!r}]", masks, distribution.mask_layout)
    elif model.action_mask_key is not None:
        masks = data["observations"][model.action_mask_key].reshape(n, -1).astype(bool)
    if masks is not None:
        if len(masks) != n:
            raise ValueError(f"{name} has {len(masks)} action_masks and {n} actions: give one of each per transition")
        for row in np.flatnonzero(nothing_allowed(masks, distribution.mask_layout))[:1]:
            raise ValueError(f"row {row} of {name}['{MASKS}'] allows nothing to choose from: correct it")
        # A masked action has the lowest of all log-probabilities.
        net, std = th.zeros(n, distribution.net_dim), th.ones(n, distribution.gaussian_dim)
        params = distribution.params(net, std, th.from_numpy(masks))
        log_probs = distribution.log_prob(params, th.from_numpy(distribution.from_env(data["actions"])))
        for row in (log_probs < -LARGEST / 2).nonzero()[:1]:
            raise ValueError(f"row {int(row)} of {name}['actions'] is forbidden by its mask: correct one of them")
    return data


def _rows(name: str, rows: Any, space: spaces.Space, n: int, bounded: bool) -> Nested:
    """``n`` rows as an array, for Dict and Tuple spaces as a dict or tuple of them; an error names the first wrong row.

    :param bounded: whether the bounds of a Box are checked
    """
    rows = mapped(as_array, rows)
    try:
        is_nested = isinstance(rows, list) and isinstance(rows[0], (dict, tuple))
        return cast(tree_map(lambda *parts: np.stack(parts), *rows) if is_nested else rows, space, (n,), bounded)
    except MISTAKES as error:
        whole = error
    for i in range(n):
        row = "missing"
        try:
            row = rows[i] if isinstance(rows, list) else mapped(itemgetter(i), rows)
            cast(row, space, (), bounded)
        except MISTAKES as error:
            raise ValueError(f"row {i} of {name} is {row!r:.200}: {error}") from None
    raise ValueError(f"{name}: {whole}")


def _choices(rows: object, space: spaces.Discrete) -> object:
    """Choices that are one-hot, as their numbers; others unchanged."""
    with suppress(ValueError, TypeError):  # no array
        array = np.asarray(as_array(rows))
        if (
            array.ndim == 2
            and array.shape[1] == space.n > 1
            and np.array_equal(array, np.eye(int(space.n))[array.argmax(1)])
        ):
            return array.argmax(1) + space.start
    return rows


def _without_index(rows: object) -> object:
    """Rows of pandas as an array; others unchanged."""
    return getattr(rows, "to_numpy", lambda: rows)()


def as_array(part: Any) -> Any:
    return part.numpy(force=True) if isinstance(part, th.Tensor) else part


def cast(rows: Any, space: spaces.Space, n: tuple[int, ...], bounded: bool) -> Nested:
    """Numbers of shape ``(*n, *space.shape)`` in the dtype of a space; raises :data:`MISTAKES`."""
    if isinstance(space, spaces.Dict):
        rows = as_dict(rows)
        return {key: cast(rows[key], sub, n, bounded) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(cast(part, sub, n, bounded) for part, sub in zip(rows, space, strict=True))
    array, shape = np.asarray(rows), (*n, *(space.shape or ()))
    if not space.shape and array.shape == (*n, 1):
        array = array[..., 0]
    if is_image_space(space) and array.ndim == len(shape):
        array = maybe_transpose(array, space)
    if array.shape != shape:
        raise ValueError(f"it has the shape {array.shape}, and {space} needs {shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(space.dtype)
    fits = converted.dtype.kind == "f" or np.array_equal(converted, array)
    if isinstance(space, spaces.Box) and not bounded:
        fits = fits and is_finite(array)
    else:
        fits = fits and (batch_space(space, *n) if n else space).contains(converted)
    if not fits:
        raise ValueError(f"it is not finite or not in {space}: correct it, or clip it as the environment does")
    return converted
