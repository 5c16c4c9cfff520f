"""The model as the functions of this room take it."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from ppo_plus.call import Call
from ppo_plus.compiling.compiled import Compilation
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.schedules import Schedule
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.policy.streams import Stream
from ppo_plus.rollout.collector import Position
from ppo_plus.settings import Settings
from ppo_plus.update.update import Updater


class SavedModel(OnPolicyAlgorithm):
    """What files keep of a :class:`ppo_plus.PPO_Plus`, or make it of, beside what SB3's algorithms have."""

    policy: ActorCriticPolicy  # type: ignore[assignment]
    settings: Settings
    position: Position
    updater: Updater
    compilation: Compilation
    call: Call
    ranks: Ranks
    clip_range: Schedule | float | str | None
    clip_range_vf: Schedule | float | str | None
    normalize_observations: bool | dict[str, Any]
    exploration: NoiseProcess | None
    streams: Sequence[Stream]
    action_mask_key: str | None
    #: The arguments that may change over time.
    scheduled: ClassVar[frozenset[str]]
    #: The weights that the policy is built with, by name and shape; ``None``: it is not built yet.
    built_layout: dict[str, th.Size | type[th.optim.Optimizer]] | None
    #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
    _expects_masks: bool
    #: Whether training observes through a ``VecNormalize``; ``None``: there was no training.
    _trained_normalized: bool | None
    _last_episode_starts: np.ndarray | None
    _warned_of_schedules: bool
