"""What functions below ``ppo.py`` read and set of a whole model: evaluating, demonstrations and files."""

from typing import Any, Protocol

import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ppo_plus.compiling.compiled import Compilation
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.envs.normalization import Trained
from ppo_plus.policy.policies import ActorCriticPolicy


class Model(Protocol):
    """A :class:`ppo_plus.PPO_Plus`, or a subclass of it."""

    policy: ActorCriticPolicy
    env: VecEnv | None
    observation_space: spaces.Space
    action_space: spaces.Space
    n_envs: int
    num_timesteps: int
    gamma: float
    seed: int | None
    verbose: int
    device: th.device
    action_mask_key: str | None
    compilation: Compilation
    ranks: Ranks
    #: The last observations, arrays or tensors; ``None``: the next rollout resets the environments.
    _last_obs: Any
    #: Whether training observes through a ``VecNormalize``.
    _trained_normalized: Trained

    @property
    def logger(self) -> Logger: ...

    def get_vec_normalize_env(self) -> VecNormalize | None: ...
