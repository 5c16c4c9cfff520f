"""Vector environments of single environments, which are stepped one after another or each in its own process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.checks import LeanVecEnv, check_spaces
from ppo_plus.envs.resumable.wrapper import Resumable
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.require import require_int

#: The kinds of vector environments that are made of single ones.
VEC_ENVS = {"dummy": LeanVecEnv, "subproc": SupervisedVecEnv}


def require_vec_env(vec_env: str) -> None:
    """:raises ValueError: there is no such kind of vector environment"""
    if vec_env not in VEC_ENVS:
        raise ValueError(
            f"vec_env={vec_env!r} must be one of {', '.join(VEC_ENVS)}. Vector environments of Gymnasium and EnvPool "
            "are passed to PPO_Plus in Python, such as "
            'PPO_Plus("MlpPolicy", envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=0))'
        )


def make_vec(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env: str = "dummy",
) -> VecEnv:
    """Make environments like SB3's ``make_vec_env``, each in a :class:`~ppo_plus.Resumable`::

        env = make_vec("HalfCheetah-v5", n_envs=8, seed=0, vec_env="subproc")

    :param env_id: Gymnasium environment id, or a class or function that makes an environment
    :param n_envs: how many, at least 1
    :param seed: of the first one, the others follow, 0 to 2**32 - 1; ``None``: drawn at random
    :param env_kwargs: arguments of each environment
    :param vec_env: ``"dummy"`` steps them one after another, ``"subproc"`` each in its own process. Both return the
        same bits; processes are faster where a step takes longer than messages between processes
    :raises ValueError: bad number of environments, or their spaces are not supported
    :raises gymnasium.error.Error: there is no such environment
    """
    require_int("n_envs", n_envs, 1)
    require_vec_env(vec_env)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    require_int("seed", seed, 0)
    make_env = env_id if callable(env_id) else partial(gym.make, gym.spec(env_id))
    make = partial(_make_one, make_env, **(env_kwargs or {}))
    vec_env_cls: Any = VEC_ENVS[vec_env]
    return make_vec_env(make, n_envs, seed=seed, wrapper_class=Resumable, vec_env_cls=vec_env_cls)


def _make_one(make_env: Callable[..., gym.Env], **env_kwargs: Any) -> gym.Env:
    env = make_env(**env_kwargs)
    # Vector environments would raise errors that do not say what is wrong.
    check_spaces(env)
    return env
