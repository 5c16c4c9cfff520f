"""``PPO_Plus``: proximal policy optimization for Stable-Baselines3.

This file only wires the rooms of the house together: it collects rollouts, trains on them and keeps SB3's contract.
"""

from typing import Any, ClassVar, Literal, TypeVar

import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.compiling.compilation import Compilation, CompileStatus, is_worth_compiling
from ppo_plus.files.call import Call, calling
from ppo_plus.files.from_sb3 import ATTRIBUTES
from ppo_plus.files.lasting import Lasting
from ppo_plus.files.old_models import adopt
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.kl_control import KLControl
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.formulas.schedules import Schedule
from ppo_plus.inputs import check_callback, check_device, known_names_only
from ppo_plus.learning import Learning
from ppo_plus.policy.adapter import adapt_policy_class, warn_of_overrides
from ppo_plus.policy.masking import find_masks
from ppo_plus.policy.policies import ActorCriticPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from ppo_plus.policy.recurrent import RECURRENT
from ppo_plus.process import keep_freed_memory, torch_threads, worth_threads
from ppo_plus.ranks import Ranks
from ppo_plus.require import require_int, require_number
from ppo_plus.rollout.acting import prepare_act
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.rollout.collector import Collector, Task, ended
from ppo_plus.rollout.env_errors import Explained, check_reset
from ppo_plus.rollout.lazy import Seen
from ppo_plus.rollout.normalization import Statistics
from ppo_plus.rollout.supervised import SupervisedVecEnv
from ppo_plus.rollout.tensor_collector import TensorCollector, in_tensors
from ppo_plus.rollout.tensor_vec_env import TensorVecEnv
from ppo_plus.rollout.together import Together
from ppo_plus.settings import NAMES, Settings, schedule_of
from ppo_plus.update.batch import Batch
from ppo_plus.update.critic import critic_weights
from ppo_plus.update.learner import Learner
from ppo_plus.update.update import Skipped

SelfPPO_Plus = TypeVar("SelfPPO_Plus", bound="PPO_Plus")

#: A coefficient over time: a number, a string such as ``"lin_3e-4"``, or a function of the remaining progress.
ScheduleLike = float | str | Schedule

#: Where each argument is kept.
ARGUMENTS = {ATTRIBUTES.get(name, name): name for name in NAMES}

#: Those that have their say when the model is built, and none later.
BUILT_IN = {
    "exploration",
    "use_sde",
    "policy_kwargs",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
    "action_mask_key",
}


class PPO_Plus(Lasting, Learning):
    r"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) for every action and observation space.

    Takes all arguments of SB3's ``PPO``, in its order and with its defaults and meaning, and after them keyword
    arguments of its own. Where an argument may change over time it takes a number, a string (``"lin_3e-4"``,
    ``"cos_3e-4"``) or a function of the remaining progress, which falls from 1 to 0.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, the same with memory (``"MlpLstmPolicy"``,
        ``"MlpGruPolicy"``, …, see :mod:`ppo_plus.policy.recurrent`), or a policy class
    :param env: environment, vectorized environment, or the id of one; ``None`` only when loading
    :param learning_rate: learning rate, at least 0; may change over time
    :param n_steps: steps of each environment per rollout, at least 1
    :param batch_size: transitions per minibatch, at least 1 (2 when advantages are normalized per minibatch)
    :param n_epochs: passes over each rollout, at least 1
    :param gamma: discount factor, in ``[0, 1]``
    :param gae_lambda: bias-variance trade-off of GAE, in ``[0, 1]``
    :param clip_range: clip range ε of the surrogate, above 0; may change over time. ``None``: not clipped, which needs
        a KL penalty
    :param clip_range_vf: clip range of the value loss in units of the return, above 0; may change over time. ``None``:
        not clipped
    :param normalize_advantage: ``True`` or ``"minibatch"``: within each minibatch; ``"rollout"``: once over the whole
        rollout; ``False``: not at all
    :param ent_coef: weight of the entropy bonus; may change over time
    :param vf_coef: weight of the value loss, at least 0; may change over time
    :param max_grad_norm: bound on the norm of the gradient, above 0
    :param use_sde: explore by generalized state-dependent exploration (gSDE), on every action space
    :param sde_sample_freq: when gSDE (or any ``exploration`` that holds noise) is renewed: -1 at the start of each
        rollout, n ≥ 1 every n steps, ``"episode"`` for each environment at the start of its episodes
    :param rollout_buffer_class: a subclass of :class:`ppo_plus.RolloutBuffer` (or of SB3's ``RolloutBuffer``)
    :param rollout_buffer_kwargs: its further arguments
    :param target_kl: the KL divergence between old and new policy to aim at, in nats, above 0; may change over time.
        ``None``: no target
    :param stats_window_size: number of episodes that logged means are taken over
    :param tensorboard_log: folder for TensorBoard; ``None``: none
    :param policy_kwargs: arguments of the policy, see :class:`ppo_plus.ActorCriticPolicy`
    :param verbose: 0 silent, 1 information, 2 debugging
    :param seed: seed of all random generators
    :param device: ``"auto"``, ``"cpu"``, ``"cuda"``, …
    :param _init_setup_model: whether to build the networks now
    :param value_clip: form of the clipped value loss: ``"max"`` as PPO2 (the pessimistic maximum of the clipped and
        the unclipped error), ``"plain"`` as SB3 (the clipped error alone)
    :param recompute_advantages: before each epoch but the first, compute values, advantages and returns anew with the
        present weights (:mod:`ppo_plus.rollout.anew`)
    :param critic_learning_rate: learning rate of the critic's own weights, at least 0; may change over time. No KL
        control scales it. ``None``: that of all
    :param critic_epochs: further passes over each rollout, after the others, in which the critic's own weights learn
        alone, from the value loss. Its own (:func:`ppo_plus.update.critic.critic_weights`) are those that values depend
        on and actions do not, so that neither argument changes what actor and critic share: with
        ``policy_kwargs=dict(share_features_extractor=False)`` they share nothing
    :param kl_control: what ``target_kl`` does. ``"stop"``: end the update before a step whose sampled KL exceeds 1.5
        times the target, as SB3; ``"penalty"``: add β times the exact KL to the loss, β adapted; ``"adaptive_lr"``:
        scale the learning rate; or a :class:`ppo_plus.KLControl`
    :param exploration: a noise process (:mod:`ppo_plus.formulas.exploration`) in place of ``use_sde``
    :param compile: compile acting and updating (with memory: of the update, the loss with its gradient behind the
        recurrent layers, and not where a vector environment's resets leave steps out). ``"auto"``: on a CPU, from the
        call of ``learn`` on with which the model has planned enough gradient steps for it to pay
        (:data:`ppo_plus.compiling.compilation.WORTH_COMPILING`); ``True``: always, with an error where it cannot;
        ``False``: never. :attr:`compiled` tells
    :param n_threads: torch's threads during ``learn``, restored after it. ``"auto"``: one on a CPU where the work per
        minibatch is small, so that threads would mostly wait for each other; else those that torch is set to
    :param sequence_length: with memory: steps through which gradients flow back. Each rollout is cut into sequences of
        so many steps, each starting from what was remembered there, and ``batch_size`` transitions of whole sequences
        make a minibatch. It divides ``n_steps`` and ``batch_size``. ``"auto"``: the largest number up to
        :data:`ppo_plus.settings.MAX_AUTO_SEQUENCE` that does
    :param action_mask_key: the entry of Dict observations that is the action mask, and so no feature; ``None``: masks
        come from the environments' method ``action_masks()``, where they have it (:mod:`ppo_plus.policy.masking`)
    :raises ValueError: an argument is out of range, or the spaces are not supported
    :raises TypeError: an argument is of the wrong kind
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
        **RECURRENT,
    }
    #: Methods that a loss may use: what they read is compared before compiled code is used again.
    pure: ClassVar[frozenset[str]] = frozenset({"compute_loss", "compute_critic_loss", "evaluate", "predict"})
    policy: ActorCriticPolicy  # type: ignore[assignment]
    rollout_buffer: RolloutBuffer  # type: ignore[assignment]

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
        critic_learning_rate: ScheduleLike | None = None,
        critic_epochs: int = 0,
        kl_control: str | KLControl = "stop",
        exploration: NoiseProcess | None = None,
        compile: bool | Literal["auto"] = "auto",
        n_threads: int | Literal["auto"] = "auto",
        sequence_length: int | Literal["auto"] = "auto",
        action_mask_key: str | None = None,
    ):
        #: Where the environments are, and what is carried from step to step.
        self.collector = Collector()
        #: What lasts from one update to the next.
        self.learner = Learner()
        self.compilation = Compilation()
        self.call = Call()
        #: The processes that train this model together.
        self.ranks = Ranks.present()
        self.together = Together(self.ranks)
        #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
        self._expects_masks = False
        self._warned_of_masks = False
        # SB3's constructor uses these three before they can be checked with the others.
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
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate=learning_rate,  # type: ignore[arg-type]
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,  # type: ignore[arg-type]
            vf_coef=vf_coef,  # type: ignore[arg-type]
            max_grad_norm=max_grad_norm,
            # SB3 refuses gSDE off Box; what was asked for is set below.
            use_sde=False,
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
        self.critic_learning_rate = critic_learning_rate
        self.critic_epochs = critic_epochs
        self.kl_control = kl_control
        self.exploration = exploration
        self.sequence_length = sequence_length
        self.compile = compile
        self.n_threads = n_threads
        self.action_mask_key = action_mask_key
        self._settings: Settings | None = None
        if _init_setup_model:
            self._setup_model()
            self.settings.warn_of_unequal_minibatches(self.n_envs)

    # --- setting up ------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        adopt(self)
        # What was loaded does not pass through `__setattr__`.
        self._settings = None
        settings = self._checked_settings()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.rollout_buffer = self._make_buffer()
        # Passed only when given: a policy class written for SB3 need not know them.
        custom: dict[str, Any] = {"exploration": self.exploration, "action_mask_key": self.action_mask_key}
        self.policy = adapt_policy_class(self.policy_class)(
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            use_sde=self.use_sde,
            **{name: value for name, value in custom.items() if value is not None},
            **self.policy_kwargs,
        ).to(self.device)
        warn_of_overrides(self.policy_class)
        if settings.parts_critic:
            critic_weights(self.policy)
        if self.ranks.several:
            # The weights are drawn alike; environments, noise and minibatches are not.
            self._seed_apart()
        self.collector.to(self.device)
        self._maybe_recommend_cpu()
        if isinstance(self.learning_rate, str):
            # SB3 can load the model then.
            self.learning_rate = settings.schedules["learning_rate"]  # type: ignore[assignment]
        # As in SB3, these two are schedules once the model is set up.
        self.clip_range, self.clip_range_vf = settings.schedules["clip_range"], settings.schedules["clip_range_vf"]

    def _seed_apart(self) -> None:
        utils.set_random_seed(self.ranks.seed(self.seed))  # type: ignore[arg-type]
        # Who gives no seed has seeded the environments, or not. The others have those that one process would have.
        if self.seed is not None and self.env is not None:
            self.env.seed((self.seed + self.ranks.rank * self.n_envs) % 2**32)

    @property
    def settings(self) -> Settings:  # type: ignore[override]
        """The present arguments, checked.

        :raises ValueError: an attribute has been changed to what is not allowed
        """
        if self._settings is None:
            self._settings = Settings(**{name: getattr(self, attribute) for attribute, name in ARGUMENTS.items()})
        return self._settings

    def __setattr__(self, name: str, value: Any) -> None:
        if name in BUILT_IN and "policy" in vars(self) and value is not vars(self)[name]:
            raise ValueError(
                f"{name}={value!r}: the model is built with {name}={vars(self)[name]!r}, and setting it would change "
                f"nothing; make a new model, or pass {name}= to load"
            )
        if name == "learning_rate" and "lr_schedule" in vars(self):
            # SB3 goes on with the old one; here every argument may be changed.
            self.lr_schedule = schedule_of(name, value)  # type: ignore[assignment]
        if name in ("gamma", "gae_lambda") and "rollout_buffer" in vars(self):
            setattr(self.rollout_buffer, name, value)
        # Asked for in every minibatch, settings are made only where an argument may be another one now.
        if name in ARGUMENTS:
            vars(self)["_settings"] = None
        super().__setattr__(name, value)

    def _checked_settings(self) -> Settings:
        """:attr:`settings`, which also go together with the environments."""
        self.settings.check_spaces(self.observation_space, self.action_space, self.env, self.n_envs)
        return self.settings

    def _make_buffer(self) -> RolloutBuffer:
        return self.settings.buffer_class(
            self.n_steps,
            self.observation_space,
            self.action_space,
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            **self.rollout_buffer_kwargs,
        )

    def _setup_lr_schedule(self) -> None:
        self.lr_schedule = self.settings.schedules["learning_rate"]  # type: ignore[assignment]

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
        if (self.rollout_buffer.buffer_size, self.rollout_buffer.gamma, self.rollout_buffer.gae_lambda) != (
            self.n_steps,
            self.gamma,
            self.gae_lambda,
        ):
            self.rollout_buffer = self._make_buffer()
        if self.env is None:
            raise ValueError("the model has no environment to learn from: call set_env(env) first, or pass env to load")
        self._settle_collector()
        goes_on = self.call.resumed is not None
        if goes_on:
            total_timesteps, reset_num_timesteps = self._total_timesteps - self.num_timesteps, False
        else:
            self.learner.skipped = Skipped()
        if reset_num_timesteps or self._last_obs is None:
            self.collector.forget()
        # A copy of the model has its own, which it may not have set up.
        self.collector.to(self.device)
        foreign = None if self.policy.compilable else f"{self.policy_class.__name__} overrides methods of SB3's policy"
        if not goes_on:
            planned = self.settings.gradient_steps(total_timesteps / self.ranks.size, self.n_envs)
            self.compilation.plan(self.compile, planned, self.device, foreign)
        if self.ranks.several:
            self._join(total_timesteps)
        if self.verbose >= 1 and self.compilation.notice:
            print(self.compilation.notice)
        before = Statistics(self.env)
        with Explained(self.env, self._steps), self.call.logs(self):
            total, callbacks = super()._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar and self.ranks.leads
            )
        check_reset(self.env, self._last_obs, 0, before)
        if self.ranks.several:
            self.ranks.require_same({"callback": self.call.in_all_processes})
        return total, callbacks

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        found = super()._init_callback(callback, progress_bar)
        self.call.watch(found)
        return found

    @property
    def compiled(self) -> CompileStatus:
        """Whether training is compiled, true or false; printed, it says why."""
        is_own = self._n_updates and type(self).train is not PPO_Plus.train
        return self.compilation.status(f"{type(self).__name__}.train" if is_own else None)

    def pays_to_compile(self, total_timesteps: int) -> bool:
        """Whether ``compile="auto"`` means compiling in a call of ``learn`` with so many timesteps."""
        planned = self.settings.gradient_steps(total_timesteps / self.ranks.size, self.n_envs)
        return is_worth_compiling(self.compilation.n_planned + planned, self.device)

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
        :param reset_num_timesteps: start counting steps anew
        :param progress_bar: show one
        :return: the model
        :raises FloatingPointError: an environment returned a number that is not finite, or losses stayed non-finite
        """
        # Attributes may have been changed since the model was built.
        self._checked_settings()
        check_callback(callback)
        require_int("log_interval", log_interval, 1, or_none=True)
        keep_freed_memory()
        with torch_threads(self._choose_threads()), self.ranks.until_error(), calling(self, total_timesteps) as call:
            total_timesteps, callback = self._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar and self.ranks.leads
            )
            # The loop is SB3's, and its names; a checkpoint keeps how many rollouts there have been.
            iteration = call.iteration
            callback.on_training_start(Seen(locals()) if in_tensors(self.env) else locals(), globals())
            call.go_on(self)
            while self.num_timesteps < total_timesteps:
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer, self.n_steps):  # type: ignore[arg-type]
                    break
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
                with self.together.updating():
                    self.train()
                call.iteration, call.between_rollouts = iteration, True
            callback.on_training_end()
        return self

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was logged.

        :param iteration: rollouts so far in this call of ``learn``
        """
        single = self.env and self.env.unwrapped
        if isinstance(single, SupervisedVecEnv) and single.restarts:
            n_restarts = self.together.n_restarts if self.ranks.several else single.n_restarts
            self.logger.record("faults/env_restarts", n_restarts)
        if self.ranks.several:
            self.logger.record("time/wait", self.together.waited)
        super().dump_logs(iteration)

    def _choose_threads(self) -> int:
        """Torch's threads for training."""
        if self.n_threads != "auto":
            return self.n_threads
        several = worth_threads(self.policy, self.settings.transitions_at_once, self.device)
        return th.get_num_threads() if several else 1

    # --- collecting ------------------------------------------------------------------------------------------------

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,  # type: ignore[override]
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with steps of the current policy.

        :param env: the training environment
        :param callback: called at every step, and at the beginning and end of the rollout
        :param rollout_buffer: to fill
        :param n_rollout_steps: steps per environment
        :return: whether training goes on: ``False`` if the callback stopped it
        """
        self.policy.set_training_mode(False)
        collector = self.collector
        rollout_buffer.reset()
        callback.on_rollout_start()
        self.call.between_rollouts = False
        if self._last_obs is None:
            env = self.env  # type: ignore[assignment]
        mask_source = find_masks(env, self.policy.family.choices, self.action_mask_key)
        self._expects_masks = mask_source is not None and mask_source.key is None
        act = prepare_act(self.policy, mask_source, self.compilation, callback)
        length = self.settings.steps_per_sequence
        task = Task(self.policy, act, rollout_buffer, self.sde_sample_freq, length)
        collector.begin(task, env, self._steps())
        if isinstance(collector, TensorCollector):
            return self._collect_in_tensors(env, callback, rollout_buffer, n_rollout_steps, mask_source)
        explained = Explained(env, self._steps)
        # Callbacks find what is assigned here, under SB3's names, in their `locals`.
        while (n_steps := collector.n_steps) < n_rollout_steps:
            action_masks = None
            if mask_source is not None:
                action_masks = mask_source.read(env, self._last_obs, self._steps())
            decision = collector.decide(action_masks)
            obs_tensor, actions, clipped_actions = decision.obs_tensor, decision.actions, decision.clipped_actions
            values, log_probs = th.from_numpy(decision.value[:, None]), th.from_numpy(decision.log_prob)

            with explained:
                new_obs, rewards, starts, infos = env.step(clipped_actions)
                dones = ended(starts, infos)
                self.num_timesteps += env.num_envs * self.ranks.size
                collector.receive(new_obs, rewards, self._steps())
            callback.update_locals(locals())
            if not callback.on_step():
                return self._meet(False)
            self._update_info_buffer(infos, dones)
            if collector.obs is None:
                env = self.env  # type: ignore[assignment]
            with explained:
                collector.store(decision, rewards, starts, infos, env)
        collector.finish()

        goes_on = self._meet(True)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return goes_on

    # --- training --------------------------------------------------------------------------------------------------

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
        return self.settings.loss(self.policy.family, values, params, batch, coefficients)

    def compute_critic_loss(self, batch: Batch, coefficients: Coefficients) -> Losses:
        """The loss of one minibatch of ``critic_epochs``, by default the value loss alone; to override as
        :meth:`compute_loss`.

        :param batch: the minibatch
        :param coefficients: weights and bounds at this point of training
        :return: total loss and diagnostics
        """
        values, _ = self.policy.evaluate_batch(batch)
        return self.settings.loss.critic(values, batch, coefficients)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # The last rollout is completed even beyond the total; schedules end at 0 nonetheless.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)
