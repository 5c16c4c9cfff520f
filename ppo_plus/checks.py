"""The checks of a model's arguments, made before any step is taken: when it is built, and at each ``learn()``."""

import inspect
import math
import os
from typing import TYPE_CHECKING, Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import get_device

from ppo_plus.arguments import require_int, require_kind, require_number, require_one_of
from ppo_plus.buffers import RolloutBuffer, adapt_buffer_class
from ppo_plus.distributions import make_distribution
from ppo_plus.exploration import NoiseProcess
from ppo_plus.kl_control import make_kl_control
from ppo_plus.masking import check_mask_key
from ppo_plus.observations import canonical_space
from ppo_plus.policies import adapt_policy_class
from ppo_plus.schedules import make_schedule

if TYPE_CHECKING:
    from ppo_plus.ppo_plus import PPO_Plus

#: The arguments that may change over time: their smallest value, and whether that itself is refused at the start.
SCHEDULED: dict[str, tuple[float, bool]] = {
    "learning_rate": (0.0, False),
    "clip_range": (0.0, True),
    "clip_range_vf": (0.0, True),
    "ent_coef": (-float("inf"), False),
    "vf_coef": (0.0, False),
    "target_kl": (0.0, True),
}
#: Those of them that may be ``None``.
OPTIONAL = ("clip_range", "clip_range_vf", "target_kl")

#: What ``sequence_length="auto"`` is at most.
MAX_AUTO_SEQUENCE = 16


def check_env(env: Any) -> None:
    """:raises TypeError: no environment. :raises ValueError: its spaces are not supported"""
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise TypeError(f"env={env!r} must be a Gymnasium environment, a VecEnv, or the id of an environment")
    canonical_space(env.observation_space)
    make_distribution(env.action_space)


def check_device(device: th.device | str) -> None:
    """:raises ValueError: torch does not know the device. (Like SB3, "cuda" without a GPU means the CPU.)"""
    try:
        th.empty(0, device=get_device(device))
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device={device!r} cannot be used ({reason}): use "cpu", "cuda" or "auto"') from None


def check_arguments(model: "PPO_Plus") -> None:
    """Check all arguments of a model, and how they go together.

    :raises ValueError: out of range, or excluding each other
    :raises TypeError: of the wrong kind
    """
    _check_kinds(model)
    _check_ranges(model)
    _check_exploration(model)
    _check_normalization(model)
    _check_kl_control(model)
    _check_sequences(model)
    _check_actions(model)


def _check_kinds(model: "PPO_Plus") -> None:
    if not isinstance(model.policy_class, type):
        raise TypeError(
            f"policy={model.policy_class!r} must be one of {sorted(model.policy_aliases)} or a policy class"
        )
    adapt_policy_class(model.policy_class)
    buffer_class = adapt_buffer_class(model.rollout_buffer_class or RolloutBuffer)
    if buffer_class.get is not RolloutBuffer.get and buffer_class.minibatches is RolloutBuffer.minibatches:
        raise ValueError(
            f"rollout_buffer_class={buffer_class!r} overrides get, which training does not call: override minibatches"
        )
    require_kind("use_sde", model.use_sde, bool, "True or False")
    require_kind("policy_kwargs", model.policy_kwargs, dict, "a dict, such as dict(net_arch=[64, 64])")
    optimizer_class = model.policy_kwargs.get("optimizer_class", th.optim.Adam)
    step = getattr(optimizer_class, "step", None)
    if isinstance(optimizer_class, type) and step is None:
        raise ValueError(f"policy_kwargs: optimizer_class={optimizer_class!r} must be an optimizer of torch")
    closure = None if step is None else inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"policy_kwargs: optimizer_class={optimizer_class!r} needs the loss as a closure, which PPO cannot give: "
            "use a first-order optimizer such as torch.optim.Adam"
        )
    net_arch = model.policy_kwargs.get("net_arch")
    if not isinstance(net_arch, (list, tuple, dict, type(None))):
        raise TypeError(f"policy_kwargs: net_arch={net_arch!r} must be a list of sizes, or dict(pi=[...], vf=[...])")
    require_kind("rollout_buffer_kwargs", model.rollout_buffer_kwargs, dict, "a dict")
    require_kind("tensorboard_log", model.tensorboard_log, (str, os.PathLike, type(None)), "a folder, or None")


def _check_ranges(model: "PPO_Plus") -> None:
    if model.seed is not None:
        require_int("seed", model.seed, 0)
    require_int("n_steps", model.n_steps, 1)
    require_int("batch_size", model.batch_size, 1)
    require_int("n_epochs", model.n_epochs, 1)
    require_int("stats_window_size", model._stats_window_size, 1)
    require_number("gamma", model.gamma, 0, 1)
    require_number("gae_lambda", model.gae_lambda, 0, 1)
    require_number("max_grad_norm", model.max_grad_norm, 0, above=True)
    require_one_of("normalize_advantage", model.normalize_advantage, (True, False, "minibatch", "rollout"))
    require_one_of("value_clip", model.value_clip, ("max", "plain"))
    require_one_of("compile", model.compile, ("auto", True, False))
    if model.n_threads != "auto":
        require_int('n_threads (or "auto")', model.n_threads, 1)
    for name, bounds in SCHEDULED.items():
        value = getattr(model, name)
        if value is not None or name not in OPTIONAL:
            make_schedule(name, value, *bounds)


def _check_exploration(model: "PPO_Plus") -> None:
    if model.sde_sample_freq not in ("episode", -1):
        try:
            require_int("sde_sample_freq", model.sde_sample_freq, 1)
        except (TypeError, ValueError) as error:
            raise type(error)(f'{error} (or -1 for once per rollout, or "episode")') from None
    if model.exploration is None:
        return
    if not isinstance(model.exploration, NoiseProcess):
        raise TypeError(f"exploration={model.exploration!r} must be a NoiseProcess, such as ColoredNoise(0.5)")
    if model.use_sde:
        raise ValueError(f"use_sde=True and exploration={model.exploration!r} exclude each other: leave one out")


def _check_normalization(model: "PPO_Plus") -> None:
    if not model.normalize_advantage:
        return
    if model.batch_size < 2 and model.normalize_advantage != "rollout":
        raise ValueError(
            f"batch_size={model.batch_size} leaves nothing to normalize: use at least 2, "
            'normalize_advantage="rollout" or normalize_advantage=False'
        )
    if model.n_steps * model.n_envs < 2:
        raise ValueError(
            f"n_steps={model.n_steps} times n_envs={model.n_envs} must be at least 2 to normalize advantages: "
            "use more steps or environments, or normalize_advantage=False"
        )


def _check_kl_control(model: "PPO_Plus") -> None:
    control = make_kl_control(model.kl_control, model.target_kl is not None)
    if control.needs_target and model.target_kl is None:
        raise ValueError(f"kl_control={model.kl_control!r} needs a target: set target_kl, for example target_kl=0.01")
    if model.clip_range is None and not control.penalizes:
        raise ValueError(
            'clip_range=None leaves the update unbounded: set kl_control="penalty" with a target_kl, '
            "or a clip_range such as 0.2"
        )
    if control.measure == "kl" and not issubclass(
        adapt_buffer_class(model.rollout_buffer_class or RolloutBuffer), RolloutBuffer
    ):
        raise ValueError(
            f"kl_control={model.kl_control!r} needs the stored distribution parameters, which rollout_buffer_class="
            f"{model.rollout_buffer_class!r} does not keep: derive it from ppo_plus.RolloutBuffer"
        )


def sequence_length(model: "PPO_Plus") -> int:
    """Steps of the sequences that a policy with memory is trained on; 0 without memory."""
    if not adapt_policy_class(model.policy_class).remembers:
        return 0
    if model.sequence_length != "auto":
        return model.sequence_length
    common = math.gcd(model.n_steps, model.batch_size)
    return max(length for length in range(1, MAX_AUTO_SEQUENCE + 1) if common % length == 0)


def _check_sequences(model: "PPO_Plus") -> None:
    automatic = model.sequence_length == "auto"
    if not automatic:
        require_int('sequence_length (or "auto")', model.sequence_length, 1)
    length = sequence_length(model)
    if not length:
        if not automatic:
            raise ValueError(
                f"sequence_length={model.sequence_length} has no effect on a policy without memory: leave it out, or "
                'use a policy such as "MlpLstmPolicy"'
            )
        return
    if automatic and length == 1 < model.n_steps:
        raise ValueError(
            f"n_steps={model.n_steps} and batch_size={model.batch_size} have no common divisor from 2 to "
            f"{MAX_AUTO_SEQUENCE}, so no sequences fit into both: change one of them, for example n_steps=128 and "
            "batch_size=64, or set sequence_length=1 (no gradient then flows back in time)"
        )
    if model.n_steps % length or model.batch_size % length:
        raise ValueError(
            f"sequence_length={length} must divide n_steps={model.n_steps} and batch_size={model.batch_size}: "
            f"use a divisor of {math.gcd(model.n_steps, model.batch_size)}"
        )
    if not issubclass(adapt_buffer_class(model.rollout_buffer_class or RolloutBuffer), RolloutBuffer):
        raise ValueError(
            f"rollout_buffer_class={model.rollout_buffer_class!r} keeps no sequences, which a policy with memory "
            "needs: derive it from ppo_plus.RolloutBuffer"
        )


def _check_actions(model: "PPO_Plus") -> None:
    if model.action_mask_key is not None:
        require_kind("action_mask_key", model.action_mask_key, str, "the name of an observation, or None")
        choices = make_distribution(model.action_space).choices
        check_mask_key(model.action_mask_key, model.observation_space, choices, model.env)
    own_buffer = issubclass(adapt_buffer_class(model.rollout_buffer_class or RolloutBuffer), RolloutBuffer)
    if isinstance(model.action_space, (spaces.Dict, spaces.Tuple)) and not own_buffer:
        raise ValueError(
            f"rollout_buffer_class={model.rollout_buffer_class!r} cannot store actions of {model.action_space}: derive "
            "it from ppo_plus.RolloutBuffer"
        )
