"""Models for SB3's ``PPO``, and for sb3-contrib's ``MaskablePPO`` and ``RecurrentPPO``."""

import copy
import inspect
import io
import math
import os
import pickle
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ppo_plus.formulas.schedules import Constant, Cosine, Linear, Sampled, Schedule
from ppo_plus.policy.observations import parts_of
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.saving.format.container import PathOrFile, opened_to_write
from ppo_plus.saving.model import SavedModel, base_of
from ppo_plus.saving.sb3.from_sb3 import change_logits
from ppo_plus.saving.statistics import statistics_path
from ppo_plus.settings import Settings

#: Attributes that mean the same in both.
_SHARED = (
    "n_steps batch_size n_epochs gamma gae_lambda max_grad_norm verbose tensorboard_log use_sde num_timesteps "
    "_total_timesteps _num_timesteps_at_start _n_updates _episode_num _current_progress_remaining _stats_window_size "
    "ep_info_buffer ep_success_buffer start_time n_envs observation_space action_space policy_kwargs"
).split()
#: Arguments that are numbers, or ``None``, in SB3's ``PPO``; in ours they may be schedules or words.
_NUMBERS = ("ent_coef", "vf_coef", "target_kl", "normalize_advantage", "sde_sample_freq")
#: Our arguments without which a model in SB3 learns the same.
_NOT_MISSED = {"compile", "n_threads", "sequence_length", "action_mask_key", "normalize_observations"}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, type(None)))


def to_sb3(model: SavedModel, path: PathOrFile) -> None:
    """See :meth:`ppo_plus.PPO_Plus.to_sb3`."""
    Settings.of(model).check_schedules()
    name = "RecurrentPPO" if model.policy.remembers else "MaskablePPO" if model._expects_masks else ""
    trainer: type[PPO] = getattr(import_module("sb3_contrib"), name) if name else PPO
    policy = _policy_for_sb3(model, trainer)
    statistics = _vec_normalize_of(model)
    # Drawing weights that are then replaced must not change training.
    with th.random.fork_rng(devices=[]):
        try:
            exported = _export(model, policy, trainer)
            _check_actions(model, exported, statistics)
        except Exception as error:  # SB3 asserts
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(f"SB3's {trainer.__name__} cannot have this policy ({problem})") from error
    if statistics is not None and not isinstance(path, (str, os.PathLike)):
        second = "SB3 has the statistics of observations in a second file, a VecNormalize"
        raise ValueError(f"{second}: pass a name of a file, beside which it can be written")
    if lost := sorted(_lost(model, trainer)):
        acts = f"SB3's {trainer.__name__} acts as the model"
        warnings.warn(f"{acts}, but it learns without {', '.join(lost)}", stacklevel=3)
    with opened_to_write(path) as file:
        exported.save(cast(io.BufferedIOBase, file))
    if statistics is not None and isinstance(path, (str, os.PathLike)):
        beside = statistics_path(Path(path), ".pkl")
        with opened_to_write(beside) as file:
            pickle.dump(statistics, file)
        has_images = any(is_image_space(sub) for sub in parts_of(model.observation_space).values())
        venv = "VecTransposeImage(venv), or venv if its images have their channels first" if has_images else "venv"
        remedy = f"put its environment into VecNormalize.load({str(beside)!r}, {venv})"
        warnings.warn(f"in SB3, the model takes observations that are normalized outside of it: {remedy}", stacklevel=3)


def _policy_for_sb3(model: SavedModel, trainer: type[PPO]) -> str | type[BasePolicy]:
    """The policy's name or class in SB3; raises :class:`ValueError` if it has none."""
    policy_class = model.policy_class
    names = {model.policy_aliases[name]: name for name in trainer.policy_aliases}
    if model._expects_masks and (model.policy.remembers or model.use_sde):
        what = "action masks with memory or gSDE"
    elif model.streams:
        what = "streams"
    elif policy_class not in names and issubclass(policy_class, ActorCriticPolicy):
        what = f"policy={policy_class.__name__}"
    else:
        return names.get(policy_class, policy_class)
    raise ValueError(f"SB3's {trainer.__name__} cannot read this model: it does not support {what}")


def _export(model: SavedModel, policy: str | type[BasePolicy], trainer: type[PPO]) -> PPO:
    exported = trainer(policy, None, device="cpu", _init_setup_model=False)  # type: ignore[arg-type]
    vars(exported).update({name: copy.deepcopy(getattr(model, name)) for name in _SHARED})
    # What SB3 does not know keeps its default.
    vars(exported).update({name: getattr(model, name) for name in _NUMBERS if _is_number(getattr(model, name))})
    schedules = Settings.of(model).schedules
    exported.learning_rate = _schedule(schedules["learning_rate"])
    if schedules["clip_range"] is not None:
        exported.clip_range = _schedule(schedules["clip_range"])
    exported.clip_range_vf = _schedule(schedules["clip_range_vf"])
    exported._setup_model()
    exported.seed = model.seed  # not before: seeding would disturb the generators
    parameters = _parameters(model)
    if trainer is not PPO and not model.policy.remembers and isinstance(model.action_space, spaces.MultiBinary):
        change_logits(
            parameters,
            lambda weight: _in_turn(-weight / 2, weight / 2),
            lambda name, moment: _in_turn(moment if "sq" in name else -moment, moment),
        )
    exported.set_parameters(parameters, device="cpu")
    return exported


def _in_turn(first: th.Tensor, second: th.Tensor) -> th.Tensor:
    return th.stack([first, second], dim=1).flatten(0, 1)


def _parameters(model: SavedModel) -> dict[str, Any]:
    """The weights, where the critic's last layer has the scale of values, and the optimizer's state."""
    parameters, normalizer = copy.deepcopy(model.get_parameters()), model.policy.value_normalizer
    weights = parameters["policy"]
    if normalizer is not None:
        weights["value_net.weight"] = (weights["value_net.weight"] * normalizer.std).float()
        weights["value_net.bias"] = (weights["value_net.bias"] * normalizer.std + normalizer.mean).float()
    parameters["policy"] = {name: value for name, value in weights.items() if "_normalizer." not in name}
    return parameters  # type: ignore[no-any-return]


def _vec_normalize_of(model: SavedModel) -> VecNormalize | None:
    """What normalizes observations in SB3 as the policy does itself; ``None``: it does not."""
    normalizer = model.policy.observation_normalizer
    if normalizer is None:
        return None
    env: gym.Env[Any, Any] = gym.Env()
    env.observation_space, env.action_space = model.observation_space, model.action_space
    keys = None if "" in normalizer.shapes else [*normalizer.shapes]
    options: dict[str, Any] = {"clip_obs": normalizer.clip, "epsilon": normalizer.epsilon, "norm_obs_keys": keys}
    statistics = VecNormalize(DummyVecEnv([lambda: env]), norm_reward=False, **options)
    for key, (mean, var) in normalizer.split(th.stack([normalizer.mean, normalizer.var]).cpu()).items():
        rms: Any = statistics.obs_rms if keys is None else statistics.obs_rms[key]  # type: ignore[index]
        rms.mean, rms.var = (part.reshape(rms.mean.shape).numpy() for part in (mean, var))
        rms.count = normalizer.count.item()
    return statistics


def _schedule(schedule: Schedule | None) -> Any:
    """A schedule as SB3 has it, or what needs no ppo_plus to be unpickled; other functions stay what they are."""
    match schedule:
        case Constant():
            return schedule.value
        case Linear(start, end):
            return LinearSchedule(start, end, 1.0)
        case Cosine(start, end):
            return _cosine(start, end)
        case Sampled(values):
            return _sampled(values.tolist())
    return schedule


# cloudpickle writes the code of functions within functions into the file. `CLOSURES` reads them again.
def _cosine(start: float, end: float) -> Schedule:
    return lambda left: end + (start - end) * (1 - math.cos(math.pi * left)) / 2


def _sampled(values: list[float]) -> Schedule:
    return lambda left: float(np.interp(left, np.linspace(0.0, 1.0, len(values)), values))


def _check_actions(model: SavedModel, exported: PPO, statistics: VecNormalize | None) -> None:
    """:raises RuntimeError: the two act in different ways"""
    space = copy.deepcopy(model.observation_space)
    space.seed(0)
    for observation in (space.sample() for _ in range(5)):
        seen = observation if statistics is None else statistics.normalize_obs(observation)
        ours = model.policy.predict(observation, deterministic=True)[0]
        theirs = exported.policy.predict(seen, deterministic=True)[0]
        if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
            raise RuntimeError(f"it would do {theirs} in place of {ours}")


def _lost(model: SavedModel, trainer: type[PPO]) -> Iterator[str]:
    """What of learning SB3 does not know."""
    ours, theirs = (inspect.signature(cls).parameters for cls in (base_of(type(model)), trainer))
    unknown = {name for name in ours if name not in theirs or name.startswith("rollout_buffer")}
    defaults = {name: ours[name].default for name in unknown} | {"value_clip": "plain"}
    names = [name for name, default in defaults.items() if (getattr(model, name) or None) != (default or None)]
    names += [name for name in _NUMBERS if not _is_number(getattr(model, name))]
    if model.clip_range is None:
        names.append("clip_range")
    left_out = _NOT_MISSED | ({"value_clip"} if model.clip_range_vf is None else set())
    if type(model) is not base_of(type(model)):
        yield f"the methods of {type(model).__name__}"
    yield from (f"{name}={getattr(model, name)!r}" for name in names if name not in left_out)
