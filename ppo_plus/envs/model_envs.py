"""The environments of a model: checked, seeded and exchanged."""

import warnings
from typing import Any

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.checks import seed_envs
from ppo_plus.envs.make_vec import wrap_env
from ppo_plus.envs.normalization import require_one_normalization, warn_of_statistics
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.process import assigned, has_convolutions
from ppo_plus.require import require_spaces


class ModelEnvs(OnPolicyAlgorithm):
    """A model whose environments are checked: what :class:`ppo_plus.PPO_Plus` has of environments."""

    normalize_observations: bool | dict[str, Any]
    normalize_values: bool | dict[str, Any]
    #: Whether training observes through a ``VecNormalize``; ``None``: there was no training.
    _trained_normalized: bool | None

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return wrap_env(env, verbose, monitor_wrapper)

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
