"""Observations, from what an environment returns to the input of actor and critic.

The numbers are those of SB3's preprocessing, which does not support ``Discrete`` with a start and ``MultiDiscrete`` of
any shape. The conversion for a space is chosen once, when the policy is built. Numbers must be finite in float32.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space, maybe_transpose
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from torch import nn
from torch.nn import functional as F

from ppo_plus.require import LARGEST, NotFinite
from ppo_plus.trees import to_device

Preprocess = Callable[[Any], Any]
#: An observation, or a batch of them, as users give it: numbers, or a dict or tuple of them.
GivenObservation = npt.ArrayLike | Mapping[str, npt.ArrayLike] | tuple[npt.ArrayLike, ...]


def as_dict(value: Any) -> Any:
    """A tuple as a dict, and a Tuple space as a Dict, with the keys ``"0"``, ``"1"``, ...; others are unchanged."""
    if not isinstance(value, (tuple, spaces.Tuple)):
        return value
    # Pairs, not a dict: Gymnasium would sort its keys.
    pairs = [(str(i), part) for i, part in enumerate(value)]
    return dict(pairs) if isinstance(value, tuple) else spaces.Dict(pairs)


def parts_of(whole: Any) -> dict[str, Any]:
    """The entries of observations, or of their space (``""``: the whole)."""
    return dict(whole) if isinstance(whole, Mapping) else {"": whole}


def is_small_image(space: spaces.Space, normalized: bool = False) -> bool:
    """Whether it is an image that SB3's ``NatureCNN`` cannot read: it needs 36 pixels in height and in width.

    :param normalized: whether images are not divided by 255; every Box of three dimensions may be one then
    """
    # Channels are fewer than pixels.
    return is_image_space(space, normalized_image=normalized) and sorted(space.shape or ())[1] < 36


def for_convolutions(extractor: type[nn.Module], space: spaces.Space, normalized: bool) -> spaces.Space:
    """The space for a features extractor. SB3's ``CombinedExtractor`` reads small images as it reads vectors.

    :param normalized: as of :func:`is_small_image`
    :raises ValueError: the image is too small for the convolutions
    """
    if extractor is NatureCNN and is_small_image(space, normalized):
        raise ValueError(
            f"policy: the image observation_space={space} is too small for SB3's NatureCNN, which needs 36 pixels in "
            'height and in width: use "MlpPolicy", or another features_extractor_class'
        )
    if extractor is not CombinedExtractor or not isinstance(space, spaces.Dict):
        return space
    small = [key for key, sub in space.items() if is_small_image(sub, normalized)]
    flat = {key: spaces.Box(0, 1, (get_flattened_obs_dim(space[key]),)) for key in small}
    return spaces.Dict([(key, flat.get(key, sub)) for key, sub in space.items()])


def canonical_space(space: spaces.Space, name: str = "observation_space") -> spaces.Space:
    """The space for features extractors: zero-based, with one-dimensional choices; ``space`` if SB3 supports it."""
    space = as_dict(space)
    if name == "observation_space" and (0 in (space.shape or ()) or not getattr(space, "spaces", True)):
        raise ValueError(f"{name}={space} is empty: let the environment return at least one number, such as 0")
    if isinstance(space, spaces.Dict) and name == "observation_space":
        # Pairs, not a dict: Gymnasium would sort its keys, and the order is that of the features.
        return spaces.Dict([(key, canonical_space(sub, f"{name}[{key!r}]")) for key, sub in space.items()])
    if isinstance(space, spaces.Discrete):
        return space if space.start == 0 else spaces.Discrete(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return space if space.nvec.ndim == 1 and not np.any(space.start) else spaces.MultiDiscrete(space.nvec.flatten())
    if isinstance(space, spaces.Box) and not space.shape:
        return spaces.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype)  # type: ignore[arg-type]
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return space
    wrappers = "gymnasium.wrappers.FlattenObservation, FilterObservation and TransformObservation make them of others"
    if name.endswith("['mission']"):
        wrappers = "for MiniGrid, minigrid.wrappers.ImgObsWrapper keeps the image only"
    remedy = f"use Box, Discrete, MultiDiscrete, MultiBinary, or one Dict or Tuple of them ({wrappers})"
    raise ValueError(f"{name}={space} is not supported: {remedy}")


def visible_spaces(
    space: spaces.Space,
    actor_keys: Sequence[str] | None = None,
    critic_keys: Sequence[str] | None = None,
    mask_key: str | None = None,
) -> tuple[spaces.Space, spaces.Space]:
    """The parts of the observations that actor and critic see; one object if they are the same."""
    if mask_key is not None and isinstance(space, spaces.Dict):
        space = _only(space, space.spaces.keys() - {mask_key})
    if actor_keys is None and critic_keys is not None:
        raise ValueError(
            f"policy_kwargs: critic_keys={critic_keys!r} needs actor_keys: without, the "
            "actor would see everything: name what it sees, actor_keys=[...]"
        )
    actor, critic = _part("actor_keys", actor_keys, space), _part("critic_keys", critic_keys, space)
    return actor, actor if actor == critic else critic


def _part(name: str, keys: Sequence[str] | None, space: spaces.Space) -> spaces.Space:
    """The part of a Dict space that an argument names, checked; ``None``: everything."""
    if keys is None:
        return space
    argument = f"policy_kwargs: {name}={keys!r}"
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"{argument} names entries of Dict observations, but these are {space}: leave it out")
    if not isinstance(keys, (list, tuple)) or not keys:
        raise TypeError(f"{argument} must be a list of names, such as {list(space)[:1]}")
    if unknown := [key for key in keys if key not in space.spaces]:
        raise ValueError(f"{argument} names {unknown[0]!r}, which is not an entry: use some of {list(space)}")
    return _only(space, keys)


def _only(space: spaces.Dict, keys: Collection[str]) -> spaces.Dict:
    # Pairs, not a dict: Gymnasium would sort its keys.
    return spaces.Dict([(key, sub) for key, sub in space.items() if key in keys])


def make_preprocess(space: spaces.Space, normalize_images: bool = True) -> Preprocess:
    """The function that converts a batch of raw observations, ``(B, ...)`` or a dict of them, to network input.

    Images become floats in ``[0, 1]``, choices one-hot vectors, everything else floats.
    """
    if isinstance(space, spaces.Dict):
        return partial(_by_key, {key: make_preprocess(sub, normalize_images) for key, sub in space.items()})
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        return partial(_one_hot, sizes.tolist(), th.from_numpy(np.array(space.start)).flatten().long())
    if normalize_images and is_image_space(space):
        return _image
    return th.Tensor.float if space.shape else _column


def _column(observations: th.Tensor) -> th.Tensor:
    return observations.float().reshape(-1, 1)


def to_tensor(
    observation: GivenObservation,
    space: spaces.Space,
    device: th.device,
    name: str = "observation",
    optional: Collection[str] = (),
) -> tuple[Any, bool]:
    """One observation, or a batch of them, as a batch of tensors, and whether it was a batch.

    :param observation: array, number, or dict or tuple of arrays; channel-last images fit channel-first spaces
    :param optional: entries of a Dict space that may be missing
    :raises ValueError: the observation does not fit the space
    :raises FloatingPointError: it is not finite, in single precision
    """
    if isinstance(space, spaces.Dict):
        given, observation = observation, as_dict(observation)
        if not isinstance(observation, Mapping) or not space.spaces.keys() <= observation.keys() | optional:
            needed = sorted(space.spaces.keys() - optional)
            # A list would be ambiguous: it may be of several observations.
            also = f"a tuple of {len(space)} parts, or " if [*space] == [*map(str, range(len(space)))] else ""
            raise ValueError(f"observation {given!r} must be {also}a dict with the keys {needed}")
        parts = {
            key: to_tensor(observation[key], sub, device, f"{name}[{key!r}]")
            for key, sub in space.items()
            if key in observation
        }
        return {key: tensor for key, (tensor, _) in parts.items()}, any(batched for _, batched in parts.values())
    # A copy: torch cannot share arrays with negative strides or without write permission.
    array = np.array(observation)
    if not is_finite(array):
        raise NotFinite(f"{name}={array!r} is not finite: fix the environment, or wrap it to clip its numbers")
    if is_image_space(space):
        array = maybe_transpose(array, space)
    batched = array.shape != space.shape
    if batched and array.shape[1:] != space.shape:
        raise ValueError(
            f"observation of shape {array.shape} does not fit observation_space={space}: "
            f"pass shape {space.shape}, or with one more dimension in front for several observations"
        )
    return to_network(array if batched else array[None], space, device), batched


def as_starts(episode_start: npt.ArrayLike, n_envs: int) -> np.ndarray:
    """The argument ``episode_start`` of ``predict``, one value for each of ``n_envs`` observations, as booleans."""
    starts = np.asarray(episode_start, dtype=bool)
    if starts.size != n_envs or starts.shape not in ((), (n_envs,), (n_envs, 1)):
        raise ValueError(f"episode_start={episode_start!r} must have one value for each of {n_envs} observations")
    return starts.reshape(n_envs)


def require_choices(observations: np.ndarray, space: "spaces.Discrete | spaces.MultiDiscrete") -> None:
    """:raises ValueError: a choice is outside of its space; compiled code would take it for none of the choices"""
    choices = observations - space.start
    n = space.n if isinstance(space, spaces.Discrete) else space.nvec
    if ((choices < 0) | (choices >= n)).any():
        counted = f", which counts from start={space.start}" if np.any(space.start) else ""
        raise ValueError(f"the observation {observations} is outside of its space {space}{counted}: fix one of them")


def _by_key(functions: dict[str, Preprocess], observations: dict[str, th.Tensor]) -> dict[str, th.Tensor]:
    return {key: function(observations[key]) for key, function in functions.items()}


def _image(observations: th.Tensor) -> th.Tensor:
    # Convolutions and their gradients are a third faster on channels-last memory; a rollout keeps SB3's, and its bits.
    learns = th.is_grad_enabled() and not th.jit.is_tracing()  # whose graphs must be the same without gradients
    layout = th.channels_last if learns and observations.dim() == 4 else th.preserve_format
    # Divided in place: a second copy would be the largest tensor of the update.
    return observations.to(th.float32, memory_format=layout, copy=True).div_(255.0)


def _one_hot(sizes: list[int], starts: th.Tensor, observations: th.Tensor) -> th.Tensor:
    choices = observations.reshape(-1, len(sizes)).long() - to_device(starts, observations.device)
    return th.cat([F.one_hot(choices[:, i], n).float() for i, n in enumerate(sizes)], dim=1)


def to_network(observations: Any, space: Any, device: th.device) -> Any:
    """Observations ``(N, ...)`` of vectorized environments as contiguous tensors, floats in single precision."""
    # Every step calls it: a Dict space is an abstract class, which takes longer to ask for.
    if not isinstance(observations, np.ndarray):
        return {key: to_network(observations[key], sub, device) for key, sub in space.items()}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        require_choices(observations, space)
    # Numpy converts small arrays several times faster.
    dtype = np.float32 if observations.dtype.kind == "f" else observations.dtype
    return to_device(th.from_numpy(np.asarray(observations, dtype, order="C")), device)


def is_finite(values: np.ndarray) -> bool:
    """Whether an array contains only numbers that are finite in single precision."""
    # The sum of squares is small only if all numbers are, and several times cheaper than checking each.
    # Python's floats, because LARGEST is infinity in half precision.
    return (
        values.dtype.kind != "f"
        or float(np.vdot(values, values)) <= LARGEST
        or float(np.abs(values).max(initial=0.0)) <= LARGEST
    )


def why_not_finite(values: np.ndarray) -> str:
    """The reason why :func:`is_finite` is false, for messages."""
    return "too large for single precision" if np.isfinite(values).all() else "not finite"


class NotFiniteError(NotFinite):
    """The environment with index ``env`` returned a number that is not finite."""

    def __init__(self, message: str, env: int):
        super().__init__(message)
        self.env = env


def require_finite(what: str, values: GivenObservation, step: int, env: int | None = None) -> None:
    """Raise :class:`NotFiniteError` if environments returned a number that is not finite in single precision: an array
    ``(n_envs, ...)`` or a dict of them, or the values of one ``env``, after so many steps of each."""
    # Every step calls it, and asking an abstract class takes longer than the check of a small array.
    if not isinstance(values, np.ndarray) and isinstance(values, Mapping):
        for key, value in values.items():
            require_finite(f"{what}[{key!r}]", value, step, env)
        return
    numbers = np.asarray(values)
    if is_finite(numbers):
        return
    if env is None:
        env = next(i for i, row in enumerate(numbers) if not is_finite(row))
        numbers = numbers[env]
    raise NotFiniteError(
        f"the {what} that the environment returned is {why_not_finite(numbers)}: {numbers!r} in environment {env} at "
        f"step {step}. Nothing was learned from it: fix the environment, or wrap it to clip its numbers",
        env,
    )


def not_finite(policy: nn.Module, step: int | None = None) -> NotFinite:
    """The error for a policy whose outputs are not finite; ``step`` as in ``require_finite``."""
    weights = th.cat([weight.detach().flatten() for weight in policy.parameters()])
    n_wrong = int(weights.isfinite().logical_not().sum())
    why = f"{n_wrong} of its {len(weights)} weights are not finite"
    if (log_std := getattr(policy, "log_std", None)) is not None:
        why += f", log_std is from {log_std.min():.3g} to {log_std.max():.3g}"
    return NotFinite(
        "the policy, not the environment, returned numbers that are not finite (action parameters, value or "
        f"log-probability){'' if step is None else f' at step {step}'}, so no action was taken: {why}. Continue with a "
        "model that was saved before, with a lower learning_rate, max_grad_norm or ent_coef (which raises log_std), or "
        "with normalize_observations=True and normalize_values=True if it was trained without"
    )
