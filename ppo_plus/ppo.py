"""``PPO_Plus``: proximal policy optimization for Stable-Baselines3, from rollouts to weights."""

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.logger import HumanOutputFormat
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus import process
from ppo_plus.call import Call, check_callback
from ppo_plus.compiling.compiled import Compilation, CompileStatus
from ppo_plus.compiling.constants import Reads
from ppo_plus.compiling.torch_private import original
from ppo_plus.demonstrations.cloning import clone
from ppo_plus.distributed.shared import SingleProcess, shared_training
from ppo_plus.envs import normalization
from ppo_plus.envs.checked_envs import CheckedEnvs, of_ended
from ppo_plus.envs.make_vec import checked_env
from ppo_plus.envs.tensors.vec_env import TensorVecEnv
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.formulas.schedules import Schedule, ScheduleLike, value_at
from ppo_plus.policy.adapter import build_policy, without_contrib
from ppo_plus.policy.masking import Masks, find_masks
from ppo_plus.policy.observations import GivenObservation
from ppo_plus.policy.streams import Stream
from ppo_plus.public import MODULES
from ppo_plus.require import require_int, require_number
from ppo_plus.rollout.buffer import RolloutBuffer, own_buffer_class
from ppo_plus.rollout.collector import Collector, Position, RolloutPlan, prepare_act
from ppo_plus.rollout.evaluation import check_evaluations, evaluate
from ppo_plus.rollout.tensor_collector import LazyLocals, TensorCollector
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.model import layout
from ppo_plus.saving.model_files import ModelFiles
from ppo_plus.settings import Settings, schedule_of
from ppo_plus.update.minibatch import Batch, UpdateRule, read
from ppo_plus.update.update import Trainer, Update, interrupts_wait, torch_defaults


class PPO_Plus(ModelFiles):
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
        current weights (:meth:`ppo_plus.RolloutBuffer.epochs`)
    :param kl_control: what ``target_kl`` does. ``"stop"``: end the update before a step whose sampled KL exceeds 1.5
        times the target, as SB3; ``"penalty"``: add β times the exact KL to the loss, β adapted; ``"adaptive_lr"``:
        scale the learning rate; or a :class:`ppo_plus.KLControl`
    :param exploration: a noise process (:mod:`ppo_plus.formulas.exploration`) in place of ``use_sde``
    :param compile: compile acting and updating. ``"auto"``: on a CPU, from the call of ``learn`` on with which enough
        gradient steps are planned to save time (:data:`ppo_plus.compiling.compiled.WORTH_COMPILING`); ``True``: always,
        with an error if it cannot; ``False``: never. :attr:`compiled` says which
    :param n_threads: torch's threads during ``learn``. ``"auto"``: one on a CPU where the work per minibatch is small,
        so that threads would mostly wait for each other; else those that torch is set to
    :param sequence_length: with memory: steps through which gradients flow back. Rollouts are cut into sequences of so
        many steps, each starting from what was remembered there. It divides ``n_steps`` and ``batch_size``.
        ``"auto"``: the largest number up to :data:`ppo_plus.settings.MAX_AUTO_SEQUENCE` that does
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
        self.trainer = Trainer(self.compilation)
        self.call = Call()
        #: The processes that train this model together.
        self.shared = shared_training()
        self.ranks = self.shared.ranks
        self._warned_of_masks = False
        if not self.ranks.leads:
            verbose, tensorboard_log = 0, None
        if env is not None:
            env = checked_env(env, verbose)
        elif _init_setup_model:
            raise TypeError("env=None: pass an environment, or the id of one")
        process.check_device(device)
        if device == "auto" and isinstance(env, VecEnv) and isinstance(env.unwrapped, TensorVecEnv):
            device = env.unwrapped.device
        self.shared.use_device(utils.get_device(device))
        policy = without_contrib(policy)
        arguments: Any = env, learning_rate, n_steps, gamma, gae_lambda, ent_coef, vf_coef, max_grad_norm
        super().__init__(  # type: ignore[misc]
            self.policy_aliases.get(policy, policy),  # type: ignore[arg-type]  # SB3 would refuse a name with less help
            *arguments,  # of more types than SB3 declares
            use_sde=False,  # SB3 raises an error for gSDE with actions other than Box
            sde_sample_freq=sde_sample_freq,  # type: ignore[arg-type]
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
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
            self.settings.check_kl(self.n_envs)
            self.settings.warn_of_unequal_minibatches(self.n_envs)

    # --- learn -------------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "PPO_Plus",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
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
        settings.check_fit(self.env, self.n_envs)
        settings.check_kl(self.n_envs)  # a loaded model may have other environments
        check_callback(callback)
        require_int("log_interval", log_interval, 1, or_none=True)
        self.call = self.call.begun(total_timesteps)
        with process.computing(settings.threads(self.policy, self.device)), self.call.running(self) as call:
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
        self._trained_normalized = bool(normalization.normalized_by(self.env))
        self._fit_buffer()
        continues = self.call.resumed is not None
        planned = 0 if continues else self.settings.gradient_steps(total_timesteps / self.ranks.size, self.n_envs)
        foreign = None if self.policy.has_params else f"{self.policy_class.__name__} overrides methods of SB3's policy"
        self.compilation.plan(self.settings.compile, planned, self.device, foreign)
        if not continues:
            self.trainer.n_skipped = 0
        begins = (reset_num_timesteps and not continues) or self._last_obs is None
        self.position.begin(self.device, forget=begins)
        if not self.ranks.leads:
            # The caller of ``load`` may have said otherwise.
            self.verbose, self.tensorboard_log = 0, None
        names = ("observation_space", "action_space", "n_envs", "num_timesteps")
        facts = {name: getattr(self, name) for name in names} | {"total_timesteps": total_timesteps}
        facts["kl_control"] = self.trainer.kl_memory and self.trainer.kl_memory[1]
        self.shared.begin(self, self.settings.shared_by_processes | facts)
        if (self.verbose >= 1 or progress_bar) and self.compilation.notice:
            print(self.compilation.notice)
        checked = CheckedEnvs(self.env, self._steps)
        with checked:
            total, _ = super()._setup_learn(total_timesteps, None, reset_num_timesteps, tb_log_name)
        for table in self.logger.output_formats:
            if isinstance(table, HumanOutputFormat) and not self._custom_logger:
                table.max_length = 99  # cut off, long names such as those of streams may be the same
        if begins:
            checked.check_reset(self._last_obs)
        self.shared.share_statistics(self.get_vec_normalize_env())
        # Out of the context: they may copy the environments.
        callbacks = self._init_callback(callback, progress_bar and self.ranks.leads)
        check_evaluations(self, self.call.callbacks)
        self.ranks.require_same({"callback": self.call.in_all_processes})
        return total, callbacks

    def _fit_buffer(self) -> None:
        """Make the buffer again if ``n_steps`` was assigned, and store it where the environments' tensors are."""
        if self.rollout_buffer.stored("rewards").shape != (self.n_steps, self.n_envs):
            del self.rollout_buffer
        storage = self.device if isinstance(self.env, TensorVecEnv) else th.device("cpu")
        if self.rollout_buffer.storage != storage:
            self.rollout_buffer.store_on(storage)

    def _refresh(self) -> Settings:
        """Read the arguments from the attributes, which you and callbacks may assign: at the start of ``learn``, at the
        start and end of a rollout, and at the start of an update. ``learn`` alone uses ``n_threads`` and ``compile``.

        :raises ValueError: one is out of range, does not fit the environments, or cannot change any more
        """
        settings = Settings.of(self, self.settings)
        if settings is not self.settings:
            settings.check_unchanged(self.settings)
            settings.check_fit(self.env, self.n_envs)
            settings.check_kl(self.n_envs)
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

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was logged.

        :param iteration: rollouts so far in this call of ``learn``
        """
        for name, value in self.shared.metrics(self.env).items():
            self.logger.record(name, value)
        super().dump_logs(iteration)

    # --- collecting --------------------------------------------------------------------------------------------------

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,  # type: ignore[override]
        n_rollout_steps: int,
    ) -> bool:
        """As SB3's: fill the buffer with steps of the current policy; ``False`` if the callback stopped training."""
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        # A size that a callback assigns now is that of the next rollout.
        length = self._refresh().steps_per_sequence
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
        plan = self._plan(env, rollout_buffer, length, watched)
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
        ended, logged = collector.finish()
        self._update_info_buffer(ended)
        for name, value in logged.items():
            self.logger.record_mean(name, value)

        keep_training = self._synchronize(keep_training=True)
        if self.policy.streams is not None:
            shared = self.shared if keep_training else SingleProcess(self.ranks)
            with interrupts_wait():
                means = collector.complete_streams(shared.total)
            for name, mean in means.items():
                self.logger.record(f"rollout/ep_{name}_mean", mean)
        values = collector.estimate(rollout_buffer)  # noqa: F841 - callbacks read it
        callback.update_locals(locals())
        callback.on_rollout_end()
        if self.settings.recompute_advantages:
            collector.estimate(rollout_buffer)  # from the rewards that callbacks leave
        return keep_training

    def _plan(self, env: VecEnv, rollout_buffer: RolloutBuffer, length: int, watched: bool) -> RolloutPlan:
        """What the rollout that begins is collected with."""
        masks = find_masks(env, self.policy.distribution.mask_layout, self.settings.action_mask_key)
        self._expects_masks = masks is not None and masks.key is None
        act = prepare_act(self.policy, masks, self.compilation, may_move=watched)
        window = self._stats_window_size
        return RolloutPlan(self.policy, act, masks, rollout_buffer, self.device, self.sde_sample_freq, length, window)

    def _synchronize(self, keep_training: bool) -> bool:
        """End a rollout in all processes: share episodes, statistics and timesteps.

        :param keep_training: whether this process wants to continue
        :return: whether all of them do
        """
        facts = self.settings.shared_by_processes
        keep_training, infos, self.num_timesteps = self.shared.synchronize(self, facts, keep_training)
        super()._update_info_buffer(infos, np.ones(len(infos), dtype=bool))
        return keep_training

    def _update_info_buffer(self, infos: Sequence[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        if ended := self.shared.record(of_ended(infos, dones)):
            super()._update_info_buffer(ended, np.ones(len(ended), dtype=bool))

    def _steps(self) -> int:
        """How many steps each environment has taken."""
        return self.num_timesteps // (self.n_envs * self.ranks.size)

    # --- training ----------------------------------------------------------------------------------------------------

    @torch_defaults()
    def train(self) -> None:
        """Improve the policy with the rollout that was collected: ``n_epochs`` passes over it in minibatches.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        settings, policy = self._refresh(), self.policy
        if self.shared.has_nothing_to_learn(self.rollout_buffer.valid):
            self.call.between_rollouts = True
            return  # all steps of the rollout only reset
        if self.collector is None and type(self).collect_rollouts is not PPO_Plus.collect_rollouts:
            masks = find_masks(self.env, policy.distribution.mask_layout, settings.action_mask_key)  # type: ignore[arg-type]
            lacks_masks = masks is not None and self.rollout_buffer.stored("masks") is None
            resets = self.rollout_buffer.valid is None and getattr(self.env, "autoreset", None)
            settings.check_copied_loop(type(self).__name__, lacks_masks, resets == AutoresetMode.NEXT_STEP)
        policy.set_training_mode(True)
        # The advantages of all rewards together, and the scale on which values are learned.
        self._normalize(self.rollout_buffer)
        with interrupts_wait():
            policy.before_update(self.rollout_buffer.transitions, self.shared.total)
        numbers = settings.at(self._current_progress_remaining)
        control, reduction = settings.control, self.shared.reduction
        reads = Reads(objects={"loss": settings.loss, "batch_size": settings.batch_size}, changing=[self])
        rule = UpdateRule(policy, self.compute_loss, control, settings.max_grad_norm, reduction, reads, policy.streams)
        if getattr(self._update_learning_rate, "__func__", None) is OnPolicyAlgorithm._update_learning_rate:
            utils.update_learning_rate(policy.optimizer, numbers["learning_rate"])
        else:
            self._update_learning_rate(policy.optimizer)
        scaled = numbers if policy.value_normalizer is None else policy.value_normalizer.in_units_of_values(numbers)
        estimate = self._estimate if settings.recompute_advantages else None
        epochs = self.rollout_buffer.epochs(policy, settings.n_epochs, settings.batch_size, estimate)
        # The K epochs of minibatches of algorithm 1, until the KL control stops them.
        with self.trainer.start(rule, scaled, self.device) as update:
            for epoch in self.shared.epochs(epochs, settings.loss.normalize_advantage):
                update.run(epoch)
                if update.stopped:
                    break
        with interrupts_wait():
            self.shared.end_update(policy)
            policy.after_update(self.rollout_buffer.transitions, self.shared.total)
        self._n_updates += update.n_epochs
        self._log_update(update, numbers)
        self.call.between_rollouts = True

    def _estimate(self, buffer: RolloutBuffer) -> None:
        """Fill advantages and returns of a copy of the rollout, given its values."""
        assert self.collector is not None
        self.collector.estimate(buffer)
        self._normalize(buffer)

    def _normalize(self, buffer: RolloutBuffer) -> None:
        """Combine advantages with those of streams, and normalize them over the whole rollout, if that is asked for."""
        if self.policy.streams is not None:
            combined = partial(self.policy.streams.combined, self._current_progress_remaining, self.shared.normalized)
            buffer.combine_advantages(combined)
        if self.settings.normalize_advantage == "rollout":
            buffer.normalize_advantages(self.shared.normalized)

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

    def _log_update(self, update: Update, numbers: dict[str, Any]) -> None:
        if self.verbose >= 1 and not update.state.running:
            print(f"Early stopping at step {update.n_epochs - 1} due to reaching max kl: {update.last_kl():.2g}")
        logged = update.metrics(self.policy)
        names = ["", *(f"{stream.name}_" for stream in self.streams)]
        columns = read([self.rollout_buffer.transitions(kind) for kind in ("values", "returns")])
        values, returns = (column.view(len(column), -1).T for column in columns)
        for name, predicted, target in zip(names, values, returns, strict=True):
            logged[f"{name}explained_variance"] = self.shared.explained_variance(predicted, target)
        if self.policy.streams is not None:
            weights = self.policy.streams.weights(self._current_progress_remaining)
            logged |= {f"{name}weight": weight for name, weight in zip(names[1:], weights, strict=True)}
        logged |= {name: numbers[name] for name in ("clip_range", "clip_range_vf") if numbers[name] is not None}
        for name, value in logged.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    @property
    def compiled(self) -> CompileStatus:
        """Whether training is compiled, true or false; printed, it says why."""
        is_own = self._n_updates and type(self).train is not PPO_Plus.train
        return self.compilation.status(f"{type(self).__name__}.train" if is_own else None)

    # --- playing, and learning from demonstrations -------------------------------------------------------------------

    def predict(
        self,
        observation: GivenObservation,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: Masks | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Actions that the environment's action space contains; see :meth:`ppo_plus.ActorCriticPolicy.predict`."""
        if action_masks is None and self._expects_masks and not self._warned_of_masks:
            self._warned_of_masks = True
            warnings.warn(
                "predict was called without action_masks, but the model was trained with masks: without them it "
                "chooses among all actions. Pass action_masks=, or use model.evaluate or sb3_contrib's evaluate_policy",
                stacklevel=2,
            )
        masks = {} if action_masks is None else {"action_masks": action_masks}  # which SB3's policies do not know
        return self.policy.predict(observation, state, episode_start, deterministic, **masks)

    @np.errstate(under="ignore")
    def evaluate(
        self,
        n_eval_episodes: int = 10,
        env: GymEnv | None = None,
        render: bool = False,
        deterministic: bool = True,
        return_episodes: bool = False,
    ) -> Any:
        """Play episodes; mean and standard deviation of their returns.

        It does not disturb training: normalization statistics stay unchanged, and if the training environment is used,
        its ``Monitor`` records nothing, and new episodes start before training continues.

        :param n_eval_episodes: number of episodes, at least 1
        :param env: where to play; by default the training environment. Observations are normalized with the training
            environment's statistics if that is a ``VecNormalize``; rewards are those before any ``VecNormalize``
        :param render: whether to show it
        :param deterministic: the modes of action distributions instead of samples
        :param return_episodes: return a dict for each episode instead: its ``return`` and ``length``, ``is_success`` if
            its last info has that, and the sums of streams that are read from ``info`` (such as costs), by name
        :return: mean and standard deviation over episodes, or the episodes
        :raises ValueError: no environment, one with other spaces, or no episode asked for
        :raises FloatingPointError: an observation is not finite
        """
        return evaluate(self, n_eval_episodes, env, render, deterministic, return_episodes)

    @torch_defaults()
    def pretrain(
        self,
        dataset: Any,
        n_epochs: int = 50,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        validation_split: float = 0.1,
        patience: int | None = 5,
        progress_bar: bool = False,
    ) -> Self:
        """Clone demonstrations before :meth:`learn`: maximize the log-likelihood of their actions
        (:mod:`ppo_plus.demonstrations.cloning`). Where rewards and ends of episodes are known, the critic learns their
        returns. Afterwards the optimizer is reset, and the random generators of the process are unchanged.

        :param dataset: what :func:`ppo_plus.record_demonstrations` returns; a dict with ``observations`` and
            ``actions``, and optionally ``rewards``, ``terminations``, ``truncations`` and ``action_masks``, a row per
            transition, or an ``.npz`` file of it; a list of such dicts; or data of imitation or Minari. They are those
            of the environment, before ``VecNormalize``, and are added to the statistics of normalization
        :param n_epochs: passes over the data, at most, at least 1
        :param batch_size: transitions per minibatch, at least 1; with memory, those of at least one episode
        :param learning_rate: constant, above 0
        :param validation_split: share of episodes (transitions, if ends are unknown) to validate by, in ``[0, 0.999]``
        :param patience: epochs without a lower validation loss after which it ends with the weights of the lowest, at
            least 1; ``None``: never
        :param progress_bar: show one
        :return: the model
        :raises ValueError: an argument is out of range, or a row does not fit the spaces: names the row
        :raises FloatingPointError: losses stayed non-finite
        """
        settings = self._refresh()
        clone(self, settings, dataset, n_epochs, batch_size, learning_rate, validation_split, patience, progress_bar)
        return self

    # --- SB3's interface ---------------------------------------------------------------------------------------------

    @torch_defaults()
    def _setup_model(self) -> None:
        # As in SB3, clip ranges are schedules once the model is set up. SB3 has no strings as learning rates.
        self.clip_range = schedule_of("clip_range", self.clip_range)
        self.clip_range_vf = schedule_of("clip_range_vf", self.clip_range_vf)
        if isinstance(self.learning_rate, str):
            self.learning_rate = self.lr_schedule
        settings = self.settings = Settings.of(self)
        vars(self).pop("rollout_buffer", None)
        settings.check_fit(self.env, self.n_envs)
        self.seed = None if self.seed is None else int(self.seed)  # Gymnasium takes no integer of NumPy
        super().set_random_seed(self.seed)
        self.policy = build_policy(
            self.policy_class,
            self.observation_space,
            self.action_space,
            partial(value_at, name="learning_rate", schedule=self.lr_schedule),
            self.device,
            **settings.of_policy,
            **self.policy_kwargs,
        )
        self.shared.seed(self.env, self.seed)
        self._maybe_recommend_cpu()

    @property
    def lr_schedule(self) -> Schedule:  # type: ignore[override]
        """The learning rate as a schedule, as in SB3; to assign it is to assign ``learning_rate``."""
        return schedule_of("learning_rate", self.learning_rate)  # type: ignore[return-value]

    @lr_schedule.setter
    def lr_schedule(self, schedule: Schedule) -> None:
        self.learning_rate = schedule

    def set_random_seed(self, seed: int | None = None) -> None:
        """As SB3's; several processes draw other numbers each."""
        super().set_random_seed(seed)
        if seed is not None:
            self.shared.seed(self.env, seed)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # The last rollout is completed even beyond the total; schedules end at 0 nonetheless.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def __setattr__(self, name: str, value: Any) -> None:
        # Training compiles by itself, and calls the parts of a policy: what `torch.compile` wraps would not be called.
        super().__setattr__(name, original(value) if name == "policy" else value)

    # SB3 and callbacks read and write these two of the position.
    _last_obs = property(attrgetter("position.obs"), lambda self, obs: setattr(self.position, "obs", obs))
    _last_episode_starts = property(attrgetter("position.starts"), lambda self, v: setattr(self.position, "starts", v))
