"""Where a model plays: the environments that it is given, where they stand, and how it acts in them."""

import warnings
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.normalization import warn_of_resets
from ppo_plus.envs.resumable.wrapper import Resumable
from ppo_plus.envs.vec_env import as_vec_env
from ppo_plus.inputs import check_env
from ppo_plus.policy.masking import MaskSource
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.ranks import Ranks
from ppo_plus.require import require_spaces
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.rollout.collector import Collector
from ppo_plus.rollout.evaluation import evaluate
from ppo_plus.rollout.tensor_collector import TensorCollector, collector_for, in_tensors, warn_of_numpy
from ppo_plus.rollout.together import Together
from ppo_plus.settings import Settings
from ppo_plus.update.learner import Learner
from ppo_plus.update.parallel import copy_lead


class Playing(OnPolicyAlgorithm):
    """The part of :class:`~ppo_plus.PPO_Plus` that has to do with environments, and with other processes that have
    others."""

    policy: ActorCriticPolicy  # type: ignore[assignment]
    rollout_buffer: RolloutBuffer  # type: ignore[assignment]
    settings: Settings
    # Where the environments are, and what is carried from step to step.
    collector: Collector
    learner: Learner
    # The processes that train this model together.
    ranks: Ranks
    together: Together
    # Whether the environments' method gave masks in training, so that ``predict`` needs them too.
    _expects_masks: bool
    _warned_of_masks: bool

    @classmethod
    def _checked_env(cls, env: GymEnv | str, verbose: int) -> GymEnv:
        """The environment, made if it was an id, once its spaces are known to be supported."""
        made = as_vec_env(maybe_make_env(env, verbose))
        check_env(made)
        return made

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """As SB3's, also for ids of environments and for vector environments of Gymnasium and EnvPool."""
        made = Playing._checked_env(env, verbose)
        if not isinstance(made, VecEnv):
            # SB3 puts it into a Monitor, which resumes with it, and says so.
            dummy: Any = OnPolicyAlgorithm._wrap_env(made, verbose, monitor_wrapper).unwrapped
            (single,), verbose = dummy.envs, 0
            made = LeanVecEnv([lambda: single if isinstance(single, Resumable) else Resumable(single)])
        wrapped = OnPolicyAlgorithm._wrap_env(made, verbose, monitor_wrapper)
        warn_of_resets(wrapped)
        warn_of_numpy(wrapped)
        return wrapped

    def _settle_collector(self) -> None:
        """Have what collects, and what is collected into, fit the environments."""
        assert self.env is not None
        self.collector = collector_for(self.env, self.collector, self.device)
        storage = self.device if in_tensors(self.env) else th.device("cpu")
        if self.rollout_buffer.storage != storage:
            self.rollout_buffer.store_on(storage)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        # Where environments are on the device, so is the policy.
        if not in_tensors(self.env):
            super()._maybe_recommend_cpu(mlp_class_name)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Learn in another environment from now on.

        :param env: with the same spaces, and as many environments
        :param force_reset: begin episodes anew
        :raises ValueError: it has others
        """
        env = self._wrap_env(env, self.verbose)
        require_spaces(env, self.observation_space, self.action_space)
        if env.num_envs != self.n_envs:
            raise ValueError(
                f"env has n_envs={env.num_envs}, and the model was made for n_envs={self.n_envs}: pass as many, or "
                f"save the model, and load it with these: {type(self).__name__}.load(path, env=env)"
            )
        super().set_env(env, force_reset)

    # What SB3 and callbacks know under these names is the collector's.

    @property
    def _last_obs(self) -> Any:
        return self.collector.obs

    @_last_obs.setter
    def _last_obs(self, obs: Any) -> None:
        if obs is None:
            self.collector.interrupt()
        else:
            self.collector.obs = obs

    @property
    def _last_episode_starts(self) -> Any:
        return self.collector.starts

    @_last_episode_starts.setter
    def _last_episode_starts(self, starts: Any) -> None:
        self.collector.starts = starts

    def _join(self, total_timesteps: int) -> None:
        """Begin to train with other processes: as rank 0 is.

        :raises RanksError: they are not made alike
        """
        if not self.ranks.leads:
            # Also where a file has said otherwise.
            self.verbose, self.tensorboard_log = 0, None
        facts = self._common_settings()
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        facts |= {"n_envs": self.n_envs, "num_timesteps": self.num_timesteps, "total_timesteps": total_timesteps}
        self.ranks.require_same(facts | spaces | {"kl_control": self.learner.kl_memory and self.learner.kl_memory[1]})
        copy_lead(self.ranks, self.policy, self.policy.optimizer)
        self.learner.critic_moments = self.ranks.lead(self.learner.critic_moments)
        self.together.begin(self.env)  # type: ignore[arg-type]

    def _common_settings(self) -> dict[str, Any]:
        """Arguments that processes which train together have in common, as far as they can be compared."""
        apart = {"seed", "tensorboard_log", "n_threads", "compile"}
        given = vars(self.settings).items()
        return {name: value for name, value in given if name not in apart and isinstance(value, (int, float, str))}

    def _steps(self) -> int:
        """How many steps each environment has taken."""
        return self.num_timesteps // (self.n_envs * self.ranks.size)

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        if self.ranks.several:
            self.together.ended(infos, np.zeros(len(infos), dtype=bool) if dones is None else dones)
        else:
            super()._update_info_buffer(infos, dones)

    def _meet(self, goes_on: bool) -> bool:
        """End a rollout, with other processes if there are any.

        :param goes_on: whether this one is to go on
        :return: whether all are
        """
        if not self.ranks.several:
            return goes_on
        assert self.env is not None
        goes_on, episodes, self.num_timesteps = self.together.meet(
            self.env, goes_on, self._stats_window_size, self.num_timesteps, self._common_settings()
        )
        infos = [{"episode": episode, "is_success": success} for episode, success in episodes]
        super()._update_info_buffer(infos, np.ones(len(infos), dtype=bool))
        return goes_on

    def _collect_in_tensors(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
        mask_source: MaskSource | None,
    ) -> bool:
        """What ``collect_rollouts`` does where environments are in tensors, once the rollout has begun."""
        collector = self.collector
        assert isinstance(collector, TensorCollector)
        # Callbacks find what is assigned here, under SB3's names, in their `locals`; what is another kind of value in
        # SB3 is made of it when they look.
        while (n_steps := collector.n_steps) < n_rollout_steps:
            action_masks = collector.masks(mask_source)
            decision = collector.choose(action_masks)
            obs_tensor, values, log_probs = decision.obs, decision.value[:, None], decision.log_prob
            step = collector.step(decision)
            self.num_timesteps += env.num_envs * self.ranks.size
            callback.update_locals(locals() | collector.seen(decision, step))
            if not callback.on_step():
                collector.settle()
                return self._meet(False)
            if collector.obs is None:
                env = self.env  # type: ignore[assignment]
            collector.keep(decision, step, env, self._steps())
        told = collector.conclude(mask_source, self._stats_window_size)
        infos = [{"episode": episode} for episode in told.episodes]
        self._update_info_buffer(infos, np.ones(len(infos), dtype=bool))
        for name, value in told.log.items():
            self.logger.record_mean(name, value)

        goes_on = self._meet(True)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return goes_on

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Actions that the environment's action space contains; see :meth:`ppo_plus.ActorCriticPolicy.predict`."""
        if action_masks is None and self._expects_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                "predict was called without action_masks, but the model was trained with masks: without them it "
                "chooses among all actions. Pass action_masks=, or evaluate with model.evaluate or with sb3_contrib's "
                "maskable evaluate_policy",
                stacklevel=2,
            )
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks)

    def evaluate(
        self, n_eval_episodes: int = 10, env: GymEnv | None = None, render: bool = False
    ) -> tuple[float, float]:
        """Mean and standard deviation of the return, with deterministic actions.

        It never disturbs training: normalization statistics stay as they are, and if the training environment is used
        its episodes are begun anew before training goes on (a ``Monitor`` in it that writes a file records the
        evaluated episodes as well).

        :param n_eval_episodes: number of episodes, at least 1
        :param env: where to play; by default the training environment. Observations are normalized with the training
            environment's statistics if that is a ``VecNormalize``; returns are counted in the rewards of the
            innermost environment
        :param render: whether to show it
        :return: mean and standard deviation over episodes
        :raises ValueError: no environment, one with other spaces, or no episode asked for
        :raises FloatingPointError: an observation or a reward is not finite
        """
        self.collector.settle()
        return evaluate(self, n_eval_episodes, env, render)
