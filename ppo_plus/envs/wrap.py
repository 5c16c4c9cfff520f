"""Whatever ``PPO_Plus`` takes as its environment, as a checked ``VecEnv``."""

from typing import Any

import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from ppo_plus.envs.checks import check_spaces
from ppo_plus.envs.layers import layers
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env, with_dicts
from ppo_plus.envs.normalization import check_normalization
from ppo_plus.envs.tensors.vec_env import warn_of_numpy


def wrap_env(env: GymEnv | str, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
    """As SB3 wraps environments, also for ids of environments and for vector environments of Gymnasium.

    :param verbose: 1: say what is wrapped around it
    :param monitor_wrapper: whether a single environment gets a ``Monitor`` if it has none
    :raises TypeError: not an environment
    :raises ValueError: its spaces, or the arguments of its ``VecNormalize``, are not supported
    """
    made = checked_env(env, verbose)
    if not isinstance(made, VecEnv):
        # SB3 puts it into a Monitor, and says so.
        dummy: Any = BaseAlgorithm._wrap_env(made, verbose, monitor_wrapper).unwrapped  # noqa: SLF001
        (single,), verbose = dummy.envs, 0
        made = LeanVecEnv([lambda: single])
    wrapped = BaseAlgorithm._wrap_env(with_dicts(made), verbose, monitor_wrapper)  # noqa: SLF001
    check_normalization(wrapped)
    warn_of_numpy(wrapped)
    return wrapped


def checked_env(env: GymEnv | str, verbose: int = 0) -> GymEnv:
    """The environment, made if it was an id, if its spaces are supported; errors as :func:`wrap_env`."""
    made: GymEnv = as_vec_env(maybe_make_env(env, verbose))
    if not isinstance(made, (gym.Env, VecEnv)):
        remedy = "shimmy's GymV21CompatibilityV0(env=env) and GymV26CompatibilityV0 convert those of the old gym"
        if callable(made):
            remedy = "call it, env(), or make several of them, ppo_plus.make_vec(env, n_envs=8)"
        elif isinstance(made, (list, tuple)):
            remedy = "make one of them all, ppo_plus.make_vec(env_id, n_envs=8), or of functions DummyVecEnv(functions)"
        raise TypeError(
            f"env={made!r} must be a Gymnasium environment, a VecEnv, or the id of an environment: {remedy}"
        )
    for layer in layers(made):
        if isinstance(layer, VecEnvWrapper) and not isinstance(layer.venv, VecEnv):
            name = type(layer).__name__
            raise TypeError(f"env={name}({layer.venv!r}) needs a VecEnv: wrap {name}(ppo_plus.as_vec_env(env))")
    check_spaces(made)
    return made
