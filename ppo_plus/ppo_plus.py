"""``PPO_Plus``: proximal policy optimization for Stable-Baselines3.

This file only wires the rooms of the house together: it collects rollouts, trains on them and keeps SB3's contract.
"""

import io
import math
import pathlib
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy as SB3ActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from ppo_plus.compiling.cache import NOTICE, Cache, Verdict, decide, pays
from ppo_plus.compiling.compiled import CompileError
from ppo_plus.compiling.torch_private import still_in_place, without_gradients
from ppo_plus.files.from_sb3 import from_sb3, saved_data
from ppo_plus.files.old_models import adopt
from ppo_plus.formulas.exploration import NoiseProcess
from ppo_plus.formulas.kl_control import KLControl, KLState, same_control
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.formulas.schedules import Schedule
from ppo_plus.inputs import check_callback, check_device, check_env, known_names_only
from ppo_plus.policy.adapter import adapt_policy_class, overridden
from ppo_plus.policy.masking import MaskSource, find_masks
from ppo_plus.policy.policies import ActorCriticPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from ppo_plus.policy.recurrent import RECURRENT
from ppo_plus.process import keep_freed_memory, torch_threads
from ppo_plus.require import require_int, require_number
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.rollout.collector import Acting, Collector, Task, ended
from ppo_plus.rollout.env_errors import Explained, check_reset
from ppo_plus.rollout.evaluation import evaluate
from ppo_plus.rollout.normalization import Statistics
from ppo_plus.rollout.vec_env import as_vec_env
from ppo_plus.settings import NAMES, Settings, make_coefficients
from ppo_plus.update.batch import Batch
from ppo_plus.update.flat import Weights, packed, trainable
from ppo_plus.update.update import Minibatch, Progress, Skipped, Update, run_epochs

SelfPPO_Plus = TypeVar("SelfPPO_Plus", bound="PPO_Plus")

#: A coefficient over time: a number, a string such as ``"lin_3e-4"``, or a function of the remaining progress.
ScheduleLike = float | str | Schedule

#: Where each argument is kept.
ARGUMENTS = {{"stats_window_size": "_stats_window_size"}.get(name, name): name for name in NAMES}

#: Weights times transitions that are computed at once from which on several threads are faster than one.
WORTH_THREADS = 20_000_000


class PPO_Plus(OnPolicyAlgorithm):
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
    :param kl_control: what ``target_kl`` does. ``"stop"``: end the update before a step whose sampled KL exceeds 1.5
        times the target, as SB3; ``"penalty"``: add β times the exact KL to the loss, β adapted; ``"adaptive_lr"``:
        scale the learning rate; or a :class:`ppo_plus.KLControl`
    :param exploration: a noise process (:mod:`ppo_plus.formulas.exploration`) in place of ``use_sde``
    :param compile: compile acting and updating (with memory: of the update, the loss with its gradient behind the
        recurrent layers, and not where a vector environment's resets leave steps out). ``"auto"``: on a CPU, from the
        call of ``learn`` on with which the model has planned enough gradient steps for it to pay
        (:data:`ppo_plus.compiling.cache.WORTH_COMPILING`); ``True``: always, with an error where it cannot; ``False``:
        never. :attr:`compiled` tells
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
    pure: ClassVar[frozenset[str]] = frozenset({"compute_loss", "evaluate", "predict"})
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
        kl_control: str | KLControl = "stop",
        exploration: NoiseProcess | None = None,
        compile: bool | Literal["auto"] = "auto",
        n_threads: int | Literal["auto"] = "auto",
        sequence_length: int | Literal["auto"] = "auto",
        action_mask_key: str | None = None,
    ):
        #: Where the environments are, and what is carried from step to step.
        self.collector = Collector()
        # SB3's constructor uses these three before they can be checked with the others.
        require_int("verbose", verbose, 0)
        if env is not None:
            env = self._checked_env(env, verbose)
        elif _init_setup_model:
            raise TypeError("env=None: pass an environment, or the id of one")
        check_device(device)
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
        self.kl_control = kl_control
        self.exploration = exploration
        self.sequence_length = sequence_length
        self.compile = compile
        self.n_threads = n_threads
        self.action_mask_key = action_mask_key
        #: The KL control of the last update, and what it remembers (running, beta, lr_scale).
        self._kl_memory: tuple[KLControl, tuple[float, ...]] | None = None
        #: The KL control's factor on the learning rate.
        self._lr_scale = 1.0
        self._skipped = Skipped()
        #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
        self._expects_masks = False
        self._warned_of_masks = False
        #: Gradient steps that all calls of ``learn`` have planned.
        self._n_planned = 0
        self._verdict = Verdict(False, "learn has not been called yet")
        self._cache = Cache()
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
        if not self.policy.compilable:
            warnings.warn(
                f"policy={self.policy_class.__name__} overrides {', '.join(overridden(self.policy_class))}: it runs as "
                "SB3 runs it, uncompiled, and without exact KL, gSDE off Box, masks and memory. For these derive it "
                "from ppo_plus.ActorCriticPolicy, and override encode, heads, act or evaluate",
                stacklevel=4,
            )
        self.collector.to(self.device)
        self._maybe_recommend_cpu()
        if isinstance(self.learning_rate, str):
            # SB3 can load the model then.
            self.learning_rate = settings.schedules["learning_rate"]  # type: ignore[assignment]
        # As in SB3, these two are schedules once the model is set up.
        self.clip_range, self.clip_range_vf = settings.schedules["clip_range"], settings.schedules["clip_range_vf"]

    @property
    def settings(self) -> Settings:
        """The present arguments, checked.

        :raises ValueError: an attribute has been changed to what is not allowed
        """
        if self._settings is None:
            self._settings = Settings(**{name: getattr(self, attribute) for attribute, name in ARGUMENTS.items()})
        return self._settings

    def __setattr__(self, name: str, value: Any) -> None:
        # Asked for in every minibatch, settings are made only where an argument may be another one now.
        if name in ARGUMENTS:
            vars(self)["_settings"] = None
        super().__setattr__(name, value)
        if name == "learning_rate" and "lr_schedule" in vars(self):
            # SB3 goes on with the old one; here every argument may be changed.
            self._setup_lr_schedule()

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

    @classmethod
    def _checked_env(cls, env: GymEnv | str, verbose: int) -> GymEnv:
        """The environment, made if it was an id, once its spaces are known to be supported."""
        made = as_vec_env(maybe_make_env(env, verbose))
        check_env(made)
        return made

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_cache", "_settings", "_warned_of_masks"]

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """As SB3's, also for ids of environments and for vector environments of Gymnasium and EnvPool."""
        return OnPolicyAlgorithm._wrap_env(PPO_Plus._checked_env(env, verbose), verbose, monitor_wrapper)

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        if policy_name not in self.policy_aliases:
            raise ValueError(f"policy={policy_name!r} is unknown: use one of {sorted(self.policy_aliases)}, or a class")
        return self.policy_aliases[policy_name]

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
        self._skipped = Skipped()
        if self.env is None:
            raise ValueError("the model has no environment to learn from: call set_env(env) first, or pass env to load")
        if reset_num_timesteps or self._last_obs is None:
            self.collector.forget()
        self._decide(total_timesteps)
        self._cache.start_counting()
        before = Statistics(self.env)
        with Explained():
            total, callbacks = super()._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
            )
        check_reset(self.env, self._last_obs, 0, before)
        return total, callbacks

    def _decide(self, total_timesteps: int) -> None:
        """Settle whether this call of ``learn`` compiles."""
        planned = self._n_planned + self.planned_steps(total_timesteps)
        if self.policy.compilable:
            verdict = decide(self.compile, planned, self.device, before=bool(self._verdict))
        else:
            verdict = Verdict(False, f"{self.policy_class.__name__} overrides methods of SB3's policy")
            if self.compile is True:
                raise CompileError(f"compile=True, but {verdict.reason}: use compile=False")
        if self.compile == "auto" and not verdict and "nothing can" in verdict.reason and verdict != self._verdict:
            warnings.warn(f"training runs uncompiled, and slower: {verdict.reason}", RuntimeWarning, stacklevel=5)
        self._n_planned, self._verdict = planned, verdict
        if verdict and self.verbose >= 1 and not len(self._cache):
            print(NOTICE)

    @property
    def compiled(self) -> Verdict:
        """Whether training is compiled, true or false; printed, it says why."""
        failures = self._cache.failures() if self._verdict else []
        return Verdict(False, "; ".join(failures)) if failures else self._verdict

    def compile_notice(self, total_timesteps: int) -> str | None:
        """What there is to say before a call of ``learn`` with so many timesteps, if that is going to compile."""
        wanted = self.compile is True or (self.compile == "auto" and self.pays_to_compile(total_timesteps))
        return NOTICE if wanted and self.policy.compilable and not len(self._cache) else None

    def pays_to_compile(self, total_timesteps: int) -> bool:
        """Whether ``compile="auto"`` means compiling in a call of ``learn`` with so many timesteps."""
        return pays(self._n_planned + self.planned_steps(total_timesteps), self.device)

    def planned_steps(self, total_timesteps: int) -> int:
        """Gradient steps that training for so many timesteps takes.

        :param total_timesteps: as for :meth:`learn`
        """
        n_transitions = self.n_steps * self.n_envs
        return math.ceil(total_timesteps / n_transitions) * self.n_epochs * math.ceil(n_transitions / self.batch_size)

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
        if log_interval is not None:
            require_int("log_interval (or None)", log_interval, 1)
        keep_freed_memory()
        with torch_threads(self._choose_threads()):
            return super().learn(
                total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
            )

    def _choose_threads(self) -> int:
        """Torch's threads for training."""
        if self.n_threads != "auto":
            return self.n_threads
        # With memory, threads meet after every step of time.
        at_once = self.batch_size // (self.settings.steps_per_sequence or 1)
        small = at_once * sum(p.numel() for p in self.policy.parameters()) < WORTH_THREADS
        convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
        convolves = any(isinstance(part, convolutions) for part in self.policy.modules())
        return 1 if self.device.type == "cpu" and small and not convolves else th.get_num_threads()

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
        if self._last_obs is None:
            env = self.env  # type: ignore[assignment]
        mask_source = find_masks(env, self.policy.family.choices, self.action_mask_key)
        self._expects_masks = mask_source is not None and mask_source.key is None
        act, length = self._prepare_act(mask_source), self.settings.steps_per_sequence
        task = Task(self.policy, act, rollout_buffer, self.sde_sample_freq, length)
        collector.begin(task, env, self.num_timesteps // env.num_envs)
        explained = Explained()
        # Callbacks find what is assigned here, under SB3's names, in their `locals`.
        while (n_steps := collector.n_steps) < n_rollout_steps:
            action_masks = None
            if mask_source is not None:
                action_masks = mask_source.read(env, self._last_obs, self.num_timesteps // env.num_envs)
            decision = collector.decide(action_masks)
            obs_tensor, actions, clipped_actions = decision.obs_tensor, decision.actions, decision.clipped_actions
            values, log_probs = th.from_numpy(decision.value[:, None]), th.from_numpy(decision.log_prob)

            with explained:
                new_obs, rewards, starts, infos = env.step(clipped_actions)
            dones = ended(starts, infos)
            self.num_timesteps += env.num_envs
            collector.receive(new_obs, rewards, self.num_timesteps // env.num_envs)
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            if collector.obs is None:
                env = self.env  # type: ignore[assignment]
            collector.store(decision, rewards, starts, infos, env)
        collector.finish()

        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _prepare_act(self, mask_source: MaskSource | None) -> Callable[..., Any]:
        """``policy.act`` with its step packed, compiled if this run compiles."""
        acting = Acting(self.policy)
        if not self._verdict:
            return without_gradients(acting.plain)
        tensors = acting.tensors()
        reads: dict[str, Any] = dict(given=tensors, policy=self.policy, masks=mask_source)
        compiled = self._cache.get("acting", acting, strict=self.compile is True, n_mutable=1, **reads)
        # Callbacks may move weights, or exchange them.
        in_place = still_in_place(self.policy)
        return without_gradients(compiled.bind(tensors, watched=True, in_place=in_place, plain=acting.plain))

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

    def train(self) -> None:
        """Improve the policy with the rollout that was collected: ``n_epochs`` passes over it in minibatches.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        settings, progress = self.settings, self._current_progress_remaining
        self.policy.set_training_mode(True)
        state = self._load_kl_state(settings.control)
        self._lr_scale = state.lr_scale.item()
        learning_rate = th.tensor(self._update_learning_rate(self.policy.optimizer), device=self.device)
        if self.normalize_advantage == "rollout":
            self.rollout_buffer.normalize_advantages()
        values = settings.values(progress)
        target = values["target_kl"]
        target_kl = th.tensor(float("nan") if target is None else target, device=self.device)
        coefficients = make_coefficients(values, self.device)

        rollout = self.rollout_buffer.on_device()
        epochs = (self.rollout_buffer.minibatches(self.batch_size, rollout) for _ in range(self.n_epochs))
        with packed(self.policy.optimizer) as weights:
            minibatch = self._prepare_update(weights, coefficients, learning_rate, target_kl)
            done = run_epochs(minibatch, epochs, settings.control, state, target_kl, self._skipped)
        self._n_updates += done.n_epochs
        if self.verbose >= 1 and not done.state.running:
            print(f"Early stopping at step {done.n_epochs - 1} due to reaching max kl: {done.kl:.2f}")
        self._kl_memory = settings.control, tuple(float(value) for value in done.state)
        self._log_update(done, values)

    def _prepare_update(self, weights: Weights, *coefficients: Any) -> Minibatch:
        """Minibatches on these weights, compiled if this run compiles and they can be.

        :param weights: the weights
        :param coefficients: the coefficients of the loss, the learning rate and the target of the KL control
        """
        update = Update(self.policy, self.compute_loss, self.settings.control, self.max_grad_norm)
        if not self._verdict or not self._can_compile_update(weights):
            return update.plain(weights, *coefficients)
        optimizer, by_parts = self.policy.optimizer, self.policy.remembers
        compiled = self._cache.get(
            "the update",
            update.heads if by_parts else update,
            strict=self.compile is True,
            n_mutable=2 if by_parts else 3,
            named=[self],
            given=[*self.policy.parameters(), *self.policy.buffers()],
            compute_loss=self.compute_loss,
            loss=self.settings.loss,
            policy=self.policy,
            control=self.settings.control,
            max_grad_norm=self.max_grad_norm,
            optimizer=(
                type(optimizer),
                {k: v for k, v in optimizer.param_groups[0].items() if k not in ("params", "lr")},
            ),
            # Which weights are learned, and in which order.
            trained=[id(weight) for weight in trainable(optimizer)],
        )
        minibatches = update.by_parts if by_parts else update.compiled
        return minibatches(compiled, weights, *coefficients)

    def _can_compile_update(self, weights: Weights) -> bool:
        """:raises CompileError: ``compile=True``, and the update cannot be compiled"""
        reason = None
        if weights.vector is None:
            reason = (
                f"{type(self.policy.optimizer).__name__} cannot be packed (see ppo_plus.update.flat.packed; weights "
                "that were frozen for a while have taken fewer steps than the others)"
            )
        elif not isinstance(self.rollout_buffer, RolloutBuffer):
            reason = f"{type(self.rollout_buffer).__name__} is no rollout buffer of ppo_plus"
        if reason is not None and self.compile is True:
            raise CompileError(f"compile=True, but {reason}: use compile=False")
        return reason is None

    def _load_kl_state(self, control: KLControl) -> KLState:
        """The control's state on the device, running again."""
        state = control.init()
        if self._kl_memory is not None and same_control(self._kl_memory[0], control):
            state = KLState(*map(th.tensor, self._kl_memory[1]))
        return KLState(*(value.to(self.device) for value in state._replace(running=th.tensor(True))))

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # The last rollout is completed even beyond the total; schedules end at 0 nonetheless.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def _update_learning_rate(  # type: ignore[override]
        self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer
    ) -> float:
        """Set the schedule's value, which is returned, times the KL control's scale."""
        learning_rate = self.lr_schedule(self._current_progress_remaining)
        self.logger.record("train/learning_rate", learning_rate * self._lr_scale)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            utils.update_learning_rate(optimizer, learning_rate * self._lr_scale)
        return learning_rate

    def _log_update(self, done: Progress, scheduled: dict[str, float | None]) -> None:
        for name, mean in done.records.means().items():
            self.logger.record(f"train/{name}", mean)
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        self.logger.record("train/explained_variance", utils.explained_variance(values, returns))
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", self.policy.log_std.detach().exp().mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        skipped = done.records.finite().count(False)
        if skipped:
            self.logger.record("train/skipped_minibatches", skipped)
        for name in ("clip_range", "clip_range_vf"):
            if scheduled[name] is not None:
                self.logger.record(f"train/{name}", scheduled[name])
        if type(self.settings.control) is not KLControl:
            self.logger.record("train/kl_early_stop", float(not done.state.running))
            self.logger.record("train/kl_coef", done.state.beta.item())
            self.logger.record("train/lr_scale", done.state.lr_scale.item())

    # --- around training -------------------------------------------------------------------------------------------

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
        return evaluate(self, n_eval_episodes, env, render)

    @classmethod
    def from_sb3(
        cls: type[SelfPPO_Plus],
        path_or_model: str | pathlib.Path | io.BufferedIOBase | BaseAlgorithm,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        **kwargs: Any,
    ) -> SelfPPO_Plus:
        """Take over a trained SB3 ``PPO``, or an sb3-contrib ``MaskablePPO`` or ``RecurrentPPO``.

        It takes the same actions, and training goes on where it was: weights, optimizer state, hyperparameters and
        counters are carried over; ``value_clip`` is SB3's, ``"plain"``.

        :param path_or_model: a saved model, or a model
        :param env: where to train on; by default the model's own, if it has one
        :param device: where to compute
        :param kwargs: arguments to change on the way
        :raises TypeError: neither
        """
        return from_sb3(cls, path_or_model, env, device, kwargs)

    @classmethod
    def load(  # type: ignore[override]
        cls: type[SelfPPO_Plus],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfPPO_Plus:
        """Load a saved model; the arguments are SB3's. A model that SB3's ``PPO`` saved is taken over by
        :meth:`from_sb3`."""
        if "value_clip" not in saved_data(path, device, custom_objects):
            return from_sb3(cls, path, env, device, kwargs, custom_objects)
        return super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
