"""The environments of a model: what it takes as one becomes a checked ``VecEnv``, which is seeded and exchanged."""

import warnings
from typing import Any

import gymnasium as gym
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from ppo_plus.envs.checks import check_spaces, seed_envs
from ppo_plus.envs.layers import layers
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env, with_dicts
from ppo_plus.envs.normalization import check_normalization, require_one_normalization, warn_of_statistics
from ppo_plus.envs.tensors.vec_env import TensorVecEnv, warn_of_numpy
from ppo_plus.process import assigned, has_convolutions
from ppo_plus.require import require_spaces


def checked_env(env: GymEnv | str, verbose: int = 0) -> GymEnv:
    """The environment, made if it was an id, if its spaces are supported."""
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


class ModelEnvs(OnPolicyAlgorithm):
    """A model whose environments are checked: what :class:`ppo_plus.PPO_Plus` has of environments."""

    normalize_observations: bool | dict[str, Any]
    normalize_values: bool | dict[str, Any]
    #: Whether training observes through a ``VecNormalize``; ``None``: there was no training.
    _trained_normalized: bool | None

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
        require_one_normalization(env, self.normalize_observations, self.normalize_values)
        warn_of_statistics(self._trained_normalized, env)
        if env.num_envs != self.n_envs:
            raise ValueError(
                f"env has n_envs={env.num_envs}, and the model was made for n_envs={self.n_envs}: pass as many, or "
                f"save the model, and load it with these: {type(self).__name__}.load(path, env=env)"
            )
        self.observation_space, self.action_space = env.observation_space, env.action_space
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
                stacklevel=6,
            )
