"""Taking over models that SB3's ``PPO`` trained."""

import copy
import inspect
import io
import pathlib
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces

if TYPE_CHECKING:
    from ppo_plus.ppo_plus import PPO_Plus

Model = TypeVar("Model", bound="PPO_Plus")
Path = str | pathlib.Path | io.BufferedIOBase

#: Attributes that are not carried over: they belong to the new model's environment, device and networks.
OWN = ("policy_class", "device", "env", "n_envs", "rollout_buffer", "policy", "_vec_normalize_env", "lr_schedule")


def from_sb3(
    cls: type[Model],
    path_or_model: Path | PPO,
    env: GymEnv | None,
    device: th.device | str,
    kwargs: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
) -> Model:
    """See :meth:`ppo_plus.PPO_Plus.from_sb3`; ``custom_objects`` as in SB3's ``load``."""
    unknown = kwargs.keys() - _changeable(cls)
    if unknown:
        raise TypeError(f"from_sb3 got unknown arguments {sorted(unknown)}: they must be arguments of {cls.__name__}")
    source = _load(path_or_model, device, custom_objects)
    if env is None:
        env = source.get_env()
    else:
        env = cls._wrap_env(cls._checked_env(env, source.verbose), source.verbose)
        check_for_correct_spaces(env, source.observation_space, source.action_space)
    model = cls(source.policy_class, env, device=device, _init_setup_model=False)  # type: ignore[arg-type]
    # Containers are copied, so that the two models share nothing that either changes.
    vars(model).update(
        {
            name: copy.copy(value) if isinstance(value, (dict, deque)) else value
            for name, value in vars(source).items()
            if name not in OWN
        }
    )
    model.policy_class = source.policy_class
    model.n_envs = source.n_envs if model.env is None else model.env.num_envs
    if model.env is not source.env:
        model._last_obs = None
    buffer_class = model.rollout_buffer_class
    if buffer_class is not None and buffer_class.__module__.startswith("stable_baselines3."):
        model.rollout_buffer_class = None
    model.value_clip = "plain"
    vars(model).update({_ATTRIBUTES.get(name, name): value for name, value in kwargs.items()})
    # Seeding again with the old seed would replay the random numbers of the beginning.
    seed = model.seed
    model.seed = kwargs.get("seed")
    model._setup_model()
    model.seed = seed
    # Copies: torch's optimizers would go on with the very same state.
    model.set_parameters(copy.deepcopy(source.get_parameters()), device=device)  # type: ignore[arg-type]
    return model


def saved_data(path: Path, device: th.device | str, custom_objects: dict[str, Any] | None = None) -> dict[str, Any]:
    """The attributes in a saved model; a file stays where it stands."""
    position = path.tell() if isinstance(path, io.IOBase) else None
    data, _, _ = load_from_zip_file(path, device=device, custom_objects=custom_objects)
    if position is not None:
        path.seek(position)  # type: ignore[union-attr]
    return data or {}


#: Arguments that are kept under another name.
_ATTRIBUTES = {"stats_window_size": "_stats_window_size"}


def _changeable(cls: type[Any]) -> set[str]:
    """Names of the arguments that may be changed on the way."""
    constructors = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each) and each is not object]
    names = {name for constructor in constructors for name in inspect.signature(constructor).parameters}
    return names - {"self", "args", "kwargs", "policy", "env", "device", "_init_setup_model"}


def _load(path_or_model: Path | PPO, device: th.device | str, custom_objects: dict[str, Any] | None) -> PPO:
    source: Any = path_or_model
    if not isinstance(source, BaseAlgorithm):
        # What SB3's other algorithms save lacks one or another of these.
        names = saved_data(source, device, custom_objects).keys()
        if {"clip_range", "n_epochs", "gae_lambda"} <= names:
            source = PPO.load(source, device=device, custom_objects=custom_objects)
    if not isinstance(source, PPO):
        raise TypeError(f"path_or_model={path_or_model!r} must be an SB3 PPO, or the path of a saved one")
    return source
