"""The arguments of :class:`~ppo_plus.PPO_Plus`, as one frozen, checked value."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.normalization import require_one_normalization
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.formulas.exploration import NoiseProcess, WhiteNoise
from ppo_plus.formulas.kl_control import KLControl, make_kl_control
from ppo_plus.formulas.losses import PPOLoss
from ppo_plus.formulas.schedules import FORMULAS, Constant, Schedule, ScheduleLike, Unknown, make_schedule, value_at
from ppo_plus.policy.adapter import adapt_policy_class
from ppo_plus.policy.arguments import SHAPING, check_policy_kwargs
from ppo_plus.policy.normalization import OPTIONS, normalization_options
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.policy.streams import Stream
from ppo_plus.process import worth_threads
from ppo_plus.require import ATTRIBUTES, require_int, require_kind, require_number, require_one_of
from ppo_plus.rollout.buffer import RolloutBuffer, own_buffer_class

#: What ``sequence_length="auto"`` is at most.
MAX_AUTO_SEQUENCE = 16
#: The names in ``train/<name>_loss``, ``rollout/ep_<name>_mean``, ``eval/mean_<name>`` and evaluated episodes that are
#: not those of streams.
RESERVED = tuple("value policy_gradient entropy rew len return length is_success reward ep_length".split())

#: What a rollout has at most, so that a number with zeros too many is not the allocator's error.
MAX_TRANSITIONS = 10**9
#: The arguments that may differ between processes that train one model.
OWN = frozenset({"seed", "tensorboard_log", "n_threads", "compile"})
#: What ``n_threads`` is at most: more than a machine has cores, since models move between machines.
MAX_THREADS = max(256, 4 * (os.cpu_count() or 1))


def _scheduled(low: float = 0.0, above: bool = False) -> Any:
    """A field for an argument that may change over time, at least (at the start: above) ``low``."""
    return field(metadata={"schedule": (low, above)})


def _fixed() -> Any:
    """A field for an argument that the model is built with: assigning it later would change nothing."""
    return field(metadata={"fixed": True})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of :class:`~ppo_plus.PPO_Plus`; see there for each of them.

    :raises ValueError: an argument is out of range, or excludes another
    :raises TypeError: an argument is of the wrong kind
    """

    policy_class: type[SB3ActorCriticPolicy] = _fixed()
    learning_rate: ScheduleLike = _scheduled()
    n_steps: int
    batch_size: int
    n_epochs: int
    gamma: float
    gae_lambda: float
    clip_range: ScheduleLike | None = _scheduled(above=True)
    clip_range_vf: ScheduleLike | None = _scheduled(above=True)
    normalize_advantage: bool | str
    ent_coef: ScheduleLike = _scheduled(-float("inf"))
    vf_coef: ScheduleLike = _scheduled()
    max_grad_norm: float
    use_sde: bool = _fixed()
    sde_sample_freq: int | str
    rollout_buffer_class: type | None = _fixed()
    rollout_buffer_kwargs: dict[str, Any] = _fixed()
    target_kl: ScheduleLike | None = _scheduled(above=True)
    stats_window_size: int
    tensorboard_log: str | None
    policy_kwargs: dict[str, Any] = _fixed()
    seed: int | None = _fixed()
    value_clip: str
    recompute_advantages: bool
    kl_control: str | KLControl
    exploration: NoiseProcess | None = _fixed()
    compile: bool | str
    n_threads: int | str
    sequence_length: int | str
    action_mask_key: str | None = _fixed()
    normalize_observations: bool | dict[str, Any] = _fixed()
    normalize_values: bool | dict[str, Any] = _fixed()
    streams: Sequence[Stream] = _fixed()

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check_ranges(self)
        _check_exploration(self)
        _check_kl_control(self)
        _check_sequences(self)
        _ = self.schedules, self.loss  # made now, so that what is wrong with them is said now

    @cached_property
    def schedules(self) -> dict[str, Schedule | None]:
        """The arguments that may change over time, as schedules; ``None`` where the argument is."""
        return {name: schedule_of(name, getattr(self, name)) for name in SCHEDULED}

    @cached_property
    def control(self) -> KLControl:
        """What ``target_kl`` does."""
        return make_kl_control(self.kl_control, self.target_kl is not None)

    @cached_property
    def loss(self) -> PPOLoss:
        """The objective; without entropy bonus where that has no part in it (SB3's default)."""
        return PPOLoss(
            value_clip=self.value_clip,  # type: ignore[arg-type]
            normalize_advantage=self.normalize_advantage in (True, "minibatch"),
            entropy_bonus=not (isinstance(self.ent_coef, (int, float)) and self.ent_coef == 0),
            streams=tuple(str(stream.name) for stream in self.streams),
        )

    @classmethod
    def of(cls, model: Any, before: "Settings | None" = None) -> "Settings":
        """The arguments as a model's attributes have them now: ``before`` if none has been assigned since."""
        names = (argument.name for argument in fields(cls))
        arguments = {name: getattr(model, ATTRIBUTES.get(name, name)) for name in names}
        if before is not None and all(map(is_, arguments.values(), [getattr(before, name) for name in arguments])):
            return before
        return cls(**arguments)

    def check_schedules(self) -> None:
        """:raises ValueError: a schedule is unknown, because a file did not contain it"""
        for name, schedule in self.schedules.items():
            if isinstance(schedule, Unknown):
                problem = f"{name}: the file of the model does not contain its schedule ({schedule.reason})"
                raise ValueError(f"{problem}: pass {name}= to load, or set model.{name}")

    def at(self, progress_remaining: float) -> dict[str, Any]:
        """The values of all schedules, each called once, by name of the argument; ``None`` where the argument is."""
        values: dict[str, Any] = {}
        for name, schedule in self.schedules.items():
            if schedule is None or isinstance(schedule, Constant):
                values[name] = schedule and float(schedule.value)
            else:
                values[name] = value_at(progress_remaining, name, schedule, SCHEDULED[name][0])
        return values

    @property
    def shared_by_processes(self) -> dict[str, Any]:
        """What must be the same in processes that train together: the arguments that can be compared."""
        kinds = (int, float, str, type(None), *FORMULAS)
        facts = {name: value for name, value in vars(self).items() if isinstance(value, kinds) and name not in OWN}
        parts = [[part for part in vars(each).values() if isinstance(part, (*kinds, tuple))] for each in self.streams]
        return facts | {"streams": parts}

    @property
    def of_policy(self) -> dict[str, Any]:
        """What the policy is built with: only what is set, since a policy class for SB3 may not accept the others."""
        values = {name: getattr(self, name) for name in SHAPING}
        return {"use_sde": self.use_sde} | {name: v for name, v in values.items() if v not in (None, False, (), [])}

    def threads(self, policy: ActorCriticPolicy, device: th.device) -> int:
        """Torch's threads for training."""
        if self.n_threads != "auto":
            return int(self.n_threads)
        # A loop over time computes with the transitions of one step at once.
        steps = self.steps_per_sequence
        n_at_once = self.batch_size // (1 if not steps or policy.compiles_encoder else steps)
        return th.get_num_threads() if worth_threads(policy, n_at_once, device) else 1

    def check_unchanged(self, before: "Settings") -> None:
        """:raises ValueError: an argument that the model is built with has been assigned"""
        for name in BUILT_WITH:
            value, built = getattr(self, name), getattr(before, name)
            if value is not built and not (isinstance(value, int) and value == built):
                remedy = "and call set_random_seed" if name == "seed" else "or make a new model"
                raise ValueError(
                    f"{name}={value!r}: the model is built with {name}={built!r}, and setting it would change nothing; "
                    f"set it back, {remedy}"
                )

    @property
    def steps_per_sequence(self) -> int:
        """Steps of the sequences that a policy with memory is trained on; 0 without memory."""
        if not adapt_policy_class(self.policy_class).remembers:
            return 0
        if self.sequence_length != "auto":
            return int(self.sequence_length)
        common = math.gcd(self.n_steps, self.batch_size)
        return max(length for length in range(1, MAX_AUTO_SEQUENCE + 1) if common % length == 0)

    def gradient_steps(self, total_timesteps: float, n_envs: int) -> int:
        """Gradient steps that training takes."""
        n_transitions = self.n_steps * n_envs
        n_minibatches = math.ceil(n_transitions / self.batch_size)
        return math.ceil(total_timesteps / n_transitions) * self.n_epochs * n_minibatches

    def check_fit(self, env: VecEnv | None, n_envs: int) -> None:
        """:raises ValueError: the arguments do not fit the environments"""
        require_one_normalization(env, self.normalize_observations, self.normalize_values)
        for key in getattr(env, "critic_only", ()):
            if key in (self.policy_kwargs.get("actor_keys") or [key]):
                seen = [other for other in env.observation_space if other != key]  # type: ignore[union-attr]
                raise ValueError(
                    f"the entry {key!r} of the observations is for the critic only: pass policy='MultiInputPolicy' and "
                    f"policy_kwargs=dict(actor_keys={seen}), which ppo_plus.policy_arguments(env) returns"
                )
        by_rollout, n_transitions = self.normalize_advantage == "rollout", self.n_steps * n_envs
        if n_transitions > MAX_TRANSITIONS:
            raise ValueError(f"n_steps={self.n_steps} times n_envs={n_envs} is above {MAX_TRANSITIONS:,} transitions")
        if self.normalize_advantage and (n_transitions if by_rollout else min(n_transitions, self.batch_size)) < 2:
            raise ValueError(
                f"batch_size={self.batch_size} with n_steps={self.n_steps} times n_envs={n_envs} leaves nothing to "
                "normalize: use at least 2 transitions, or normalize_advantage=False"
            )
        if isinstance(env, TensorVecEnv) and self.policy_kwargs.get("squash_output") and env.env.unbounded:
            raise ValueError(
                "policy_kwargs: squash_output=True scales actions to the bounds of the Box, which has none: give the "
                "simulator's single_action_space bounds, such as gymnasium.spaces.Box(-1, 1, (n,)), or leave it out"
            )

    def check_kl(self, n_envs: int) -> None:
        """:raises ValueError: a control would adapt to the KL of the only minibatch of an update, which is always 0"""
        adapts = type(self.control).after_update is not KLControl.after_update
        if adapts and self.n_epochs == 1 and self.batch_size >= self.n_steps * n_envs:
            raise ValueError(
                f"kl_control={self.kl_control!r} with n_epochs=1 and batch_size={self.batch_size} finds no KL to adapt "
                "to, which is measured before each gradient step: use more epochs, or smaller minibatches"
            )

    def check_copied_loop(self, name: str, lacks_masks: bool, lacks_resets: bool) -> None:
        """:raises ValueError: ``collect_rollouts`` of the class ``name``, copied from SB3, leaves out what is needed"""
        needs = {
            "action masks": lacks_masks,
            "the autoreset mode NEXT_STEP": lacks_resets,
            "memory": self.steps_per_sequence,
            f"exploration={self.exploration!r}": not isinstance(self.exploration, (WhiteNoise, type(None))),
            "squash_output=True": self.policy_kwargs.get("squash_output"),
            "recompute_advantages=True": self.recompute_advantages,
            "streams": self.streams,
        }
        if missing := [what for what, needed in needs.items() if needed]:
            remedy = "call super().collect_rollouts, or use a callback or a rollout_buffer_class"
            raise ValueError(f"{name}.collect_rollouts does not support {', '.join(missing)}: {remedy}")

    def warn_of_unequal_minibatches(self, n_envs: int) -> None:
        """Warn if minibatches are not all of the size that was asked for."""
        size, batch_size = self.n_steps * n_envs, self.batch_size
        if size % batch_size:
            warnings.warn(
                f"batch_size={batch_size} does not divide the {size} transitions of a rollout (n_steps={self.n_steps} "
                f"times n_envs={n_envs}), so the last minibatch of an epoch is smaller: use one that divides {size}",
                stacklevel=3,
            )


#: The arguments that a model is built with.
BUILT_WITH = tuple(each.name for each in fields(Settings) if each.metadata.get("fixed"))
#: The smallest values of arguments that may change over time, and whether they have to be above them at the start.
SCHEDULED = {each.name: each.metadata["schedule"] for each in fields(Settings) if "schedule" in each.metadata}


def schedule_of(name: str, value: Any) -> Schedule | None:
    """An argument that may change over time, as a schedule; ``None`` if it is.

    :raises ValueError: it is out of range
    :raises TypeError: it is not a schedule
    """
    if value is None and name in ("clip_range", "clip_range_vf", "target_kl"):
        return None
    return make_schedule(name, value, *SCHEDULED[name])


def _check_kinds(settings: Settings) -> None:
    adapt_policy_class(settings.policy_class)
    kind = own_buffer_class(settings.rollout_buffer_class)
    if kind.get is not RolloutBuffer.get and kind.minibatches is RolloutBuffer.minibatches:
        raise ValueError(f"rollout_buffer_class={kind!r} overrides get, not called in training: override minibatches")
    for name in ("use_sde", "recompute_advantages"):
        require_kind(name, getattr(settings, name), (bool, np.bool_), "True or False")
    require_kind("policy_kwargs", settings.policy_kwargs, dict, "a dict, such as dict(net_arch=[64, 64])")
    check_policy_kwargs(settings.policy_kwargs)
    for name in OPTIONS:
        normalization_options(name, getattr(settings, name))
    streams, remedy = settings.streams, 'a list of streams, such as [ppo_plus.Cost("cost", limit=25.0)]'
    require_kind("streams", streams, (list, tuple), remedy)
    for stream in streams:
        require_kind("streams", stream, Stream, remedy)
    names = [stream.name for stream in streams]
    if len({*names, *RESERVED}) < len(names) + len(RESERVED):
        raise ValueError(f"streams={streams!r} have the names {names}: give each another name=, none of {RESERVED}")
    require_kind("rollout_buffer_kwargs", settings.rollout_buffer_kwargs, dict, "a dict")


def _check_ranges(settings: Settings) -> None:
    require_int("seed", settings.seed, 0, 2**32 - 1, or_none=True)
    for name in ("n_steps", "batch_size", "n_epochs", "stats_window_size"):
        require_int(name, getattr(settings, name), 1)
    require_number("gamma", settings.gamma, 0, 1)
    require_number("gae_lambda", settings.gae_lambda, 0, 1)
    require_number("max_grad_norm", settings.max_grad_norm, 0, above=True)
    require_one_of("normalize_advantage", settings.normalize_advantage, (True, False, "minibatch", "rollout"))
    require_one_of("value_clip", settings.value_clip, ("max", "plain"))
    require_one_of("compile", settings.compile, ("auto", True, False))
    if settings.n_threads != "auto":
        require_int('n_threads (or "auto")', settings.n_threads, 1, MAX_THREADS)


def _check_exploration(settings: Settings) -> None:
    freq = settings.sde_sample_freq
    if freq == "episode":
        _require_own_policy("sde_sample_freq", settings)
    elif freq != -1:
        require_int('sde_sample_freq (or -1, or "episode")', freq, 1)
    if settings.exploration is not None:
        require_kind("exploration", settings.exploration, NoiseProcess, "a NoiseProcess, such as ColoredNoise(0.5)")


def _check_kl_control(settings: Settings) -> None:
    control = settings.control
    if control.needs_target and settings.target_kl is None:
        raise ValueError(f"kl_control={settings.kl_control!r} needs a target: set target_kl, such as target_kl=0.01")
    if settings.clip_range is None and not control.penalizes:
        raise ValueError('clip_range=None bounds no update: set kl_control="penalty" and target_kl, or a clip_range')
    if control.measure == "kl" or control.penalizes:
        _require_own_policy("kl_control", settings)


def _require_own_policy(name: str, settings: Settings) -> None:
    if not adapt_policy_class(settings.policy_class).has_params:
        raise ValueError(
            f"{name}={getattr(settings, name)!r} does not reach policy={settings.policy_class!r}, which overrides "
            "methods of SB3's policy: derive it from ppo_plus.ActorCriticPolicy"
        )


def _check_sequences(settings: Settings) -> None:
    automatic = settings.sequence_length == "auto"
    if not automatic:
        require_int('sequence_length (or "auto")', settings.sequence_length, 1)
    length = settings.steps_per_sequence
    if not length:
        if not automatic:
            problem = f"sequence_length={settings.sequence_length} has no effect on a policy without memory"
            raise ValueError(f'{problem}: leave it out, or use a policy such as "MlpLstmPolicy"')
        return
    sizes = f"n_steps={settings.n_steps} and batch_size={settings.batch_size}"
    if automatic and length == 1 < settings.n_steps:
        problem = f"{sizes} have no common divisor from 2 to {MAX_AUTO_SEQUENCE}"
        raise ValueError(f"{problem}: change one, or set sequence_length=1 (no gradient then flows back in time)")
    if settings.n_steps % length or settings.batch_size % length:
        remedy = f"use a divisor of {math.gcd(settings.n_steps, settings.batch_size)}"
        raise ValueError(f"sequence_length={length} must divide {sizes}: {remedy}")
