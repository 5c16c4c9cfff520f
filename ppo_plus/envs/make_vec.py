"""Vector environments for training: made of single environments, of what steps many at once, or of whatever
``PPO_Plus`` takes as its environment; and what a model does with its environments."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.envs.registration import _find_spec
from gymnasium.vector import VectorEnv, VectorWrapper
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from ppo_plus.envs.checks import check_spaces, seed_envs
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.normalization import Trained, check_normalization, require_one_normalization, warn_of_statistics
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.envs.tensors.env import GymTensors, TensorEnv
from ppo_plus.envs.tensors.vec_env import TensorVecEnv, warn_of_numpy
from ppo_plus.envs.vec_env import GymVectorEnv
from ppo_plus.policy.observations import as_dict
from ppo_plus.process import assigned, has_convolutions
from ppo_plus.require import require_int, require_kind, require_one_of, require_spaces

#: The kinds of vector environments that are made of single ones.
VEC_ENVS = {"dummy": LeanVecEnv, "subproc": SupervisedVecEnv}


def make_vec(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env: str = "dummy",
    **supervision: Any,
) -> VecEnv:
    """Make environments like SB3's ``make_vec_env``, which can resume in another process::

        env = make_vec("HalfCheetah-v5", n_envs=8, seed=0, vec_env="subproc")

    :param env_id: Gymnasium environment id, or a class or function that makes an environment
    :param n_envs: how many, at least 1
    :param seed: of the first one, the others follow, 0 to 2**32 - 1; ``None``: drawn at random
    :param env_kwargs: arguments of each environment, such as ``{"render_mode": "rgb_array"}``, which SB3 passes
    :param vec_env: ``"dummy"`` steps them one after another, ``"subproc"`` in processes (see
        :class:`~ppo_plus.SupervisedVecEnv`). Both return the same bits
    :param supervision: with ``"subproc"``, arguments of :class:`~ppo_plus.SupervisedVecEnv`, such as ``restarts``
    :raises ValueError: bad number of environments, or their spaces are not supported
    :raises TypeError: an argument is unknown, or ``env_id`` is an environment
    :raises gymnasium.error.Error: there is no such environment
    """
    require_int("n_envs", n_envs, 1)
    require_one_of("vec_env", vec_env, VEC_ENVS)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    require_int("seed", seed, 0)
    if not callable(env_id):
        require_kind("env_id", env_id, str, "the id of an environment, or a class or function that makes one")
        # A specification, which processes need not have registered.
        env_id = partial(gym.make, _find_spec(env_id))
    kinds = {"vec_env_cls": VEC_ENVS[vec_env], "vec_env_kwargs": supervision}
    return with_dicts(make_vec_env(env_id, n_envs, seed=int(seed), env_kwargs=env_kwargs, **kinds))  # type: ignore[arg-type]


class TupleAsDict(VecEnvWrapper):
    """Environments whose observations are tuples; they become dicts with the keys ``"0"``, ``"1"``, and so on."""

    def __init__(self, venv: VecEnv):
        super().__init__(venv, as_dict(venv.observation_space))

    def reset(self) -> VecEnvObs:
        return as_dict(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            if "terminal_observation" in info:
                info["terminal_observation"] = as_dict(info["terminal_observation"])
        return as_dict(obs), rewards, dones, infos


def with_dicts(env: VecEnv) -> VecEnv:
    """Environments in a :class:`TupleAsDict` if their observations are tuples."""
    return TupleAsDict(env) if isinstance(env.observation_space, spaces.Tuple) else env


def as_vec_env(env: Any) -> Any:
    """Wrap vector environments, and those in tensors, in SB3's ``VecEnv`` interface.

    :param env: anything that ``PPO_Plus`` takes as its environment
    :return: a :class:`~ppo_plus.envs.vec_env.GymVectorEnv` around a vector environment, a
        :class:`~ppo_plus.envs.tensors.vec_env.TensorVecEnv` around one in tensors; everything else is unchanged
    :raises ValueError: environments that no adapter supports
    """
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, TensorEnv):
        return TensorVecEnv(env)
    if isinstance(env, VectorEnv):
        return TensorVecEnv(GymTensors(env)) if _takes_tensors(env) else GymVectorEnv(env)
    return env


def _takes_tensors(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether a vector environment takes and returns tensors: it has a device, or one of its wrappers converts."""
    if isinstance(getattr(env, "device", None), th.device):
        return True
    if target := getattr(getattr(env, "_target_xp", None), "__name__", ""):
        return target.split(".")[-1] == "torch"
    return isinstance(env, VectorWrapper) and _takes_tensors(env.env)


def checked_env(env: GymEnv | str, verbose: int = 0) -> GymEnv:
    """The environment, made if it was an id, if its spaces are supported."""
    made: GymEnv = as_vec_env(maybe_make_env(env, verbose))
    if not isinstance(made, (gym.Env, VecEnv)):
        makers = "ppo_plus.make_vec makes several of a class or function, and ppo_plus.make_agents those of PettingZoo"
        raise TypeError(f"env={made!r} must be a Gymnasium environment, a VecEnv, or the id of one: {makers}")
    check_spaces(made)
    return made


class ModelEnvs(OnPolicyAlgorithm):
    """A model whose environments are checked: what :class:`ppo_plus.PPO_Plus` has of environments."""

    normalize_observations: bool | dict[str, Any]
    normalize_values: bool | dict[str, Any]
    #: Whether training observes through a ``VecNormalize``; ``None``: there was no training.
    _trained_normalized: Trained = None

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """As SB3's, also for ids of environments and for vector environments of Gymnasium.

        :raises TypeError: not an environment
        :raises ValueError: its spaces, or the arguments of its ``VecNormalize``, are not supported
        """
        made = checked_env(env, verbose)
        if not isinstance(made, VecEnv):
            # SB3 puts it into a Monitor, and says so.
            dummy: Any = OnPolicyAlgorithm._wrap_env(made, verbose, monitor_wrapper).unwrapped
            (single,), verbose = dummy.envs, 0
            made = LeanVecEnv([lambda: single])
        wrapped = OnPolicyAlgorithm._wrap_env(with_dicts(made), verbose, monitor_wrapper)
        check_normalization(wrapped)
        warn_of_numpy(wrapped)
        return wrapped

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Learn in another environment from now on.

        :param env: with the same spaces, and as many environments
        :param force_reset: start new episodes
        :raises ValueError: it has others
        """
        env = self._wrap_env(env, self.verbose)
        require_spaces(env, self.observation_space, self.action_space)
        if env.num_envs != self.n_envs:
            raise ValueError(f"env has {env.num_envs} environments, not {self.n_envs}: make as many")
        require_one_normalization(env, self.normalize_observations, self.normalize_values)
        warn_of_statistics(self._trained_normalized, env)
        # SB3 compares them again, and knows fewer that are the same.
        with assigned(self, observation_space=env.observation_space, action_space=env.action_space):
            super().set_env(env, force_reset)

    def set_random_seed(self, seed: int | None = None) -> None:
        """As SB3's; environments that cannot be seeded give a warning."""
        with assigned(self, env=None):
            super().set_random_seed(seed)
        if self.env is not None and seed is not None:
            seed_envs(self.env, seed)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        # Environments in tensors and the policy are on the same device.
        in_tensors = isinstance(self.env, TensorVecEnv)
        if self.device.type != "cpu" and not in_tensors and not has_convolutions(self.policy):
            warnings.warn(
                f"device={str(self.device)!r}: networks without convolutions are usually trained faster on a CPU, "
                'where training is also compiled by default: pass device="cpu", or compare the two',
                stacklevel=5,
            )
