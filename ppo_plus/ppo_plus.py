"""``PPO_Plus``: proximal policy optimization for Stable-Baselines3.

This file only wires the rooms of the house together: it collects rollouts, trains on them and keeps SB3's contract.
"""

import copy
import io
import math
import pathlib
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
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
from torch.utils._pytree import tree_leaves, tree_map

from ppo_plus import losses
from ppo_plus.advantages import normalize
from ppo_plus.arguments import require_finite, require_int, require_number
from ppo_plus.buffers import Batch, RolloutBuffer, adapt_buffer_class
from ppo_plus.checks import SCHEDULED, check_arguments, check_device, check_env, sequence_length
from ppo_plus.engine import Act, Records, Update, Weights, packed, torch_threads
from ppo_plus.evaluation import evaluate
from ppo_plus.exploration import NoiseProcess
from ppo_plus.fused import CompileError, Fused, obstacle
from ppo_plus.kernels import keep_freed_memory, without_gradients
from ppo_plus.kl_control import KLControl, KLState, make_kl_control
from ppo_plus.losses import Coefficients, Losses
from ppo_plus.masking import MaskSource, find_masks
from ppo_plus.memory import Carry, Memory
from ppo_plus.migration import from_sb3, saved_data
from ppo_plus.policies import ActorCriticPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy, adapt_policy_class
from ppo_plus.recurrent import RECURRENT
from ppo_plus.recurrent_update import RecurrentUpdate
from ppo_plus.schedules import Schedule, make_schedule
from ppo_plus.vec_env import as_vec_env, row_of

SelfPPO_Plus = TypeVar("SelfPPO_Plus", bound="PPO_Plus")

#: A coefficient over time: a number, a string such as ``"lin_3e-4"``, or a function of the remaining progress.
ScheduleLike = float | str | Schedule

#: After so many minibatches in a row with a non-finite loss or gradient, training stops.
MAX_SKIPPED = 10

#: Compiling takes some seconds, and pays from about so many gradient steps on.
WORTH_COMPILING = 8_000

#: Weights times transitions that are computed at once from which on several threads are faster than one.
WORTH_THREADS = 20_000_000


class PPO_Plus(OnPolicyAlgorithm):
    r"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) for every action and observation space.

    Takes all arguments of SB3's ``PPO``, in its order and with its defaults and meaning, and after them keyword
    arguments of its own. Where an argument may change over time it takes a number, a string (``"lin_3e-4"``,
    ``"cos_3e-4"``) or a function of the remaining progress, which falls from 1 to 0.

    :param policy: ``"MlpPolicy"``, ``"CnnPolicy"``, ``"MultiInputPolicy"``, the same with memory (``"MlpLstmPolicy"``,
        ``"MlpGruPolicy"``, …, see :mod:`ppo_plus.recurrent`), or a policy class
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
    :param exploration: a noise process (:mod:`ppo_plus.exploration`) in place of ``use_sde``
    :param compile: compile acting and updating (with memory: of the update, the loss with its gradient behind the
        recurrent layers, and not where a vector environment's resets leave steps out). ``"auto"``: on a CPU, where a
        call of ``learn`` makes at least :data:`WORTH_COMPILING` updates of the weights; ``True``: always, with an error
        where it cannot; ``False``: never
    :param n_threads: torch's threads during ``learn``, restored after it. ``"auto"``: one on a CPU where the work per
        minibatch is small, so that threads would mostly wait for each other; else those that torch is set to
    :param sequence_length: with memory: steps through which gradients flow back. Each rollout is cut into sequences of
        so many steps, each starting from what was remembered there, and ``batch_size`` transitions of whole sequences
        make a minibatch. It divides ``n_steps`` and ``batch_size``. ``"auto"``: the largest number up to
        :data:`ppo_plus.checks.MAX_AUTO_SEQUENCE` that does
    :param action_mask_key: the entry of Dict observations that is the action mask, and so no feature; ``None``: masks
        come from the environments' method ``action_masks()``, where they have it (:mod:`ppo_plus.masking`)
    :raises ValueError: an argument is out of range, or the spaces are not supported
    :raises TypeError: an argument is of the wrong kind
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
        **RECURRENT,
    }
    policy: ActorCriticPolicy  # type: ignore[assignment]
    rollout_buffer: RolloutBuffer  # type: ignore[assignment]

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
        # SB3's constructor uses these three before they can be checked with the others.
        require_int("verbose", verbose, 0)
        if env is not None:
            env = self._checked_env(env, verbose)
        elif _init_setup_model:
            raise ValueError("env=None: pass an environment, or the id of one")
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
        #: The KL control of the last update, and what it remembers (running, beta, lr_scale).
        self._kl_memory: tuple[KLControl, tuple[float, ...]] | None = None
        #: The KL control's factor on the learning rate.
        self._lr_scale = 1.0
        self.sequence_length = sequence_length
        #: Memory and held noise of the training environments; ``None`` when they start anew.
        self._carry: Carry | None = None
        #: Observations that the training environments returned last.
        self._next_obs: Any = None
        #: Minibatches in a row that were skipped for a non-finite loss or gradient.
        self._n_skipped = 0
        self.compile = compile
        self.n_threads = n_threads
        self.action_mask_key = action_mask_key
        #: Whether the environments' method gave masks in training, so that ``predict`` needs them too.
        self._expects_masks = False
        self._warned_of_masks = False
        #: Whether this call of ``learn()`` compiles.
        self._compiling = False
        #: Functions that can be compiled, by name, with the constants that they were traced with.
        self._functions: dict[str, tuple[Any, Fused]] = {}
        if _init_setup_model:
            self._setup_model()

    # --- setting up ------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        check_arguments(self)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.rollout_buffer = self._make_buffer()
        # Passed only when given: a policy class written for SB3 need not know them.
        own: dict[str, Any] = {"exploration": self.exploration, "action_mask_key": self.action_mask_key}
        self.policy = adapt_policy_class(self.policy_class)(
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            use_sde=self.use_sde,
            **{name: value for name, value in own.items() if value is not None},
            **self.policy_kwargs,
        ).to(self.device)
        self._maybe_recommend_cpu()
        if isinstance(self.learning_rate, str):
            # SB3 can load the model then.
            self.learning_rate = self._schedule("learning_rate")
        # As in SB3, these two are schedules once the model is set up.
        if self.clip_range is not None:
            self.clip_range = self._schedule("clip_range")
        if self.clip_range_vf is not None:
            self.clip_range_vf = self._schedule("clip_range_vf")

    def _make_buffer(self) -> RolloutBuffer:
        return adapt_buffer_class(self.rollout_buffer_class or RolloutBuffer)(
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
        self.lr_schedule = self._schedule("learning_rate")

    @classmethod
    def _checked_env(cls, env: GymEnv | str, verbose: int) -> GymEnv:
        """The environment, made if it was an id, once its spaces are known to be supported."""
        made = as_vec_env(maybe_make_env(env, verbose))
        check_env(made)
        return made

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_functions", "_next_obs", "_warned_of_masks"]

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model; the arguments are SB3's. What it remembers of unfinished episodes is saved as well."""
        carry = self._carry
        try:
            # From the CPU, so that it can be loaded where there is no GPU. Tuples without tensors would become lists.
            self._carry = tree_map(th.Tensor.cpu, carry) if tree_leaves(carry or ()) else None
            super().save(path, exclude, include)
        finally:
            self._carry = carry

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """As SB3's, also for ids of environments and for vector environments of Gymnasium and EnvPool."""
        return OnPolicyAlgorithm._wrap_env(as_vec_env(maybe_make_env(env, verbose)), verbose, monitor_wrapper)

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
        self._n_skipped = 0
        if self.env is None:
            raise ValueError("the model has no environment to learn from: call set_env(env) first, or pass env to load")
        if reset_num_timesteps or self._last_obs is None:
            self._carry = None
        elif self._carry is not None:
            self._carry = tree_map(lambda tensor: tensor.to(self.device), self._carry)
        self._compiling = self._can_compile(total_timesteps)
        for _, fused in self._functions.values():
            # What was changed between two calls did not change all the time.
            fused.n_traces = 0
        total, callbacks = super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        require_finite("observation", self._last_obs, step=0)
        return total, callbacks

    def _can_compile(self, total_timesteps: int) -> bool:
        """Whether to compile, which is wanted and possible.

        :raises CompileError: ``compile=True``, and nothing can be compiled here
        """
        if not (self.compile is True or (self.compile == "auto" and self.pays_to_compile(total_timesteps))):
            return False
        reason = obstacle(self.device)
        if reason is None:
            return True
        if self.compile is True:
            raise CompileError(f"compile=True, but nothing can be compiled here ({reason}): use compile=False")
        warnings.warn(f"training runs uncompiled, and slower ({reason})", RuntimeWarning, stacklevel=5)
        return False

    def pays_to_compile(self, total_timesteps: int) -> bool:
        """What ``compile="auto"`` means for training so many timesteps.

        :param total_timesteps: as for :meth:`learn`
        """
        return self.device.type == "cpu" and self._planned_updates(total_timesteps) >= WORTH_COMPILING

    def _planned_updates(self, total_timesteps: int) -> int:
        """Gradient steps that training for so many timesteps takes."""
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
        check_arguments(self)
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
        at_once = self.batch_size // (sequence_length(self) or 1)
        small = at_once * sum(p.numel() for p in self.policy.parameters()) < WORTH_THREADS
        convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in self.policy.modules())
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
        n_steps = 0
        # Transitions cut by a time limit: row, column, final observation, memory before that.
        timeouts: list[tuple[int, int, Any, Memory]] = []
        # Transitions in which a vector environment ignored the action and reset: row, column.
        resets: list[tuple[int, int]] = []
        rollout_buffer.reset()
        callback.on_rollout_start()
        if self._last_obs is None:
            env = self._restart()

        length = sequence_length(self)
        mask_source = find_masks(env, self.policy.action_dist.choices, self.action_mask_key)
        self._expects_masks = mask_source is not None and mask_source.key is None
        act = self._prepare_act(mask_source)
        n_actions = self.policy.action_dist.action_dim
        while n_steps < n_rollout_steps:
            carry = self._renew_noise(n_steps)
            if length and n_steps % length == 0:
                rollout_buffer.begin_sequences(carry.memory)
            action_masks = None
            if mask_source is not None:
                action_masks = mask_source.read(env, self._last_obs, self.num_timesteps // env.num_envs)
            obs_tensor = self._obs_tensor()
            decided, self._carry = act(obs_tensor, carry, self._starts_tensor(), self._optional_tensor(action_masks))
            memory, step = self._carry.memory, decided.cpu().numpy()
            value, log_prob, params = step[:, n_actions], step[:, n_actions + 1], step[:, n_actions + 2 :]
            # Callbacks find these, under SB3's names, in their `locals`.
            actions: np.ndarray = step[:, :n_actions].astype(self.policy.action_dist.dtype, copy=False)
            values, log_probs = th.from_numpy(value[:, None]), th.from_numpy(log_prob)
            clipped_actions = self.policy.action_dist.to_env(actions)

            new_obs, rewards, dones, infos = env.step(clipped_actions)
            self.num_timesteps += env.num_envs
            require_finite("observation", new_obs, self.num_timesteps // env.num_envs)
            require_finite("reward", rewards, self.num_timesteps // env.num_envs)

            last_obs, last_episode_starts = self._last_obs, self._last_episode_starts
            self._next_obs = new_obs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)

            truncated = _truncated(dones, infos)
            for i, final_obs in truncated:
                require_finite("final observation", final_obs, self.num_timesteps // env.num_envs, env=i)
            if self._last_obs is None:
                # The callback used the training environment: its episodes end here as at a time limit.
                truncated += [(i, row_of(self._next_obs, i)) for i in np.flatnonzero(~dones).tolist()]
                dones = np.ones_like(dones)
                env = self._restart()
                new_obs = self._last_obs  # type: ignore[assignment]
            timeouts += [(n_steps, i, final_obs, _row(memory, i)) for i, final_obs in truncated]
            if np.count_nonzero(dones):
                resets += [(n_steps, i) for i in np.flatnonzero(dones).tolist() if infos[i].get("autoreset")]
            rollout_buffer.add(
                last_obs,  # type: ignore[arg-type]
                actions,
                rewards,
                last_episode_starts,  # type: ignore[arg-type]
                value,
                log_prob,
                params,
                **({} if action_masks is None else {"masks": action_masks}),
            )
            n_steps += 1
            self._last_obs = new_obs  # type: ignore[assignment]
            self._last_episode_starts = dones

        with th.no_grad():
            values = self._values(new_obs, memory, dones)
            if timeouts:
                rows, columns, final_obs, memories = zip(*timeouts, strict=True)
                final_values = self._values(_stack(final_obs), tree_map(lambda *parts: th.stack(parts), *memories))
                rollout_buffer.bootstrap_timeouts(list(rows), list(columns), final_values)
        if resets:
            rollout_buffer.exclude(*map(list, zip(*resets, strict=True)))  # type: ignore[arg-type]
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)

        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _values(self, obs: Any, memory: Memory, starts: np.ndarray | None = None) -> th.Tensor:
        """The critic's values of observations, given what is remembered before them."""
        obs_tensor = utils.obs_as_tensor(obs, self.device)
        return self.policy.predict_values(obs_tensor, Carry(memory), self._optional_tensor(starts))

    def _optional_tensor(self, array: np.ndarray | None) -> th.Tensor | None:
        return None if array is None else th.as_tensor(array, device=self.device)

    def _prepare_act(self, mask_source: MaskSource | None) -> Callable[..., tuple[th.Tensor, Carry]]:
        """``policy.act`` with its step joined, compiled if that is wanted and possible."""
        act = Act(self.policy)
        if not self._compiling:
            return without_gradients(act.decide)
        fused = self._fused("acting", lambda: act, constants=mask_source)
        if self._has_foreign_code():
            masks = self._optional_tensor(None if mask_source is None else mask_source.all_allowed(self.n_envs))
            with th.no_grad(), th.random.fork_rng():
                carry = self.policy.init_carry(self.n_envs)
                fused.check(act.tensors(), self._obs_tensor(), carry, self._starts_tensor(), masks)
        # Callbacks may move weights.
        return without_gradients(fused.bind(act.tensors(), watched=True))

    def _has_foreign_code(self) -> bool:
        """Whether loss, networks or noise are not all ours, SB3's and torch's, and so may read what changes unseen."""
        own = (self.policy.exploration, self.policy.action_dist, make_kl_control(self.kl_control, True))
        return (
            getattr(self.compute_loss, "__func__", None) is not PPO_Plus.compute_loss
            or not all(_is_known(part) for part in (*self.policy.modules(), *own))
            or any(part._forward_hooks or part._forward_pre_hooks for part in self.policy.modules())
        )

    def _obs_tensor(self) -> Any:
        """The last observations on the device, in the layout that the compiled form expects."""
        obs: Any = self._last_obs
        if isinstance(obs, dict):
            return {key: _regular(obs[key], self.device) for key in self.observation_space.spaces}  # type: ignore[attr-defined]
        return _regular(obs, self.device)

    def _starts_tensor(self) -> th.Tensor | None:
        """Which of the last observations begin an episode, for a policy with memory."""
        if not self.policy.remembers:
            return None
        return th.as_tensor(self._last_episode_starts, dtype=th.bool, device=self.device)

    def _restart(self) -> VecEnv:
        """Begin all episodes anew, after something else has used the training environment, or it has been replaced."""
        env = self.env
        assert env is not None
        self._last_obs = env.reset()  # type: ignore[assignment]
        require_finite("observation", self._last_obs, self.num_timesteps // env.num_envs)
        self._last_episode_starts = np.ones((env.num_envs,), dtype=bool)
        self._carry = None
        return env

    def _renew_noise(self, n_steps: int) -> Carry:
        """The carry with held noise drawn again where it is due; ``n_steps`` counts from the start of the rollout."""
        frequency = self.sde_sample_freq
        if self._carry is None:
            self._carry = self.policy.init_carry(self.n_envs)
        elif isinstance(frequency, str):
            starting = np.flatnonzero(self._last_episode_starts)  # type: ignore[arg-type]
            if len(starting):
                self._carry = self.policy.renew_noise(self._carry, starting)
        elif n_steps == 0 or (frequency > 0 and n_steps % frequency == 0):
            self._carry = self.policy.renew_noise(self._carry, np.arange(self.n_envs))
        return self._carry

    # --- training --------------------------------------------------------------------------------------------------

    def compute_loss(self, batch: Batch, coefficients: Coefficients) -> Losses:
        r"""The loss of one minibatch: **the place to override** to change the objective.

        .. math:: L = L^{CLIP} - c_H H + c_V L^{V} + \beta\,KL(\pi_{old} \| \pi)

        It is pure: no logging, no ``.item()``, no optimizer; what should be logged is returned as a diagnostic. What
        it reads besides its arguments and the weights must not change during an update.

        :param batch: the minibatch
        :param coefficients: weights and bounds at this point of training
        :return: total loss and diagnostics
        """
        dist = self.policy.action_dist
        values, params = self.policy.evaluate(batch.observations, batch.carry, batch.episode_starts, batch.masks)
        if batch.valid is not None:
            values, params, batch = values[batch.valid], params[batch.valid], batch.only_valid()
        log_ratio = dist.log_prob(params, batch.actions) - batch.old_log_prob
        advantages = batch.advantages
        if self.normalize_advantage in (True, "minibatch"):
            advantages = normalize(advantages)

        policy_loss = losses.policy_loss(log_ratio, advantages, coefficients.clip_range)
        value_loss = losses.value_loss(
            values, batch.old_values, batch.returns, coefficients.clip_range_vf, self.value_clip
        )
        with _graph_if(not self._ignores_entropy):
            entropy_loss = -dist.entropy(params).mean()
        total = policy_loss + coefficients.vf_coef * value_loss
        if not self._ignores_entropy:
            total = total + coefficients.ent_coef * entropy_loss

        with th.no_grad():
            diagnostics = {
                "policy_gradient_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy_loss": entropy_loss.detach(),
                "approx_kl": losses.approx_kl(log_ratio),
            }
            if coefficients.clip_range is not None:
                diagnostics["clip_fraction"] = losses.clip_fraction(log_ratio, coefficients.clip_range)
            std = dist.std(params)
            if std is not None:
                diagnostics["action_std"] = std.mean()
        if batch.old_params is not None:
            with _graph_if(coefficients.kl_coef is not None):
                kl = dist.kl(batch.old_params, params).mean()
            diagnostics["kl"] = kl.detach()
            if coefficients.kl_coef is not None:
                total = total + coefficients.kl_coef * kl
        return Losses(total, diagnostics)

    @property
    def _ignores_entropy(self) -> bool:
        """Whether the entropy has no part in the loss, and so needs no gradient (SB3's default)."""
        return isinstance(self.ent_coef, (int, float)) and self.ent_coef == 0

    def train(self) -> None:
        """Improve the policy with the rollout that was collected: ``n_epochs`` passes over it in minibatches.

        :raises FloatingPointError: :data:`MAX_SKIPPED` minibatches in a row had a non-finite loss or gradient
        """
        self.policy.set_training_mode(True)
        progress = self._current_progress_remaining
        control = make_kl_control(self.kl_control, self.target_kl is not None)
        state = self._load_kl_state(control)
        self._lr_scale = state.lr_scale.item()
        self._update_learning_rate(self.policy.optimizer)
        if self.normalize_advantage == "rollout":
            self.rollout_buffer.normalize_advantages()
        target_kl = self._optional("target_kl", progress)
        target_kl = th.tensor(float("nan"), device=self.device) if target_kl is None else target_kl
        # Steps after the stop change nothing; on a GPU, asking whether it has come takes longer than making them.
        asks = type(control).after_minibatch is not KLControl.after_minibatch and self.device.type == "cpu"

        rollout = self.rollout_buffer.on_device()
        records: list[th.Tensor] = []
        with ExitStack() as stack:
            weights = stack.enter_context(packed(self.policy.optimizer))
            update, fused = self._prepare_update(weights, control)
            stack.callback(update.release)
            step = update.stepper(
                fused,
                fused is not None and self._has_foreign_code(),
                self._make_coefficients(progress),
                th.tensor(self.lr_schedule(progress), device=self.device),
                target_kl,
            )
            for epoch in range(self.n_epochs):
                n_before = len(records)
                for data, indices in self.rollout_buffer.minibatches(self.batch_size, rollout):
                    state, record = step(data, state, indices)
                    records.append(record)
                    if asks and not state.running:
                        break
                self._n_updates += 1
                epoch_records = Records(update.names, records[n_before:])
                self._count_skipped(epoch_records.finite())
                measured = control.measure in epoch_records.columns
                last_kl = epoch_records.mean(control.measure) if measured else target_kl
                state = control.after_epoch(state, last_kl, target_kl)
                if not state.running:
                    if self.verbose >= 1:
                        print(f"Early stopping at step {epoch} due to reaching max kl: {last_kl:.2f}")
                    break
        state = control.after_update(state, last_kl, target_kl)
        self._kl_memory = control, tuple(float(value) for value in state)
        self._log_update(Records(update.names, records), state if type(control) is not KLControl else None)

    def _prepare_update(self, weights: Weights, control: KLControl) -> tuple[Update, Fused | None]:
        """The update on these weights, and its compiled form if it is wanted and possible."""
        kind = RecurrentUpdate if self.policy.remembers else Update

        def make() -> Update:
            return kind(self.policy, self.compute_loss, control, self.max_grad_norm)

        if not self._compiling:
            update = make()
            update.weights = weights
            return update, None
        optimizer = self.policy.optimizer
        options = {name: value for name, value in optimizer.param_groups[0].items() if name not in ("params", "lr")}
        fused = self._fused(
            "the update",
            lambda: make().compilable,
            constants=(
                self.compute_loss,
                type(control),
                vars(control).copy(),
                self.batch_size,
                [id(tensor) for tensor in self.policy.parameters() if not tensor.requires_grad],
                self.max_grad_norm,
                self.normalize_advantage,
                self.value_clip,
                self._ignores_entropy,
                type(optimizer),
                options,
            ),
            n_mutable=kind.n_mutable,
        )
        update = fused.function.__self__  # type: ignore[attr-defined]
        update.weights, update.control = weights, control
        packed_buffer = isinstance(self.rollout_buffer, RolloutBuffer)
        # In two parts, as with memory, only for what is known to evaluate the policy at the minibatch's observations.
        can_split = not self.policy.remembers or not self._has_foreign_code()
        if self.compile is True:
            if weights.vector is None:
                raise CompileError(
                    f"compile=True, but {type(optimizer).__name__} cannot be packed (see ppo_plus.engine.packed; "
                    "weights that were frozen for a while have taken fewer steps than the others): use compile=False"
                )
            if not packed_buffer:
                raise CompileError("compile=True needs a rollout buffer of ppo_plus: use compile=False")
            if not can_split:
                raise CompileError(
                    "compile=True, but with memory the update with a policy class, loss, noise process or KL control "
                    'of one\'s own cannot be compiled: use compile="auto"'
                )
        return update, fused if packed_buffer and weights.vector is not None and can_split else None

    def _fused(self, name: str, make: Callable[[], Any], constants: Any, n_mutable: int = 0) -> Fused:
        """A pure function of this model, kept together with its compiled form until a constant of it changes."""
        # What a policy prints includes its layers' settings, such as the p of a dropout.
        noise = self.policy.exploration
        constants = (
            self.policy,
            repr(self.policy),
            type(noise),
            vars(noise).copy(),
            self.policy.action_dist,
            self.policy.autocast,
            # Kernels are made for so many threads.
            th.get_num_threads(),
            self.compile,
            constants,
        )
        held = self._functions.get(name)
        if held is None or not _equal(held[0], constants):
            fused = Fused(make(), name, n_mutable, strict=self.compile is True)
            fused.n_traces = 0 if held is None else held[1].n_traces
            held = self._functions[name] = (constants, fused)
        return held[1]

    def _count_skipped(self, finite: list[bool]) -> None:
        """:raises FloatingPointError: too many minibatches in a row were not finite"""
        for flag in finite:
            self._n_skipped = 0 if flag else self._n_skipped + 1
            if self._n_skipped >= MAX_SKIPPED:
                raise FloatingPointError(
                    f"loss or gradient was not finite in {MAX_SKIPPED} minibatches in a row; the weights are those "
                    "before them. Lower learning_rate or max_grad_norm, normalize rewards and observations "
                    "(VecNormalize), or mend compute_loss"
                )

    def _load_kl_state(self, control: KLControl) -> KLState:
        """The control's state on the device, running again."""
        state = control.init()
        if self._kl_memory is not None and _same(self._kl_memory[0], control):
            state = KLState(*map(th.tensor, self._kl_memory[1]))
        return KLState(*(value.to(self.device) for value in state._replace(running=th.tensor(True))))

    def _schedule(self, name: str) -> Schedule:
        """The schedule of an argument that may change over time; a callback may have set it anew."""
        return make_schedule(name, getattr(self, name), *SCHEDULED[name])

    def _coefficient(self, name: str, progress_remaining: float) -> th.Tensor:
        """The current value of an argument that may change over time, 0-d."""
        return th.tensor(self._schedule(name)(progress_remaining), device=self.device)

    def _optional(self, name: str, progress_remaining: float) -> th.Tensor | None:
        """:meth:`_coefficient`, or ``None`` where the argument is."""
        return None if getattr(self, name) is None else self._coefficient(name, progress_remaining)

    def _make_coefficients(self, progress_remaining: float) -> Coefficients:
        """The coefficients of the loss."""
        return Coefficients(
            clip_range=self._optional("clip_range", progress_remaining),
            clip_range_vf=self._optional("clip_range_vf", progress_remaining),
            ent_coef=self._coefficient("ent_coef", progress_remaining),
            vf_coef=self._coefficient("vf_coef", progress_remaining),
        )

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        # The last rollout is completed even beyond the total; schedules end at 0 nonetheless.
        super()._update_current_progress_remaining(min(num_timesteps, total_timesteps), total_timesteps)

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        """Set the schedule's value times the KL control's scale."""
        learning_rate = self.lr_schedule(self._current_progress_remaining) * self._lr_scale
        self.logger.record("train/learning_rate", learning_rate)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            utils.update_learning_rate(optimizer, learning_rate)

    def _log_update(self, records: Records, kl_state: KLState | None) -> None:
        for name in records.columns:
            self.logger.record(f"train/{name}", records.mean(name).item())
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        self.logger.record("train/explained_variance", utils.explained_variance(values, returns))
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", self.policy.log_std.detach().exp().mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        skipped = records.finite().count(False)
        if skipped:
            self.logger.record("train/skipped_minibatches", skipped)
        for name in ("clip_range", "clip_range_vf"):
            if getattr(self, name) is not None:
                self.logger.record(f"train/{name}", self._schedule(name)(self._current_progress_remaining))
        if kl_state is not None:
            self.logger.record("train/kl_early_stop", float(not kl_state.running))
            self.logger.record("train/kl_coef", kl_state.beta.item())
            self.logger.record("train/lr_scale", kl_state.lr_scale.item())

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


def _same(control: KLControl, other: KLControl) -> bool:
    """Whether two controls are of the same kind with the same options."""
    return type(control) is type(other) and _equal(vars(control), vars(other))


def _equal(one: Any, other: Any) -> bool:
    """Whether two nestings are equal; those with tensors or arrays that are not the same object are not."""
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return False


def _is_known(part: Any) -> bool:
    return type(part).__module__.startswith(("torch.", "stable_baselines3.", "ppo_plus."))


def _graph_if(needed: bool) -> th.set_grad_enabled:
    """Record gradients only where they are needed (and wanted at all)."""
    return th.set_grad_enabled(needed and th.is_grad_enabled())


def _truncated(dones: np.ndarray, infos: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Index and final observation of the environments whose episode a time limit, and nothing else, has ended."""
    if not np.count_nonzero(dones):
        return []
    return [
        # Copies: the environment may use the memory again before the rollout ends.
        (i, copy.deepcopy(infos[i]["terminal_observation"]))
        for i in np.flatnonzero(dones).tolist()
        if infos[i].get("TimeLimit.truncated", False) and infos[i].get("terminal_observation") is not None
    ]


def _regular(array: np.ndarray, device: th.device) -> th.Tensor:
    """The array as a tensor: contiguous, and in single precision if it is floating."""
    # Numpy converts small arrays several times faster.
    dtype = np.float32 if array.dtype.kind == "f" else array.dtype
    return th.from_numpy(np.asarray(array, dtype, order="C")).to(device)


def _row(memory: Memory, i: int) -> Memory:
    """What environment ``i`` remembers."""
    return {name: tuple(part[i] for part in state) for name, state in memory.items()}


def _stack(observations: Any) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)
