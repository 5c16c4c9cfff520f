"""``PPO_Plus``: proximal policy optimization for Stable-Baselines3.

This file has the whole algorithm: it collects rollouts, trains on them and keeps SB3's interface.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import get_system_info
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize

from ppo_plus.call import Call
from ppo_plus.compiling.compiled import Compilation, CompileStatus
from ppo_plus.compiling.constants import Reads
from ppo_plus.compiling.torch_private import original
from ppo_plus.distributed.ranks import Ranks, frozen, use_own_gpu
from ppo_plus.distributed.shared import SharedTraining, SingleProcess
from ppo_plus.envs.checked_envs import CheckedEnvs
from ppo_plus.envs.checks import of_ended, seed_envs
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.make_vec import as_vec_env, with_dicts
from ppo_plus.envs.normalization import (
    check_normalization,
    normalized_by,
    require_one_normalization,
    warn_of_statistics,
)
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.formulas.moments import Moments
from ppo_plus.formulas.schedules import Schedule, value_at
from ppo_plus.policy.adapter import adapt_policy_class, warn_of_overrides
from ppo_plus.policy.arguments import as_plain
from ppo_plus.policy.masking import find_masks
from ppo_plus.policy.observations import warn_of_bounds
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.policy.streams import Stream
from ppo_plus.process import assigned, full_precision, has_convolutions, keep_freed_memory, torch_threads, worth_threads
from ppo_plus.public import MODULES
from ppo_plus.require import require_callable, require_int, require_number, require_spaces
from ppo_plus.rollout.buffer import RolloutBuffer, own_buffer_class
from ppo_plus.rollout.collector import Collector, Position, RolloutPlan, prepare_act
from ppo_plus.rollout.demonstrations import clone, read_demonstrations
from ppo_plus.rollout.evaluation import check_evaluations, evaluate
from ppo_plus.rollout.reestimate import following_rewards, reestimated
from ppo_plus.rollout.streams import finish
from ppo_plus.rollout.tensor_collector import LazyLocals, TensorCollector, warn_of_numpy
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.checkpoint.process_state import get_generators, set_generators
from ppo_plus.saving.export import Normalization, export, outermost
from ppo_plus.saving.format.container import is_container
from ppo_plus.saving.hub import fetch
from ppo_plus.saving.model import SHAPING, changed_attributes, layout, load_model, save_model
from ppo_plus.saving.sb3.from_sb3 import from_sb3
from ppo_plus.saving.sb3.to_sb3 import to_sb3
from ppo_plus.saving.statistics import move_into, read_statistics, statistics_path
from ppo_plus.settings import LOWEST, Settings, check_callback, check_device, check_env, known_names_only, schedule_of
from ppo_plus.trees import tree_map
from ppo_plus.update.minibatch import Batch, UpdateRule, check_optimizer_state, read
from ppo_plus.update.update import Update, Updater, interrupts_wait, usual_settings

SelfPPO_Plus = TypeVar("SelfPPO_Plus", bound="PPO_Plus")

#: A coefficient over time: a number, a string such as ``"lin_3e-4"``, or a function of the remaining progress.
ScheduleLike = float | str | Schedule


def _of_position(name: str) -> Any:
    """A property of a model that reads and writes one of its position's attributes."""
    return property(lambda it: getattr(it.position, name), lambda it, value: setattr(it.position, name, value))


class PPO_Plus(OnPolicyAlgorithm):
    r"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) for every action and observation space.

    Takes all arguments of SB3's ``PPO``, in its order and with its defaults and meaning, and after them further
    keyword arguments. Arguments that may change over time take a number, a string (``"lin_3e-4"``,
    ``"cos_3e-4"``) or a function of the remaining progress, which falls from 1 to 0.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, the same with memory (``"MlpLstmPolicy"``,
        ``"MlpGruPolicy"``, ``"MlpLruPolicy"``, ``"MlpAttentionPolicy"``, …, see :mod:`ppo_plus.policy.memory`), or a
        policy class
    :param env: environment, vectorized environment, or the id of one; ``None`` only when loading
    :param learning_rate: learning rate, at least 0; may change over time
    :param n_steps: steps of each environment per rollout, at least 1
    :param batch_size: transitions per minibatch, at least 1 (2 when advantages are normalized per minibatch)
    :param n_epochs: passes over each rollout, at least 1
    :param gamma: discount factor, in ``[0, 1]``
    :param gae_lambda: bias-variance trade-off of GAE, in ``[0, 1]``
    :param clip_range: ε of the surrogate, above 0; may change over time. ``None``: no clipping, needs a KL penalty
    :param clip_range_vf: ε of the value loss, in units of returns, above 0; may change over time. ``None``: not clipped
    :param normalize_advantage: ``True`` or ``"minibatch"``: within each minibatch; ``"rollout"``: once over the whole
        rollout; ``False``: not at all
    :param ent_coef: weight of the entropy bonus, a penalty if it is negative; may change over time
    :param vf_coef: weight of the value loss, at least 0; may change over time
    :param max_grad_norm: bound on the norm of the gradient, above 0
    :param use_sde: explore by generalized state-dependent exploration (gSDE), on every action space
    :param sde_sample_freq: when gSDE (or any ``exploration`` that holds noise) is renewed: -1 at the start of each
        rollout, n ≥ 1 every n steps, ``"episode"`` for each environment at the start of its episodes
    :param rollout_buffer_class: a subclass of :class:`ppo_plus.RolloutBuffer`
    :param rollout_buffer_kwargs: its further arguments
    :param target_kl: KL divergence of old and new policy to aim at, in nats, above 0, or ``None``; may change over time
    :param stats_window_size: number of episodes that logged means are taken over
    :param tensorboard_log: folder for TensorBoard; ``None``: none
    :param policy_kwargs: arguments of the policy, see :class:`ppo_plus.ActorCriticPolicy`
    :param verbose: 0 silent, 1 information, 2 debugging
    :param seed: seed of all random generators
    :param device: ``"auto"``, ``"cpu"``, ``"cuda"``, …
    :param _init_setup_model: whether to build the networks now
    :param value_clip: form of the clipped value loss: ``"max"`` as PPO2 (the pessimistic maximum of the clipped and
        the unclipped error), ``"plain"`` as SB3 (the clipped error alone)
    :param recompute_advantages: before each epoch but the first, recompute values, advantages and returns with the
        current weights (:mod:`ppo_plus.rollout.reestimate`)
    :param kl_control: what ``target_kl`` does. ``"stop"``: end the update before a step whose sampled KL exceeds 1.5
        times the target, as SB3; ``"penalty"``: add β times the exact KL to the loss, β adapted; ``"adaptive_lr"``:
        scale the learning rate; or a :class:`ppo_plus.KLControl`
    :param exploration: a noise process (:mod:`ppo_plus.formulas.exploration`) in place of ``use_sde``
    :param compile: compile acting and updating. With LSTMs and GRUs, the part of an update after these layers is
        compiled; with memory, no update of a rollout with steps that only reset. ``"auto"``: on a CPU, from the call of
        ``learn`` on with which the model has planned enough gradient steps to save time
        (:data:`ppo_plus.compiling.compiled.WORTH_COMPILING`); ``True``: always, with an error if it cannot;
        ``False``: never. On an NVIDIA GPU, only ``True`` compiles. :attr:`compiled` says which
    :param n_threads: torch's threads during ``learn``, restored after it. ``"auto"``: one on a CPU where the work per
        minibatch is small, so that threads would mostly wait for each other; else those that torch is set to
    :param sequence_length: with memory: steps through which gradients flow back. Each rollout is cut into sequences of
        so many steps, each starting from what was remembered there, and ``batch_size`` transitions of whole sequences
        make a minibatch. It divides ``n_steps`` and ``batch_size``. ``"auto"``: the largest number up to
        :data:`ppo_plus.settings.MAX_AUTO_SEQUENCE` that does
    :param action_mask_key: the entry of Dict observations that is the action mask, and so no feature; ``None``: masks
        come from the environments' method ``action_masks()``, if they have it (:mod:`ppo_plus.policy.masking`)
    :param normalize_observations: normalize observations inside the policy, by moments that are saved with its weights
        (:mod:`ppo_plus.policy.normalization`); or a dict of options: ``epsilon=1e-8``, ``clip=10.0``, and ``keys``, the
        entries of Dict observations to normalize
    :param normalize_values: have the critic predict normalized returns, so that it learns on any scale of rewards
        (PopArt). ``vf_coef`` and ``clip_range_vf`` are then in units of normalized returns; values, returns and logs
        stay in units of the reward. Or a dict of options: ``epsilon=1e-5``
    :param streams: further rewards, each with a critic head, discount, λ and weight in the advantage: a list of
        :class:`ppo_plus.Cost`, :class:`ppo_plus.RandomNetworkDistillation` and :class:`ppo_plus.Stream`
    :raises ValueError: an argument is out of range, or the spaces are not supported
    :raises TypeError: an argument is of the wrong kind
    """

    #: The policies by name: the public ones of each encoder, without memory and with each kind of it.
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        name: vars(import_module(module))[name]
        for name, module in MODULES.items()
        if name.startswith(("Mlp", "Cnn", "MultiInput")) and name.endswith("Policy")
    }
    #: Methods that a loss may use: what they read is compared before compiled code is used again.
    pure: ClassVar[frozenset[str]] = frozenset({"compute_loss", "evaluate", "predict"})
    #: The arguments that may change over time.
    scheduled: ClassVar[frozenset[str]] = frozenset(LOWEST)
    policy: ActorCriticPolicy  # type: ignore[assignment]

    @known_names_only
    def __init__(
        self,
        policy: str | type[SB3ActorCriticPolicy],
        env: GymEnv | str | None,
        learning_rate: ScheduleLike = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: ScheduleLike | None = 0.2,
        clip_range_vf: ScheduleLike | None = None,
        normalize_advantage: bool | Literal["minibatch", "rollout"] = True,
        ent_coef: ScheduleLike = 0.0,
        vf_coef: ScheduleLike = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int | Literal["episode"] = -1,
        rollout_buffer_class: type[Any] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: ScheduleLike | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        value_clip: Literal["max", "plain"] = "max",
        recompute_advantages: bool = False,
        kl_control: str | KLControl = "stop",
        exploration: NoiseProcess | None = None,
        compile: bool | Literal["auto"] = "auto",
        n_threads: int | Literal["auto"] = "auto",
        sequence_length: int | Literal["auto"] = "auto",
        action_mask_key: str | None = None,
        normalize_observations: bool | dict[str, Any] = False,
        normalize_values: bool | dict[str, Any] = False,
        streams: Sequence[Stream] = (),
    ):
        #: Where the environments are: last observations, memory, held noise.
        self.position = Position()
        #: The rollout that is being collected, or was collected last.
        self.collector: Collector | None = None
        self.compilation = Compilation()
        #: What lasts from one update to the next.
        self.updater = Updater(self.compilation)
        self.call = Call()
        #: The processes that train this model together.
        self.ranks = Ranks.present()
        self.shared = SharedTraining(self.ranks) if self.ranks.several else SingleProcess()
        #: The weights that the policy is built with, by name and shape; ``None``: it is not built yet.
        self.built_layout: dict[str, th.Size] | None = None
        #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
        self._expects_masks = False
        self._warned_of_masks = self._warned_of_schedules = False
        #: Whether training observes through a ``VecNormalize``; ``None``: there was no training.
        self._trained_normalized: bool | None = None
        #: A folder of logs that only a file asks for; a loaded model writes nothing there.
        self._log_of_file: str | None = None
        # SB3's constructor uses these before they can be checked with the others.
        verbose = int(verbose) if isinstance(verbose, bool) else verbose
        require_int("verbose", verbose, 0)
        if not self.ranks.leads:
            verbose, tensorboard_log = 0, None
        if env is not None:
            env = self._checked_env(env, verbose)
        elif _init_setup_model:
            raise TypeError("env=None: pass an environment, or the id of one")
        check_device(device)
        if device == "auto" and isinstance(env, VecEnv) and isinstance(env.unwrapped, TensorVecEnv):
            device = env.unwrapped.device
        if self.ranks.several:
            use_own_gpu(utils.get_device(device))
        arguments: Any = policy, env, learning_rate, n_steps, gamma, gae_lambda, ent_coef, vf_coef, max_grad_norm
        super().__init__(  # type: ignore[misc]
            *arguments,  # of more types than SB3 declares
            use_sde=False,  # SB3 raises an error for gSDE with actions other than Box
            sde_sample_freq=sde_sample_freq,  # type: ignore[arg-type]
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=as_plain(rollout_buffer_kwargs, 1),
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=as_plain(policy_kwargs),
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=False,
        )
        self.use_sde = use_sde
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.clip_range = clip_range
        self.clip_range_vf = clip_range_vf
        self.normalize_advantage = normalize_advantage
        self.target_kl = target_kl
        self.value_clip = value_clip
        self.recompute_advantages = recompute_advantages
        self.kl_control = kl_control
        self.exploration = exploration
        self.compile = compile
        self.n_threads = n_threads
        self.sequence_length = sequence_length
        self.action_mask_key = action_mask_key
        self.normalize_observations = normalize_observations
        self.normalize_values = normalize_values
        self.streams = streams
        if _init_setup_model:
            self._setup_model()
            _ = self.rollout_buffer  # makes it, which checks its arguments
            self.built_layout = layout(self.policy)
            self.settings.warn_of_unequal_minibatches(self.n_envs)

    # --- setting up ------------------------------------------------------------------------------------------------

    @usual_settings()
    def _setup_model(self) -> None:
        # As in SB3, clip ranges are schedules once the model is set up. SB3 has no strings as learning rates.
        self.clip_range = schedule_of("clip_range", self.clip_range)
        self.clip_range_vf = schedule_of("clip_range_vf", self.clip_range_vf)
        if isinstance(self.learning_rate, str):
            self.learning_rate = self.lr_schedule
        settings = self.settings = Settings.of(self)
        vars(self).pop("rollout_buffer", None)
        settings.check_spaces(self.observation_space, self.action_space, self.env, self.n_envs)
        settings.check_device(self.device)
        self.seed = None if self.seed is None else int(self.seed)  # Gymnasium takes no integer of NumPy
        self.set_random_seed(self.seed)
        # Passed only if set: a policy class written for SB3 may not accept them.
        names = SHAPING - {"use_sde"}
        custom = {name: value for name in names if (value := getattr(settings, name)) not in (None, False, (), [])}
        self.policy = adapt_policy_class(self.policy_class)(
            self.observation_space,
            self.action_space,
            partial(value_at, name="learning_rate", schedule=self.lr_schedule),
            use_sde=self.use_sde,
            **custom,
            **self.policy_kwargs,
        ).to(self.device)
        optimizer = self.policy.optimizer
        if optimizer.state and self.device.type != "cpu":
            # State that was made with the optimizer stayed on the CPU.
            optimizer.load_state_dict(optimizer.state_dict())
        warn_of_overrides(self.policy_class)
        if self.ranks.several:
            # Weights are drawn alike, environments and noise are not; with a seed, those are a single process's.
            utils.set_random_seed(self.ranks.seed(self.seed))  # type: ignore[arg-type]
            if self.seed is not None and self.env is not None:
                seed_envs(self.env, (self.seed + self.ranks.rank * self.n_envs) % 2**32)
        self._maybe_recommend_cpu()

    def set_random_seed(self, seed: int | None = None) -> None:
        """As SB3's; environments that cannot be seeded give a warning."""
        with assigned(self, env=None):
            super().set_random_seed(seed)
        if self.env is not None and seed is not None:
            seed_envs(self.env, seed)

    def _refresh(self) -> Settings:
        """Read the arguments from the attributes, which you and callbacks may assign: at the start of ``learn``, at the
        start and end of a rollout, and at the start of an update.

        :raises ValueError: one is out of range, does not fit the environments, or cannot change any more
        """
        settings = Settings.of(self, self.settings)
        if settings is not self.settings:
            settings.check_unchanged(self.settings)
            settings.check_spaces(self.observation_space, self.action_space, self.env, self.n_envs)
            self.settings = settings
        self.rollout_buffer.gamma, self.rollout_buffer.gae_lambda = settings.gamma, settings.gae_lambda
        return self.settings

    @cached_property
    def rollout_buffer(self) -> RolloutBuffer:  # type: ignore[override]
        """Where rollouts are stored. It is made on first use: not while a file is read, which counts what is made."""
        return own_buffer_class(self.settings.rollout_buffer_class)(
            self.n_steps,
            self.observation_space,
            self.action_space,
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )

    @classmethod
    def _checked_env(cls, env: GymEnv | str, verbose: int) -> GymEnv:
        """The environment, made if it was an id, once its spaces are known to be supported."""
        made = as_vec_env(maybe_make_env(env, verbose))
        check_env(made)
        return made

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """As SB3's, also for ids of environments and for vector environments of Gymnasium."""
        made = PPO_Plus._checked_env(env, verbose)
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
        self.observation_space, self.action_space = env.observation_space, env.action_space
        if env.num_envs != self.n_envs:
            raise ValueError(
                f"env has n_envs={env.num_envs}, and the model was made for n_envs={self.n_envs}: pass as many, or "
                f"save the model, and load it with these: {type(self).__name__}.load(path, env=env)"
            )
        super().set_env(env, force_reset)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        # Environments in tensors and the policy are on the same device.
        if self.device.type != "cpu" and not isinstance(self.env, TensorVecEnv) and not has_convolutions(self.policy):
            warnings.warn(
                f"device={str(self.device)!r}: networks without convolutions are usually trained faster on a CPU, "
                'where training is also compiled by default: pass device="cpu", or compare the two',
                stacklevel=6,
            )

    @property
    def lr_schedule(self) -> Schedule:  # type: ignore[override]
        """The learning rate as a schedule, as in SB3; to assign it is to assign ``learning_rate``."""
        return schedule_of("learning_rate", self.learning_rate)  # type: ignore[return-value]

    @lr_schedule.setter
    def lr_schedule(self, schedule: Schedule) -> None:
        self.learning_rate = schedule

    def _setup_lr_schedule(self) -> None:
        """SB3's; there is nothing to set up."""

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        if policy_name not in self.policy_aliases:
            raise ValueError(f"policy={policy_name!r} is unknown: use one of {sorted(self.policy_aliases)}, or a class")
        return self.policy_aliases[policy_name]

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        require_number("total_timesteps", total_timesteps, 0, 1e18, above=True)
        if self.env is None:
            raise ValueError("the model has no environment to learn from: call set_env(env) first, or pass env to load")
        self._trained_normalized = bool(normalized_by(self.env))
        if self._log_of_file is not None and self.tensorboard_log is None:
            warnings.warn(
                f"the model was saved with tensorboard_log={self._log_of_file!r}, which is not below the working "
                "folder: pass tensorboard_log= to load, or set model.tensorboard_log, to log there again",
                stacklevel=3,
            )
        self._fit_buffer()
        if self.call.resumed is not None:
            self._plan_compiling(0)
            total_timesteps, reset_num_timesteps = self._total_timesteps - self.num_timesteps, False
        else:
            self._plan_compiling(total_timesteps)
            self.updater.n_skipped = 0
        begins = reset_num_timesteps or self._last_obs is None
        if begins:
            self.position.carry = self.position.stream_sums = None
        # A copy of the model may have been made elsewhere.
        self.position.carry = tree_map(lambda tensor: tensor.to(self.device), self.position.carry)
        self._join_ranks(total_timesteps)
        if self.verbose >= 1 and self.compilation.notice:
            print(self.compilation.notice)
        checked = CheckedEnvs(self.env, self._steps)
        with checked, checkpoint.logs_continued(self, tb_log_name):
            total, callbacks = super()._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar and self.ranks.leads
            )
        if begins:
            checked.check_reset(self._last_obs)
        self.ranks.require_same({"callback": self.call.in_all_processes})
        return total, callbacks

    def _plan_compiling(self, total_timesteps: int) -> None:
        planned = self.settings.gradient_steps(total_timesteps / self.ranks.size, self.n_envs)
        foreign = None if self.policy.has_params else f"{self.policy_class.__name__} overrides methods of SB3's policy"
        self.compilation.plan(self.settings.compile, planned, self.device, foreign)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        callback = super()._init_callback(callback, progress_bar)
        self.call.watch(callback)
        check_evaluations(self, self.call.callbacks)
        if self.policy._forward_hooks or self.policy._forward_pre_hooks:
            warnings.warn(
                "forward hooks on the policy itself are not called: register them on parts like policy.mlp_extractor",
                stacklevel=4,
            )
        return callback

    @property
    def compiled(self) -> CompileStatus:
        """Whether training is compiled, true or false; printed, it says why."""
        is_own = self._n_updates and type(self).train is not PPO_Plus.train
        return self.compilation.status(f"{type(self).__name__}.train" if is_own else None)

    def learn(
        self: SelfPPO_Plus,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "PPO_Plus",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPPO_Plus:
        """Train; the arguments are SB3's.

        :param total_timesteps: steps to take over all environments, at least; rollouts are completed
        :param callback: callback(s), called at every step
        :param log_interval: rollouts between two logs; ``None``: no logs
        :param tb_log_name: name of the run in TensorBoard
        :param reset_num_timesteps: start counting steps from 0
        :param progress_bar: show one
        :return: the model
        :raises FloatingPointError: an environment returned a number that is not finite, or losses stayed non-finite
        """
        settings = self._refresh()
        settings.check_schedules()
        settings.check_spaces(self.observation_space, self.action_space, self.env, self.n_envs)
        check_callback(callback)
        require_callable("compute_loss", self.compute_loss, 2, "define compute_loss(self, batch, coefficients)")
        require_int("log_interval", log_interval, 1, or_none=True)
        with self._running(total_timesteps) as call:
            total_timesteps, callback = self._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
            )
            # The loop is SB3's, and its names; a checkpoint keeps how many rollouts there have been.
            iteration = call.iteration
            callback.on_training_start(LazyLocals(locals()), globals())
            checkpoint.restore(self)
            while self.num_timesteps < total_timesteps:
                self._fit_buffer()
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):  # type: ignore[arg-type]
                    break
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
                self.train()
                call.iteration, call.between_rollouts = iteration, True
            callback.on_training_end()
            # What was collected before a callback stopped training is left out.
            call.between_rollouts = True
        return self

    @usual_settings()
    def pretrain(
        self: SelfPPO_Plus,
        dataset: Any,
        n_epochs: int = 50,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        validation_split: float = 0.1,
        patience: int | None = 5,
        progress_bar: bool = False,
    ) -> SelfPPO_Plus:
        """Clone demonstrations before :meth:`learn`: maximize the log-likelihood of their actions
        (:mod:`ppo_plus.rollout.demonstrations`). Where rewards and ends of episodes are known, the critic learns their
        returns. Afterwards the optimizer is reset, and the random generators of the process are unchanged.

        :param dataset: a dict with ``observations`` and ``actions``, and optionally ``rewards``, ``terminations``,
            ``truncations`` and ``action_masks``: a row per transition, in the order of the episodes; the return of
            :func:`ppo_plus.record_demonstrations`; a list of trajectories of imitation, or of such dicts; or a
            data set of Minari. Observations, actions and rewards are those of the environment, before ``VecNormalize``,
            and are added to the statistics by which they are normalized
        :param n_epochs: passes over the data, at most, at least 1
        :param batch_size: transitions per minibatch, at least 1; with memory, those of at least one episode
        :param learning_rate: constant, above 0
        :param validation_split: share of episodes (or transitions, if ends are unknown) to validate by, in ``[0, 1)``
        :param patience: epochs without a lower validation loss after which it ends, at least 1; ``None``: never. The
            weights of the lowest validation loss are kept
        :param progress_bar: show one
        :return: the model
        :raises ValueError: an argument is out of range, or a row does not fit the spaces: names the row
        :raises FloatingPointError: losses stayed non-finite
        """
        for name, count in {"n_epochs": n_epochs, "batch_size": batch_size}.items():
            require_int(name, count, 1)
        require_number("learning_rate", learning_rate, 0, above=True)
        require_number("validation_split", validation_split, 0, 1 - 1e-9)
        require_int("patience", patience, 1, or_none=True)
        self._refresh()
        warn_of_statistics(self._trained_normalized, self.env)
        threads = torch_threads(self._choose_threads())
        generators = th.random.fork_rng([self.device] if self.device.type == "cuda" else [])
        with threads, full_precision(), np.errstate(under="ignore"), generators:
            if self.seed is not None:
                th.manual_seed(self.seed)
            data = read_demonstrations(self, dataset)
            options = n_epochs, batch_size, learning_rate, validation_split, patience
            clone(self, data, *options, progress_bar and self.ranks.leads)
        self._last_obs = None
        if self.env is not None:
            self._trained_normalized = bool(normalized_by(self.env))
        return self

    def _fit_buffer(self) -> None:
        """Make the buffer again if ``n_steps`` was assigned, and store it where the environments' tensors are."""
        if self.rollout_buffer.buffer_size != self.n_steps:
            del self.rollout_buffer
        storage = self.device if isinstance(self.env, TensorVecEnv) else th.device("cpu")
        if self.rollout_buffer.storage != storage:
            self.rollout_buffer.store_on(storage)

    @contextmanager
    def _running(self, total_timesteps: int) -> Iterator[Call]:
        """A call of ``learn``: torch's threads, its progress, and leaving the other processes on an error."""
        keep_freed_memory()
        threads, underflow = torch_threads(self._choose_threads()), np.errstate(under="ignore")
        with threads, full_precision(), underflow:
            try:
                self.call = self.call.begun(total_timesteps)
                yield self.call
            except BaseException:
                self.ranks.leave()
                raise
            finally:
                self.call.close_bars()
                if self.call.resumed is None:  # otherwise it can be resumed again
                    # An error may have left a rollout unfinished.
                    self.call = Call(between_rollouts=self.call.between_rollouts)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was logged.

        :param iteration: rollouts so far in this call of ``learn``
        """
        single = self.env and self.env.unwrapped
        if isinstance(single, SupervisedVecEnv) and single.restarts:
            self.logger.record("faults/env_restarts", max(single.n_restarts, self.shared.n_restarts))
        if self.shared.waited is not None:
            self.logger.record("time/wait", self.shared.waited)
        super().dump_logs(iteration)

    def _choose_threads(self) -> int:
        """Torch's threads for training."""
        settings = self.settings
        if settings.n_threads != "auto":
            return int(settings.n_threads)
        # A loop over time computes with the transitions of one step at once.
        steps = settings.steps_per_sequence
        n_at_once = settings.batch_size // (1 if not steps or self.policy.compiles_encoder else steps)
        return th.get_num_threads() if worth_threads(self.policy, n_at_once, self.device) else 1

    def __setattr__(self, name: str, value: Any) -> None:
        # Training compiles by itself, and calls the parts of a policy: what `torch.compile` wraps would not be called.
        super().__setattr__(name, original(value) if name == "policy" else value)

    def __getstate__(self) -> dict[str, Any]:
        # Copies log nowhere, collect their next rollout from the start, have no environments in other processes, and no
        # callbacks, which refer to modules by the globals that they have been given.
        call = replace(self.call, callbacks=[], configured=[])
        state = vars(self) | {"_logger": Logger(None, []), "_custom_logger": False, "collector": None, "call": call}
        if self.env is not None and isinstance(self.env.unwrapped, (SubprocVecEnv, SupervisedVecEnv)):
            state["env"] = None
        normalize = self.get_vec_normalize_env()
        if normalize is not None:  # which leaves its environments out of copies
            state["normalized"] = state["env"] and normalize.venv, normalize.returns
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        venv, returns = state.pop("normalized", (None, None))
        vars(self).update(state)
        normalize = self.get_vec_normalize_env()
        if venv is not None and vars(normalize).get("venv") is None:  # a shallow copy has the same object
            normalize.set_venv(venv)  # type: ignore[union-attr]
        if normalize is not None:
            vars(normalize).update({"venv": None, "class_attributes": {}} | vars(normalize) | {"returns": returns})

    # SB3 and callbacks read and write these two of the position.

    _last_obs, _last_episode_starts = _of_position("obs"), _of_position("starts")

    def _join_ranks(self, total_timesteps: int) -> None:
        """Start training with the other processes, with the weights and statistics of rank 0.

        :raises RanksError: their settings or networks differ
        """
        if not isinstance(self.shared, SharedTraining):
            return
        if not self.ranks.leads:
            # The caller of ``load`` may have said otherwise.
            self.verbose, self.tensorboard_log = 0, None
        facts = self._common_facts()
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        facts |= {"n_envs": self.n_envs, "num_timesteps": self.num_timesteps, "total_timesteps": total_timesteps}
        self.ranks.require_same(facts | spaces | {"kl_control": self.updater.kl_memory and self.updater.kl_memory[1]})
        self.shared.begin(self.env, self.policy)  # type: ignore[arg-type]

    def _common_facts(self) -> dict[str, Any]:
        """What must be the same in processes that train together: comparable arguments, and what is frozen."""
        may_differ, kinds = {"seed", "tensorboard_log", "n_threads", "compile"}, (int, float, str)
        arguments = vars(self.settings).items()
        facts = {name: value for name, value in arguments if name not in may_differ and isinstance(value, kinds)}
        parts = (*kinds, tuple)
        streams = [[value for value in vars(stream).values() if isinstance(value, parts)] for stream in self.streams]
        return facts | {"frozen weights": frozen(self.policy), "streams": streams}

    # --- collecting ------------------------------------------------------------------------------------------------

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,  # type: ignore[override]
        n_rollout_steps: int,
    ) -> bool:
        """As SB3's: fill the buffer with steps of the current policy; ``False`` if the callback stopped training."""
        if getattr(callback, "model", None) is None:
            raise RuntimeError("the callback is not initialized: call learn, or first _setup_learn, which returns it")
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        # A callback may use the environments here, write a checkpoint, or assign arguments.
        callback.on_rollout_start()
        self._refresh()
        self.call.between_rollouts = False
        if self._last_obs is None:
            env = self.env  # type: ignore[assignment]
        # Without callbacks, nothing reads a step's values or moves weights between steps.
        watched = not (isinstance(callback, ConvertCallback) and callback.callback is None)
        # SB3's wrappers of environments in tensors work in NumPy.
        kind = TensorCollector if isinstance(env, TensorVecEnv) else Collector
        plan = self._plan(env, rollout_buffer, watched)
        is_first = self.collector is None
        self.collector = collector = kind(plan, env, self.position, self._steps())
        while (n_steps := collector.n_steps) < n_rollout_steps:
            step = collector.step()
            self.num_timesteps += env.num_envs * self.ranks.size
            if watched:
                callback.update_locals(locals() | collector.locals())
            if not (answer := callback.on_step()):
                if answer is None:
                    warnings.warn("the callback returned None, which ends training: return True", stacklevel=3)
                collector.leave()
                return self._synchronize(keep_training=False)
            self._update_info_buffer(step.infos, step.dones)
            collector.store(self.env)  # type: ignore[arg-type]
        self._refresh()
        if is_first and not self._trained_normalized:
            warn_of_bounds(rollout_buffer.observations, self.observation_space)
        report = collector.finish()
        self._update_info_buffer(report.infos)
        for name, value in report.log.items():
            self.logger.record_mean(name, value)

        keep_training = self._synchronize(keep_training=True)
        if self.policy.streams is not None:
            self._finish_streams(collector, keep_training)
        collector.estimate(rollout_buffer)
        recomputes = self.settings.recompute_advantages
        with following_rewards(rollout_buffer, collector.estimate) if recomputes else nullcontext():
            callback.update_locals(locals())
            callback.on_rollout_end()
        return keep_training

    @interrupts_wait()
    def _finish_streams(self, collector: Collector, keep_training: bool) -> None:
        """Complete the streams of a rollout, of all processes if they all have one."""
        buffer, position = self.rollout_buffer, self.position
        pool = (self.shared if keep_training else SingleProcess()).total
        position.stream_sums, means = finish(self.policy, buffer, position.stream_sums, collector.dones(), pool)
        for name, mean in means.items():
            self.logger.record(f"rollout/ep_{name}_mean", mean)

    def _plan(self, env: VecEnv, rollout_buffer: RolloutBuffer, watched: bool) -> RolloutPlan:
        """What the rollout that begins is collected with."""
        masks = find_masks(env, self.policy.distribution.mask_layout, self.settings.action_mask_key)
        self._expects_masks = masks is not None and masks.key is None
        act = prepare_act(self.policy, masks, self.compilation, may_move=watched)
        length, window = self.settings.steps_per_sequence, self._stats_window_size
        return RolloutPlan(self.policy, act, masks, rollout_buffer, self.device, self.sde_sample_freq, length, window)

    def _steps(self) -> int:
        """How many steps each environment has taken."""
        return self.num_timesteps // (self.n_envs * self.ranks.size)

    def _update_info_buffer(self, infos: Sequence[dict[str, Any]], dones: Any = None) -> None:
        if ended := self.shared.record(of_ended(infos, dones)):
            super()._update_info_buffer(ended, np.ones(len(ended), dtype=bool))

    def _synchronize(self, keep_training: bool) -> bool:
        """End a rollout in all processes: share episodes, statistics and timesteps.

        :param keep_training: whether this process wants to continue
        :return: whether all of them do
        """
        keep_training, infos, self.num_timesteps = self.shared.synchronize(
            self.env, keep_training, self._stats_window_size, self.num_timesteps, self._common_facts, self.policy
        )
        super()._update_info_buffer(infos, np.ones(len(infos), dtype=bool))
        return keep_training

    # --- training --------------------------------------------------------------------------------------------------

    @usual_settings()
    def train(self) -> None:
        """Improve the policy with the rollout that was collected: ``n_epochs`` passes over it in minibatches.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        settings, policy, valid = self._refresh(), self.policy, self.rollout_buffer.valid
        if valid is not None and not valid.any() and not self.ranks.several:
            self.call.between_rollouts = True
            return  # all steps of the rollout only reset
        policy.set_training_mode(True)
        self._normalize(self.rollout_buffer)
        self._count_returns()
        numbers = settings.at(self._current_progress_remaining)
        self.shared.scheduled = numbers
        control, reads = settings.control, Reads(objects={"loss": settings.loss}, changing=[self])
        reduction = self.shared.reduction
        rule = UpdateRule(policy, self.compute_loss, control, settings.max_grad_norm, reduction, reads, policy.streams)
        utils.update_learning_rate(policy.optimizer, numbers["learning_rate"])
        if type(self)._update_learning_rate is not OnPolicyAlgorithm._update_learning_rate:
            self._update_learning_rate(policy.optimizer)
        scaled = numbers if policy.value_normalizer is None else policy.value_normalizer.in_units_of_values(numbers)
        with self.updater.start(rule, scaled, self.device) as update:
            for epoch in self._epochs():
                for rollout, indices in epoch:
                    update.step(rollout, indices)
                    if update.stopped:
                        break
                update.end_epoch()
                if update.stopped:
                    break
        self.shared.end_update(policy)
        self._count_observations()
        self._n_updates += update.n_epochs
        self._log_update(update, numbers)
        self.call.between_rollouts = True

    def _epochs(self) -> Iterable[Iterable[Any]]:
        """Passes over the rollout in minibatches, which are pairs of the rollout and the rows of it."""
        settings, buffer = self.settings, self.rollout_buffer
        normalizes = settings.loss.normalize_advantage
        rollout = self.policy.prepare_rollout(buffer.on_device())
        if self.policy.streams is not None and self.policy.streams.need_next_observations:
            rollout = rollout._replace(next_observations=buffer.column("final_observations"))
        if settings.recompute_advantages:
            # Copies, since they may be the buffer's.
            rollout = rollout._replace(advantages=rollout.advantages.clone(), returns=rollout.returns.clone())
        epochs: Iterable[Any] = (buffer.minibatches(settings.batch_size, rollout) for _ in range(settings.n_epochs))
        if settings.recompute_advantages:
            epochs = reestimated(epochs, rollout, self.policy, buffer, self._estimate)
        return self.shared.epochs(epochs, normalizes)

    def _estimate(self, buffer: RolloutBuffer) -> None:
        """Fill advantages and returns of a copy of the rollout, given its values."""
        assert self.collector is not None
        self.collector.estimate(buffer)
        self._normalize(buffer)

    def _normalize(self, buffer: RolloutBuffer) -> None:
        """Combine advantages with those of streams, and normalize them over the whole rollout, if that is asked for."""
        if self.policy.streams is not None:
            buffer.combine_advantages(*self.policy.streams.weights(self._current_progress_remaining))
        if self.settings.normalize_advantage == "rollout":
            self.shared.normalize_advantages(buffer)

    @interrupts_wait()
    def _count_returns(self) -> None:
        """Add the returns of the rollout to the moments that values are normalized by, if they are."""
        policy = self.policy
        if policy.value_normalizer is not None:
            moments = Moments.of(self.rollout_buffer.transitions("returns"))
            last = [policy.value_net, *([policy.streams.head] if policy.streams else [])]
            policy.value_normalizer.rescale(last, self.shared.total(moments))

    @interrupts_wait()
    def _count_observations(self) -> None:
        """Add the observations of the rollout to the moments that observations are normalized by, if they are."""
        normalizer = self.policy.observation_normalizer
        if normalizer is not None:
            moments = normalizer.moments_of(self.rollout_buffer.transitions("observations"))
            normalizer.add(self.shared.total(moments))

    def _log_update(self, update: Update, numbers: dict[str, Any]) -> None:
        if self.verbose >= 1 and not update.state.running:
            print(f"Early stopping at step {update.n_epochs - 1} due to reaching max kl: {update.kl:.2g}")
        buffer = self.rollout_buffer
        logged = update.metrics(self.policy)
        names = ["", *(f"{stream.name}_" for stream in self.streams)]
        learned = ... if buffer.valid is None else th.from_numpy(buffer.valid)
        for name, part in zip(names, (buffer, *buffer.streams), strict=True):
            columns = read([part.stored(kind)[learned].flatten() for kind in ("values", "returns")])
            values, returns = (column.numpy() for column in columns)
            logged[f"{name}explained_variance"] = self.shared.explained_variance(values, returns)
        if self.policy.streams is not None:
            weights, _ = self.policy.streams.weights(self._current_progress_remaining)
            logged |= {f"{name}weight": weight for name, weight in zip(names[1:], weights, strict=True)}
        logged |= {name: numbers[name] for name in ("clip_range", "clip_range_vf") if numbers[name] is not None}
        for name, value in logged.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def compute_loss(self, batch: Batch, coefficients: Coefficients) -> Losses:
        r"""The loss of one minibatch: **the place to override** to change the objective.

        By default :class:`ppo_plus.PPOLoss`, with the options that the arguments ask for.

        It is pure: no logging, no ``.item()``, no optimizer; what should be logged is returned as a diagnostic. What
        it reads besides its arguments and the weights must not change during an update.

        :param batch: the minibatch
        :param coefficients: weights and bounds at this point of training
        :return: total loss and diagnostics
        """
        values, params = self.policy.evaluate_batch(batch)
        return self.settings.loss(self.policy.distribution, values, params, batch, coefficients)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # The last rollout is completed even beyond the total; schedules end at 0 nonetheless.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    # --- playing -----------------------------------------------------------------------------------------------------

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
                "chooses among all actions. Pass action_masks=, or use model.evaluate or sb3_contrib's evaluate_policy",
                stacklevel=2,
            )
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks=action_masks)

    @np.errstate(under="ignore")
    def evaluate(
        self, n_eval_episodes: int = 10, env: GymEnv | None = None, render: bool = False
    ) -> tuple[float, float]:
        """Mean and standard deviation of the return, with deterministic actions.

        It does not disturb training: normalization statistics stay unchanged, and if the training environment is used,
        nothing in it records the evaluated episodes, and new episodes start before training continues.

        :param n_eval_episodes: number of episodes, at least 1
        :param env: where to play; by default the training environment. Observations are normalized with the training
            environment's statistics if that is a ``VecNormalize``; rewards are those before any ``VecNormalize``
        :param render: whether to show it
        :return: mean and standard deviation over episodes
        :raises ValueError: no environment, one with other spaces, or no episode asked for
        :raises FloatingPointError: an observation or a reward is not finite
        """
        return evaluate(self, n_eval_episodes, env, render)

    # --- saving ------------------------------------------------------------------------------------------------------

    def save(
        self,
        path: str | Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model, in a file that cannot run code; the other arguments are SB3's. An earlier file stays until
        the new one is complete.

        What no file can describe, such as a lambda, is left out with a warning that names it, and then passed to
        :meth:`load`; see :func:`ppo_plus.register`.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :param exclude: attributes to leave out
        :param include: attributes to keep although ``exclude`` has them
        :raises OSError: it cannot be written
        :raises ValueError: the weights, buffers or optimizer differ from those that the policy is built with
        """
        save_model(self, path, exclude, include)

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """As SB3's: a dict such as ``get_parameters`` returns, or what :meth:`load` loads."""
        if not isinstance(load_path_or_dict, Mapping):
            generators = get_generators()  # which a model that is built seeds
            try:
                load_path_or_dict = type(self).load(load_path_or_dict, device="cpu").get_parameters()
            finally:
                set_generators(generators)
        unknown = load_path_or_dict.keys() - {*self._get_torch_save_params()[0]}
        if unknown:  # SB3 would follow the name through attributes
            raise ValueError(f"the parameters have {min(unknown)[:100]!r}, which {type(self).__name__} does not have")
        super().set_parameters(dict(load_path_or_dict), exact_match, device)
        check_optimizer_state(self.policy.optimizer)

    def absorb_normalization(self: SelfPPO_Plus, source: str | Path | VecNormalize | None = None) -> SelfPPO_Plus:
        """Move the statistics of a ``VecNormalize`` into the policy. From then on it takes raw observations, and acts
        on them as it did on normalized ones; a ``VecNormalize`` of the model normalizes rewards at most.

        :param source: a ``VecNormalize``, or a file of its statistics, ours or SB3's; ``None``: the model's own
        :return: the model, with ``normalize_observations`` as the ``VecNormalize`` was
        :raises ValueError: the policy normalizes already, the statistics do not fit, other wrappers are around the
            model's ``VecNormalize``, or images are normalized
        """
        own = self.get_vec_normalize_env()
        outermost(self.env)  # raises an error if other wrappers are around it
        self.normalize_observations = move_into(self.policy, own if source is None else source)
        self.built_layout = layout(self.policy)
        if own is not None:
            own.norm_obs, self._last_obs = False, None
        self._trained_normalized = False
        self.settings = Settings.of(self)
        return self

    def to_sb3(self, path: str | Path | io.BufferedIOBase) -> None:
        """Save the model so that SB3's ``PPO.load`` reads it: the networks, the optimizer and SB3's arguments. With an
        LSTM, sb3-contrib's ``RecurrentPPO`` reads it, and with action masks its ``MaskablePPO``.

        Statistics of observations are written beside it, as ``NAME_vecnormalize.pkl`` for SB3's ``VecNormalize.load``.

        :param path: where; without a suffix, ``.zip`` is added. Or an open file
        :raises ImportError: sb3-contrib is needed and missing
        :raises ValueError: they have no such policies, spaces or exploration
        :raises OSError: it cannot be written
        """
        to_sb3(self, path)

    def export(self, path: str | Path, *, normalization: Normalization = "environment") -> Path:
        """Export the policy, to act by its mode as :meth:`predict` does, without this package: see :doc:`/deploying`.

        Observations are those before ``VecNormalize`` and ``VecTransposeImage``, which become a part of the policy, and
        actions those of the environment. The file is compared with :meth:`predict` before it is kept.

        :param path: a name that ends in ``.onnx``; a program of ``torch.export`` (``.pt2``) and a description
            (``.json``) of inputs and outputs are written beside it
        :param normalization: ``"environment"``: observations are normalized as in the model's environment; ``None``:
            they are not, or outside of the policy
        :return: the path
        :raises ImportError: the extra is missing: ``pip install "ppo_plus[export]"``
        :raises ValueError: whether observations are normalized is unknown, torch cannot export a layer, or the policy
            class overrides methods of SB3's policy
        :raises RuntimeError: what was exported acts otherwise than :meth:`predict`
        :raises OSError: it cannot be written
        """
        return export(self, path, normalization)

    def _excluded_save_params(self) -> list[str]:
        made_again = ["settings", "built_layout", "_warned_of_masks", "collector", "call", "ranks", "shared"]
        of_no_use = ["action_noise", "_last_original_obs", "_log_of_file", "_warned_of_schedules"]
        return [*super()._excluded_save_params(), *made_again, *of_no_use]

    @classmethod
    def from_sb3(
        cls: type[SelfPPO_Plus],
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        trust_pickle: bool = False,
        custom_objects: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> SelfPPO_Plus:
        """Take over a trained SB3 ``PPO``, or an sb3-contrib ``MaskablePPO`` or ``RecurrentPPO``.

        Training continues: weights, optimizer, hyperparameters and counters are copied; ``value_clip`` is ``"plain"``.

        :param path: a saved model
        :param env: the environment to train in
        :param device: the device to compute on
        :param trust_pickle: unpickle the file, which runs code in it. Without it, what the model needs is read without
            running anything if possible, and else has to be passed in ``kwargs``
        :param custom_objects: attributes in place of those in the file, as in SB3's ``load``
        :param kwargs: arguments to change on the way
        :raises TypeError: another model, or there is no such argument
        :raises ValueError: the file is damaged, or needs to be trusted
        """
        changes = changed_attributes(cls, kwargs)
        return from_sb3(cls, path, env, device, changes, custom_objects, trust_pickle)  # type: ignore[no-any-return]

    @classmethod
    def from_hub(
        cls: type[SelfPPO_Plus], repo: str, env: GymEnv | None = None, filename: str | None = None, **kwargs: Any
    ) -> SelfPPO_Plus:
        """Load a model of the Hugging Face Hub, which ``ppo-plus push``, SB3 or rl_zoo3 uploaded. Nothing in its files
        is run. Statistics of a ``VecNormalize`` become a part of the policy, which takes raw observations then.

        :param repo: ``"user/name"``
        :param env: the environment to train in, which does not normalize observations
        :param filename: the model's ``.zip``, if the repository has several
        :param kwargs: further arguments of :meth:`load`
        :raises ImportError: the extra is missing: ``pip install "ppo_plus[hub]"``
        :raises ConnectionError: the hub has no such repository, or cannot be reached, and its files are not cached
        :raises ValueError: as :meth:`load`, or there is no such model
        """
        path = fetch(repo, filename)
        sources = statistics_path(path), path.with_name("vec_normalize.pkl")
        source = next((one for one in sources if one.is_file() and read_statistics(one)["norm_obs"]), None)
        with warnings.catch_warnings():
            if source is not None:
                warnings.filterwarnings("ignore", "the model was trained on observations that were normalized")
            model = cls.load(path, env, **kwargs)
        return model if source is None else model.absorb_normalization(source)

    def save_checkpoint(self, folder: str | Path) -> Path:
        """Write all that training needs to resume exactly, which :meth:`resume` reads.

        During ``learn``, the callback :class:`ppo_plus.Checkpoints` calls it.

        :param folder: the folder; the file is called ``checkpoint_<timesteps>.zip``
        :return: the file
        :raises RuntimeError: a rollout is not finished
        :raises OSError: it cannot be written
        """
        return checkpoint.write(folder, checkpoint.take(self))

    @classmethod
    def resume(
        cls: type[SelfPPO_Plus], folder: str | Path, env: GymEnv, device: th.device | str = "auto", **kwargs: Any
    ) -> SelfPPO_Plus:
        """Resume from a checkpoint exactly. If it was written during ``learn``, the next call of ``learn`` continues
        that one: pass the same arguments.

        Environments resume in their episodes (:mod:`ppo_plus.envs.resumable.state`), or start new ones with a warning.

        :param folder: a folder of checkpoints, of which the newest valid one is read, or the file of one
        :param env: environments made as those were
        :param device: the device to compute on
        :param kwargs: arguments to change, such as ``verbose``; those that change more than what is shown make another
            run. Pass ``tensorboard_log`` to continue TensorBoard's files: checkpoints do not contain the folder
        :return: the model
        :raises TypeError: there is no such argument
        :raises FileNotFoundError: there is no checkpoint
        :raises ValueError: it is damaged, or the environments are others
        """
        return checkpoint.resume(cls, folder, env, device, changed_attributes(cls, kwargs))  # type: ignore[no-any-return]

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfPPO_Plus],
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust_pickle: bool = False,
        **kwargs: Any,
    ) -> SelfPPO_Plus:
        """Load a saved model; the arguments are SB3's. A model that SB3's ``PPO`` saved is loaded by
        :meth:`from_sb3`.

        Nothing in the file is run, and it can name classes of ppo_plus, SB3, sb3-contrib, torch and Gymnasium only, of
        the program's own modules, and those that were given to :func:`ppo_plus.register`.

        :param path: what :meth:`save` wrote, or SB3
        :param env: the environment to train in
        :param device: the device to compute on
        :param custom_objects: attributes in place of those in the file
        :param print_system_info: print with which versions it was saved
        :param force_reset: start new episodes, if an environment is given
        :param trust_pickle: read SB3's files with pickles as SB3 does, which runs their code
        :param kwargs: arguments to change, such as ``tensorboard_log``, which is saved only if below the working folder
        :raises TypeError: there is no such argument
        :raises ValueError: the file is damaged, lacks something, or would have to be trusted
        """
        if print_system_info:
            print("== CURRENT SYSTEM INFO ==")
            get_system_info()
        changes, objects = changed_attributes(cls, kwargs), custom_objects or {}
        if is_container(path):
            model = load_model(cls, path, env, device, objects, print_system_info, force_reset, changes)
        else:
            model = from_sb3(cls, path, env, device, changes, objects, trust_pickle, print_system_info, force_reset)
        starts = model._last_episode_starts
        if env is not None and not force_reset and starts is not None and len(starts) != model.n_envs:
            raise ValueError(
                f"force_reset=False continues the episodes of the {len(starts)} environments that the model was saved "
                f"with, but env has {model.n_envs}: pass as many, or leave it out"
            )
        return model  # type: ignore[no-any-return]
