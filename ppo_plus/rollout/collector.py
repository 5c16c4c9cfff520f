"""Collecting rollouts: steps in the environments with the policy's actions, which are stored in the buffer."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch as th
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from ppo_plus.compiling.compiled import Compilation
from ppo_plus.compiling.constants import Reads
from ppo_plus.compiling.torch_private import swapped
from ppo_plus.envs.checked_envs import CheckedEnvs, is_reset
from ppo_plus.envs.checks import TIMEOUT, check_shape, copied, row_of
from ppo_plus.envs.layers import layers
from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.masking import MaskSource
from ppo_plus.policy.observations import is_finite, not_finite, require_finite, to_network
from ppo_plus.policy.policies import ActorCriticPolicy, Carry, PolicyOutput
from ppo_plus.rollout.buffer import AT_ONCE, RolloutBuffer, as_tensor
from ppo_plus.rollout.streams import complete_streams, stream_columns
from ppo_plus.trees import mapped, to_device, tree_leaves, tree_map

#: Acts: takes observations, carry, episode starts and masks as tensors; returns a packed step, and the next carry.
Act = Callable[..., tuple[th.Tensor, Carry]]
#: Rows and columns of some transitions of a rollout.
RowsAndColumns = tuple[th.Tensor, th.Tensor]
#: What environments return: arrays or tensors.
Kind = TypeVar("Kind", np.ndarray, th.Tensor)
#: A nesting of tensors.
Tree = TypeVar("Tree")


class Position:
    """The state of the environments between two steps. It is saved with the model."""

    def __init__(self) -> None:
        #: Last observations, arrays or tensors; ``None``: the next rollout resets the environments.
        self.obs: Any = None
        #: Which of them begin an episode, booleans ``(N,)``.
        self.starts: Any = None
        #: Memory and noise of each environment; ``None``: the next step clears memory and draws noise.
        self.carry: Carry | None = None
        #: Sums of the rewards of streams (:func:`ppo_plus.rollout.streams.complete_streams`); ``None``: unknown.
        self.stream_sums: th.Tensor | None = None

    def begin(self, device: th.device, forget: bool) -> None:
        """Begin a call of ``learn`` on a device; ``forget`` memory and noise if its episodes are new ones."""
        self.carry = None if forget else tree_map(lambda tensor: tensor.to(device), self.carry)
        self.stream_sums = None if forget else self.stream_sums

    def __getstate__(self) -> dict[str, Any]:
        # On the CPU, so that it can be loaded without a GPU.
        return tree_map(lambda part: part.cpu() if isinstance(part, th.Tensor) else part, vars(self))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout is collected with."""

    policy: ActorCriticPolicy  # whose actions to take
    act: Act  # the function that chooses them (`prepare_act`)
    masks: MaskSource | None  # where action masks come from; `None`: there are none
    buffer: RolloutBuffer  # where to store the transitions
    device: th.device  # where the policy computes
    sde_sample_freq: int | str  # when held noise is renewed, as in `PPO_Plus`
    steps_per_sequence: int = 0  # steps of the sequences that are stored; 0 without memory
    window: int = 100  # how many of the last episodes are reported, at most


class EnvStep(NamedTuple, Generic[Kind]):
    """A step of ``N`` environments, in arrays or in tensors."""

    obs: Kind | dict[str, Kind]  # the observations before it
    starts: Kind  # which of them begin an episode, booleans `(N,)`
    masks: Kind | None  # action masks, booleans `(N, M)`; `None`: none, or in the observations
    obs_tensor: PyTorchObs  # the observations as the policy saw them
    chosen: PolicyOutput  # what the policy returned for them
    env_actions: Any  # its actions as the environments take them
    new_obs: Kind | dict[str, Kind]  # the next observations
    rewards: Kind  # shape `(N,)`
    dones: Kind  # which episodes have ended, booleans `(N,)`
    valid: Kind | None  # which rows are transitions (`RolloutBuffer.add`), booleans `(N,)`; `None`: all
    infos: Sequence[dict[str, Any]]

    @property
    def next_starts(self) -> Kind:
        """Which of ``new_obs`` begin an episode, booleans ``(N,)``: also those that follow no transition."""
        return self.dones if self.valid is None else self.dones | ~self.valid


def values_after(
    policy: ActorCriticPolicy, buffer: RolloutBuffer, rows: th.Tensor, columns: th.Tensor, final_obs: PyTorchObs
) -> th.Tensor:
    """The critic's values of final observations of ``M`` transitions, shape ``(M, K)`` with ``K - 1`` streams. With
    memory, each is the last step of a sequence of the rollout that ends with that transition."""
    device = policy.device
    if not buffer.memories:
        final_obs = tree_map(lambda final: to_device(final, device), final_obs)
        return policy.predict_values(final_obs).reshape(len(rows), -1)  # type: ignore[no-any-return]
    length = buffer.buffer_size // len(buffer.memories)

    memories = tree_map(lambda *parts: th.stack(parts), *buffer.memories)

    def values(part: th.Tensor) -> th.Tensor:
        row, column = rows[part], columns[part]
        first, which, last = row // length * length, th.arange(len(part), device=row.device), row % length + 1
        steps = first[:, None] + th.arange(length + 1, device=row.device)
        at_end = steps == row[:, None] + 1
        steps = steps.clamp(max=buffer.buffer_size - 1)  # what follows the final observation is not read

        def sequences(stored: th.Tensor, final: th.Tensor) -> th.Tensor:
            taken = stored[steps, column[:, None]]
            # By index, torch cannot assign unsigned integers of more than 8 bits.
            is_final = at_end.view(*steps.shape, *[1] * (taken.dim() - 2))
            return to_device(th.where(is_final, final[:, None].to(stored.dtype), taken).flatten(0, 1), device)

        obs = tree_map(lambda stored, final: sequences(stored, final[part]), buffer.stored("observations"), final_obs)
        starts = sequences(buffer.stored("episode_starts"), th.zeros(len(part), device=row.device)).bool()
        # Memory is where the policy is, and indices on another device would be waited for.
        sequence, env = to_device(first // length, device), to_device(column, device)
        memory = tree_map(lambda stored: stored[sequence, env], memories)
        by_step = policy.predict_values(obs, Carry(memory), starts)
        return by_step[to_device(which * (length + 1) + last, device)]  # type: ignore[no-any-return]

    parts = th.split(th.arange(len(rows), device=rows.device), max(AT_ONCE // (length + 1), 1))
    return th.cat([values(part) for part in parts])


class Collector:
    """Collects one rollout, from environments in NumPy's arrays. Each step updates their ``position``; ``step`` is how
    many steps each of them has taken, for messages."""

    #: Once the rollout has ended: the last observations as tensors, the memory before them (``None``: empty), and which
    #: of them begin an episode, on the device of the storage.
    _last: tuple[Any, Carry | None, th.Tensor]
    #: Transitions that a time limit, and nothing else, ended, and their final observations as tensors.
    _at_limits: tuple[RowsAndColumns, Any]

    def __init__(self, plan: RolloutPlan, env: VecEnv, position: Position, step: int):
        self._plan, self.position, self._step = plan, position, step
        #: The sums of streams before the rollout. Until it ends, the position has none.
        self._stream_sums, position.stream_sums = position.stream_sums, None
        #: Steps taken in this rollout.
        self.n_steps = 0
        #: The step that is not stored yet, an :class:`EnvStep`.
        self.pending: Any = None
        #: Transitions that a time limit ended: row, column, final observation.
        self._limited: list[tuple[int, int, Any]] = []
        #: Which episodes have ended in each step, booleans ``(N,)``.
        self._dones: list[Any] = []
        self._use(env)

    def _use(self, env: VecEnv) -> None:
        self._env, self._checked = env, CheckedEnvs(env, lambda: self._step)
        if self.position.obs is None:
            restart(self.position, env, self._checked)
        self.position.obs = mapped(np.array, self.position.obs)
        #: Whether last observations come from what resets environments before they can be copied.
        resets = any(isinstance(layer, (SubprocVecEnv, AsyncVectorEnv, SyncVectorEnv)) for layer in layers(env))
        self._may_overwrite = resets and getattr(env, "autoreset", None) != AutoresetMode.NEXT_STEP

    def leave(self) -> None:
        """End the rollout early: the next one continues from where the pending step led."""
        if self.pending is not None and self.position.obs is not None:
            self.position.obs, self.position.starts = self.pending.new_obs, self.pending.next_starts
        self.pending = None

    def step(self) -> EnvStep[Any]:
        """Take a step with the policy's actions, and return it.

        :raises ValueError: the observations have another shape than their space, or the masks are not valid
        :raises FloatingPointError: the policy's output, an observation or a reward is not finite
        """
        plan, position = self._plan, self.position
        masks = None if plan.masks is None else plan.masks.read(self._env, position.obs, self._step)
        obs, starts = position.obs, np.asarray(position.starts, dtype=bool)
        obs_tensor, chosen = self._choose(obs, starts, masks)
        env_actions = plan.policy.distribution.to_env(chosen.actions)
        with self._checked:
            # SB3 declares arrays only; Dict and Tuple spaces need a list.
            new_obs, rewards, dones, infos = self._env.step(env_actions)  # type: ignore[arg-type]
            self._step += 1
            n_envs = self._env.num_envs
            # Copies: environments may return the same arrays in each step, also in an evaluation by a callback.
            new_obs, dones = mapped(np.array, new_obs), np.array(dones, dtype=bool).reshape(n_envs)
            rewards = np.array(rewards).reshape(n_envs)
            rewards = rewards if rewards.dtype.kind == "f" else rewards.astype(np.float32)
            self._checked.require_finite(new_obs, rewards)
        valid = None
        if np.count_nonzero(dones) and any(resets := [is_reset(info) for info in infos]):
            valid = ~np.array(resets)
            dones = dones & valid
        taken = obs, starts, masks, obs_tensor, chosen, env_actions
        step: EnvStep[np.ndarray] = EnvStep(*taken, new_obs, rewards, dones, valid, infos)
        self.pending = step
        return step

    def _choose(self, obs: VecEnvObs, starts: np.ndarray, masks: np.ndarray | None) -> tuple[PyTorchObs, Any]:
        """The observations as the policy sees them, and what it chooses, a :class:`PolicyOutput` of arrays."""
        plan, policy = self._plan, self._plan.policy
        carry = self._next_carry(starts)
        obs_tensor = to_network(obs, policy.observation_space, plan.device)
        starts_tensor = to_device(th.from_numpy(starts), plan.device) if policy.remembers else None
        masks_tensor = None if masks is None else to_device(th.from_numpy(masks), plan.device)
        try:
            packed, self.position.carry = plan.act(obs_tensor, carry, starts_tensor, masks_tensor)
        except Exception:
            # Checked only on errors, so that steps are not slower.
            check_shape(obs, policy.observation_space, len(starts))
            raise
        step: Any = PolicyOutput.unpacked(packed.cpu().numpy(), policy.distribution.action_dim)
        # A log-probability is not finite where a parameter or an action is not.
        if not is_finite(step.values + step.log_probs):
            raise not_finite(policy, self._step)
        if step.actions.dtype != policy.distribution.dtype:
            step = step._replace(actions=step.actions.astype(policy.distribution.dtype))
        return obs_tensor, step

    def _next_carry(self, starts: np.ndarray | th.Tensor) -> Carry:
        """The carry of the next step, whose noise is drawn again if it is due; ``starts`` as of :class:`Position`."""
        policy, carry, freq = self._plan.policy, self.position.carry, self._plan.sde_sample_freq
        if carry is None:
            carry = tree_map(th.Tensor.contiguous, policy.init_carry(len(starts)))
        elif not isinstance(freq, str):
            if self.n_steps == 0 or (freq > 0 and self.n_steps % freq == 0):
                carry = policy.renew_noise(carry, np.arange(len(starts)))
        elif isinstance(starts, th.Tensor) and starts.device.type != "cpu":
            # Asking an accelerator which episodes begin takes longer than drawing the noise of all environments.
            renewed = policy.renew_noise(carry, np.arange(len(starts)))
            carry = carry._replace(noise=where(starts, renewed.noise, carry.noise))
        elif len(starting := np.flatnonzero(starts)):
            carry = policy.renew_noise(carry, starting)
        if self._plan.steps_per_sequence and self.n_steps % self._plan.steps_per_sequence == 0:
            self._plan.buffer.begin_sequences(carry.memory)
        return carry

    def locals(self) -> dict[str, Any]:
        """What callbacks find of the pending step in their ``locals``, under SB3's names."""
        step, shown = self.pending, self._shown
        return {
            "obs_tensor": step.obs_tensor,
            "action_masks": step.masks,
            "actions": shown(step.chosen.actions),
            "values": as_tensor(step.chosen.values[:, None]),
            "log_probs": as_tensor(step.chosen.log_probs),
            "clipped_actions": shown(step.env_actions),
            "new_obs": shown(step.new_obs),
            "rewards": shown(step.rewards),
            "dones": shown(step.dones),
            "infos": step.infos,
        }

    def _shown(self, values: Any) -> Any:
        return values

    def store(self, env: VecEnv) -> None:
        """Store the pending step, and continue from it, or from a reset if something else has used the environments.

        :param env: the environments to continue in
        :raises FloatingPointError: a final observation is not finite
        """
        step: EnvStep[Any] = self.pending
        starts, infos = step.next_starts, step.infos
        limited = self._limited_in(step) if np.count_nonzero(step.dones) else []
        with self._checked if limited else nullcontext():
            for i, final_obs in limited:
                require_finite("final observation", final_obs, self._step, env=i)
        if self.position.obs is None:
            # Something else has used the environments.
            limited += [(i, row_of(step.new_obs, i)) for i in np.flatnonzero(~starts).tolist()]
            self._use(env)
        else:
            self.position.obs, self.position.starts = step.new_obs, starts
        self._limited += [(self.n_steps, i, final_obs) for i, final_obs in limited]
        actions, values, log_probs, params = step.chosen
        streams = self._plan.policy.streams
        after, rewards = (None, None) if streams is None else stream_columns(streams, step.new_obs, step.dones, infos)
        # Rewards are computed from the last observations of episodes.
        if after is not None and np.count_nonzero(step.dones):
            with self._checked:
                require_finite("observation", after, self._step)
        row = step.obs, actions, step.rewards, step.starts, values, log_probs, params, step.masks
        self._plan.buffer.add(*row, after, rewards, step.valid)
        self._dones.append(step.dones)
        self.n_steps += 1
        self.pending = None

    def _limited_in(self, step: EnvStep[np.ndarray]) -> list[tuple[int, Any]]:
        """Index and final observation of the environments whose episode a time limit, and nothing else, has ended."""
        limited: list[tuple[int, Any]] = []
        for i in np.flatnonzero(step.dones).tolist():
            final_obs, is_limited = step.infos[i].get("terminal_observation"), step.infos[i].get(TIMEOUT)
            if is_limited and final_obs is not None:
                # Copied: the environment may reuse the array before the rollout ends.
                final = copied(final_obs, self._env.observation_space)
                limited.append((i, final))
                pairs = zip(tree_leaves(final), tree_leaves(row_of(step.new_obs, i)), strict=True)
                if self._may_overwrite and all(np.array_equal(*pair) for pair in pairs):
                    warnings.warn(
                        "an environment ended an episode at a time limit with the observation that the next one "
                        "begins with. If that is because it writes into one array, let it return copies, or use "
                        "SupervisedVecEnv: training bootstraps from the last observation",
                        stacklevel=5,
                    )
            elif is_limited or (is_limited is None and final_obs is not None):
                warnings.warn(
                    "an environment ended an episode with only one of 'TimeLimit.truncated' (whether only a time limit "
                    "ended it) and 'terminal_observation' (the last one before the reset) in its info, so it is "
                    "learned as an end after which nothing follows: have the environment set both",
                    stacklevel=5,
                )
        return limited

    def finish(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """End the rollout; :meth:`estimate` may be called then. Returns the infos of its last episodes that no step has
        returned, and what the environments logged (``rollout_log``)."""
        policy, position, buffer = self._plan.policy, self.position, self._plan.buffer
        rows, columns, final_obs = zip(*self._limited, strict=True) if self._limited else ((), (), ())
        to_tensors = partial(to_network, space=policy.observation_space)
        obs = to_tensors(position.obs, device=self._plan.device)
        self._last = obs, position.carry, th.from_numpy(np.array(position.starts))
        places = th.tensor(rows, dtype=th.long, device="cpu"), th.tensor(columns, dtype=th.long, device="cpu")
        stacked = tree_map(lambda *parts: np.stack(parts), *final_obs) if final_obs else None
        self._at_limits = places, to_tensors(stacked, device=buffer.storage) if final_obs else None
        return [], getattr(self._env, "rollout_log", dict)()

    def estimate(self, buffer: RolloutBuffer) -> th.Tensor:
        """Estimate the advantages of the rollout, or of a twin of it, and its streams, from present values; returns
        those of the observations after the last step, ``(N, 1)``, with streams ``(N, K)``."""
        policy, (obs, carry, starts), ((rows, columns), final_obs) = self._plan.policy, self._last, self._at_limits
        carry = carry or Carry(policy.init_memory(len(starts)))
        with th.no_grad():
            final_values = values_after(policy, buffer, rows, columns, final_obs) if len(rows) else th.empty(0, 1)
            last_values = policy.predict_values(obs, carry, to_device(starts, policy.device)).reshape(len(starts), -1)
        buffer.is_combined = False
        for k, part in enumerate((buffer, *buffer.stream_buffers)):
            if len(rows) and part.episodic:
                part.bootstrap_timeouts(rows, columns, final_values[:, k])
            part.estimate(last_values[:, k : k + 1], starts)
        return last_values

    def complete_streams(self, total: Callable[[Moments], Moments]) -> dict[str, float]:
        """Compute the streams of the rollout; the mean sum of each over the episodes that have ended, by name.
        ``total`` returns the moments of all processes together, given those of this one."""
        plan, dones = self._plan, th.stack([*map(as_tensor, self._dones)])
        sums, means = complete_streams(plan.policy, plan.buffer, self._stream_sums, dones, total)
        self.position.stream_sums = sums
        return means


def restart(position: Position, env: VecEnv, checked: CheckedEnvs) -> None:
    """Reset the environments, whose memory is cleared and whose noise is drawn again."""
    with checked:
        position.obs = env.reset()
    checked.check_reset(position.obs)
    position.starts, position.carry = np.ones(env.num_envs, dtype=bool), None


def prepare_act(
    policy: ActorCriticPolicy, masks: MaskSource | None, compilation: Compilation, may_move: bool = True
) -> Act:
    """How a policy acts in the next rollout, compiled if training is; ``may_move``: callbacks may move weights."""
    tensors = [*policy.parameters(), *policy.buffers()]
    if vars(policy)["_forward_hooks"] or vars(policy)["_forward_pre_hooks"]:
        message = "forward hooks on the policy itself are not called: register them on parts like policy.mlp_extractor"
        warnings.warn(message, stacklevel=5)

    def plain(*inputs: Any) -> tuple[th.Tensor, Carry]:
        step, carry = policy.act(*inputs)
        return step.packed(), carry

    def act(weights: list[th.Tensor], *inputs: Any) -> tuple[th.Tensor, Carry]:
        with swapped(policy, [*policy.parameters(), *policy.buffers()], weights):
            return plain(*inputs)

    compiled = compilation.compiled("acting", act, Reads(tensors, {"policy": policy, "masks": masks}))
    function = plain if compiled is None else compiled.bind(tensors, plain=plain, may_move=may_move)
    no_grad = th.no_grad()

    def without_gradients(*inputs: Any) -> tuple[th.Tensor, Carry]:
        # As a decorator, it would make a context for each step.
        with no_grad:
            return function(*inputs)  # type: ignore[no-any-return]

    return without_gradients


def where(mask: th.Tensor, one: Tree, other: Tree) -> Tree:
    """Rows of one nesting of tensors where a mask ``(N,)`` is true, and of another one elsewhere."""
    chosen: Tree = tree_map(lambda a, b: a.where(mask.reshape(-1, *[1] * (a.ndim - 1)), b), one, other)
    return chosen
