"""The collector: takes steps in the environments with the policy's actions, and stores them in the buffer."""

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.compiling.constants import Reads
from ppo_plus.compiling.torch_private import swapped, without_gradients
from ppo_plus.envs.checks import TIMEOUT, CheckedEnvs, as_rewards, check_shape, is_reset, row_of
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.policy.distributions import to_device
from ppo_plus.policy.masking import MaskSource
from ppo_plus.policy.observations import to_network
from ppo_plus.policy.policies import Carry, Memory, Step, not_finite
from ppo_plus.require import is_finite, require_finite
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.trees import tree_map

#: Acts: takes observations, carry, episode starts and masks as tensors; returns a packed step, and the next carry.
Act = Callable[..., tuple[th.Tensor, Carry]]


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout is collected with."""

    policy: Any  # whose actions to take
    act: Act  # the function that chooses them (`prepare_act`)
    masks: MaskSource | None  # where action masks come from; `None`: there are none
    buffer: RolloutBuffer  # where to store the transitions
    sde_sample_freq: int | str  # when held noise is renewed, as in `PPO_Plus`
    steps_per_sequence: int = 0  # steps of the sequences that are stored; 0 without memory
    window: int = 100  # how many of the last episodes are reported, at most


class EnvStep(NamedTuple):
    """A step of ``N`` environments: arrays, or tensors on the device of policy and environments."""

    obs: Any  # the observations before it
    starts: Any  # which of them begin an episode, booleans `(N,)`
    masks: Any  # action masks, booleans `(N, M)`; `None`: none, or in the observations
    obs_tensor: Any  # the observations as the policy saw them
    chosen: Step  # what the policy returned for them
    env_actions: Any  # its actions as the environments take them
    new_obs: Any  # the next observations
    rewards: Any  # shape `(N,)`
    new_starts: Any  # which of `new_obs` begin an episode, booleans `(N,)`
    dones: Any  # which episodes have ended: `new_starts` without steps that only reset (`ended`)
    #: One for each environment; empty for environments in tensors, which report episodes at the end.
    infos: Sequence[dict[str, Any]]


class Report(NamedTuple):
    """What is known of a rollout only when it has ended, because environments in tensors keep it on their device."""

    #: Of the last episodes that have ended, in order: the info dict a `Monitor` would have returned.
    infos: list[dict[str, Any]]
    log: dict[str, float]  # what the simulator logged, averaged over the rollout


class Collector:
    """The state of collecting: where the environments are, and what is carried from step to step."""

    #: Whether it has warned of time limits that cannot be bootstrapped.
    _has_warned = False

    def __init__(self, device: th.device | str = "cpu"):
        self.device = th.device(device)
        #: Last observations; ``None``: the environments are to be reset.
        self.obs: Any = None
        #: Which of them begin an episode, booleans ``(N,)``.
        self.starts: np.ndarray | None = None
        #: Memory and held noise of each environment; ``None``: memory is cleared and noise drawn before the next step.
        self.carry: Carry | None = None
        self._begin_rollout()

    def _begin_rollout(self) -> None:
        self._plan: Any = None
        #: The environments, and the checks of what they return.
        self._env: Any = None
        self._checked: Any = None
        #: Steps taken in this rollout.
        self.n_steps = 0
        #: Observations that the current step returned.
        self._incoming: Any = None
        #: How many steps each environment has taken, for messages.
        self._step = 0
        #: The memory after the current step's action.
        self._memory: Memory = {}
        #: Transitions cut by a time limit: row, column, final observation, memory before that.
        self._timeouts: list[tuple[int, int, Any, Memory]] = []
        #: Transitions in which a vector environment ignored the action and reset: row, column.
        self._resets: list[tuple[int, int]] = []
        #: Steps that led nowhere, since the environment failed and was replaced: row, column.
        self._cuts: list[tuple[int, int]] = []
        #: Where the rollout ended: the observations after its last step, the memory, which of them begin an episode.
        self._end: Any = None
        #: The values of final observations that its rewards have; ``None``: they have none.
        self._bootstrapped: th.Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        # An incomplete rollout is dropped. On the CPU, so that it can be loaded without a GPU.
        kept = Collector()
        parts = self.obs, self.starts, self.carry
        kept.obs, kept.starts, kept.carry = tree_map(lambda x: x.cpu() if isinstance(x, th.Tensor) else x, parts)
        return vars(kept)

    def forget(self) -> None:
        """Clear the memory, and draw new noise for all environments."""
        self.carry = None

    def to(self, device: th.device) -> None:
        """Move the carry to the device where the policy computes now."""
        self.device = device
        if self.carry is not None:
            self.carry = tree_map(lambda tensor: tensor.to(device), self.carry)

    def interrupt(self) -> None:
        """Something else is going to use the environments: their episodes end here, as at a time limit."""
        self.obs = None
        # A wrapper may write into the observations that it has just returned.
        self._incoming = copy.deepcopy(self._incoming)

    def flush(self) -> None:
        """Write pending statistics to the environments' wrappers before outside code reads them."""

    def start(self, plan: RolloutPlan, env: VecEnv, step: int) -> None:
        """Begin a rollout; ``step`` is how many steps each environment has taken, for messages."""
        self._begin_rollout()
        self._plan, self._step = plan, step
        if self.obs is None:
            self.restart(env)
        else:
            self._use(env)

    def _use(self, env: VecEnv) -> None:
        self._env, self._checked = env, CheckedEnvs(env, lambda: self._step)

    def restart(self, env: VecEnv) -> None:
        """Reset the environments."""
        self._use(env)
        with self._checked:
            self.obs = env.reset()
        self._checked.check_reset(self.obs)
        self.starts = np.ones((env.num_envs,), dtype=bool)
        self.forget()

    def step(self) -> EnvStep:
        """Take a step with the policy's actions.

        :raises ValueError: the observations have another shape than their space, or the masks are not valid
        :raises FloatingPointError: the policy's output, an observation or a reward is not finite
        """
        plan = self._plan
        masks = None if plan.masks is None else plan.masks.read(self._env, self.obs, self._step)
        # Copies: environments may return the same arrays in each step, and a transition is stored after the next one.
        obs, starts = _copied(self.obs), self.starts.copy()  # type: ignore[union-attr]
        obs_tensor, chosen = self._act(obs, starts, masks)
        env_actions = plan.policy.distribution.to_env(chosen.actions)
        with self._checked:
            new_obs, rewards, new_starts, infos = self._env.step(env_actions)
            self._step += 1
            if new_starts.dtype != bool or new_starts.ndim != 1:
                new_starts = new_starts.reshape(len(infos)).astype(bool)
            if rewards.shape != new_starts.shape or rewards.dtype.kind != "f":
                rewards = as_rewards(rewards, len(infos), self._step)
            self._checked.require_finite(new_obs, rewards)
        self._incoming = new_obs
        dones = ended(new_starts, infos)
        return EnvStep(obs, starts, masks, obs_tensor, chosen, env_actions, new_obs, rewards, new_starts, dones, infos)

    def _act(self, obs: Any, starts: np.ndarray, masks: np.ndarray | None) -> tuple[Any, Step]:
        """The observations as the policy sees them, and what it chooses."""
        plan, policy = self._plan, self._plan.policy
        carry = self._carry_now()
        obs_tensor = to_network(obs, policy.observation_space, self.device)
        starts_tensor = self._tensor(np.asarray(starts, dtype=bool)) if policy.remembers else None
        try:
            packed, self.carry = plan.act(obs_tensor, carry, starts_tensor, self._tensor(masks))
        except Exception:
            # Checked only on errors, so that steps are not slower.
            check_shape(obs, policy.observation_space, len(starts))
            raise
        self._memory = self.carry.memory
        step: Any = Step.unpacked(packed.cpu().numpy(), policy.distribution.action_dim)
        # A log-probability is not finite where a parameter or an action is not.
        if not is_finite(step.values + step.log_probs):
            raise not_finite(policy, obs_tensor, self._step)
        if step.actions.dtype != policy.distribution.dtype:
            step = step._replace(actions=step.actions.astype(policy.distribution.dtype))
        return obs_tensor, step

    def _carry_now(self) -> Carry:
        """The carry of the next step; stores the memory where a training sequence begins."""
        plan = self._plan
        carry = self.renew_noise(plan.policy, plan.sde_sample_freq)
        if plan.steps_per_sequence and self.n_steps % plan.steps_per_sequence == 0:
            plan.buffer.begin_sequences(carry.memory)
        return carry

    def renew_noise(self, policy: Any, sde_sample_freq: int | str) -> Carry:
        """The carry, with held noise drawn again if it is due."""
        assert self.starts is not None
        if self.carry is None:
            self.carry = policy.init_carry(len(self.starts))
        elif isinstance(sde_sample_freq, str):
            starting = np.flatnonzero(self.starts)
            if len(starting):
                self.carry = policy.renew_noise(self.carry, starting)
        elif self.n_steps == 0 or (sde_sample_freq > 0 and self.n_steps % sde_sample_freq == 0):
            self.carry = policy.renew_noise(self.carry, np.arange(len(self.starts)))
        assert self.carry is not None
        return self.carry

    def locals(self, step: EnvStep) -> dict[str, Any]:
        """What callbacks find of a step in their ``locals``, under SB3's names."""
        return {
            "obs_tensor": step.obs_tensor,
            "action_masks": step.masks,
            "actions": step.chosen.actions,
            "values": th.from_numpy(step.chosen.values[:, None]),
            "log_probs": th.from_numpy(step.chosen.log_probs),
            "clipped_actions": step.env_actions,
            "new_obs": step.new_obs,
            "rewards": step.rewards,
            "dones": step.dones,
            "infos": step.infos,
        }

    def store(self, step: EnvStep, env: VecEnv) -> None:
        """Store a step, and continue with the observations that it led to, or with those of a reset if something
        else has used the environments.

        :raises FloatingPointError: a final observation is not finite
        """
        row, new_obs, starts, infos = self.n_steps, self._incoming, step.new_starts, step.infos
        truncated = self._truncated(starts, infos)
        with self._checked if truncated else nullcontext():
            for i, final_obs in truncated:
                require_finite("final observation", final_obs, self._step, env=i)
        if self.obs is None:
            # Something else has used the environments.
            truncated += [(i, row_of(new_obs, i)) for i in np.flatnonzero(~starts).tolist()]
            self.restart(env)
            new_obs, starts = self.obs, np.ones_like(starts)
        self._timeouts += [(row, i, final_obs, tree_map(itemgetter(i), self._memory)) for i, final_obs in truncated]
        if np.count_nonzero(starts):
            self._resets += [(row, i) for i in np.flatnonzero(starts).tolist() if is_reset(infos[i])]
            self._cuts += [(row, i) for i in np.flatnonzero(starts).tolist() if RESTART in infos[i]]
        extra = {} if step.masks is None else {"masks": step.masks}
        actions, values, log_probs, params = step.chosen
        self._plan.buffer.add(step.obs, actions, step.rewards, step.starts, values, log_probs, params, **extra)
        self.n_steps += 1
        self.obs, self.starts = new_obs, starts

    def _truncated(self, starts: np.ndarray, infos: Sequence[dict[str, Any]]) -> list[tuple[int, Any]]:
        """Index and final observation of the environments whose episode a time limit, and nothing else, has ended.

        Warns once of infos with only one of the two entries that say so.
        """
        found: list[tuple[int, Any]] = []
        for i in np.flatnonzero(starts).tolist() if np.count_nonzero(starts) else ():
            final_obs, limited = infos[i].get("terminal_observation"), infos[i].get(TIMEOUT)
            if limited and final_obs is not None:
                # Copied: the environment may reuse the array before the rollout ends.
                found.append((i, copy.deepcopy(final_obs)))
            elif limited:
                self._warn_of_end(i, missing="terminal_observation", given=TIMEOUT)
            elif limited is None and final_obs is not None:
                self._warn_of_end(i, missing=TIMEOUT, given="terminal_observation")
        return found

    def _warn_of_end(self, i: int, missing: str, given: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"environment {i} ended an episode with {given!r} in its info but without {missing!r}, so it is "
                "learned as an end after which nothing follows, even if a time limit cut it off: have the environment "
                "set both, infos[i]['TimeLimit.truncated'] (whether only a time limit ended the episode) and "
                "infos[i]['terminal_observation'] (the last observation before the reset)",
                stacklevel=5,
            )

    def finish(self) -> Report:
        """End a rollout: exclude the steps that only reset, and estimate advantages."""
        buffer = self._plan.buffer
        assert self.starts is not None
        # Copies: code that uses the environments before advantages are recomputed may write into these.
        self._end = _copied(self.obs), self._memory, self.starts.copy()
        if self._resets:
            buffer.exclude(*map(list, zip(*self._resets, strict=True)))  # type: ignore[arg-type]
        self.estimate(buffer)
        return Report([], {})

    def estimate(self, buffer: RolloutBuffer) -> None:
        """Bootstrap from the policy's present values of final and last observations, and estimate advantages in the
        rollout's buffer, or in a twin of it whose rewards have the values with which :meth:`finish` bootstrapped."""
        policy = self._plan.policy
        obs, memory, starts = self._end
        with th.no_grad():
            values = self._values(policy, obs, memory, starts)
            if self._timeouts:
                rows, columns, final_obs, memories = zip(*self._timeouts, strict=True)
                memory = tree_map(lambda *parts: th.stack(parts), *memories)
                final_values = self._values(policy, _stack(final_obs), memory)
                buffer.bootstrap_timeouts(list(rows), list(columns), self._gain(final_values))
        if self._cuts:
            buffer.cut(*map(list, zip(*self._cuts, strict=True)))  # type: ignore[arg-type]
        buffer.compute_returns_and_advantage(last_values=values, dones=starts)

    def _gain(self, final_values: th.Tensor) -> th.Tensor:
        """By how much present values of final observations exceed those that the rewards have."""
        if self._bootstrapped is None:
            self._bootstrapped = final_values
            return final_values
        return final_values - self._bootstrapped

    def _values(self, policy: Any, obs: Any, memory: Memory, starts: np.ndarray | None = None) -> th.Tensor:
        """The critic's values of observations, given what is remembered before them."""
        obs_tensor = to_network(obs, policy.observation_space, self.device)
        return policy.predict_values(obs_tensor, Carry(memory), self._tensor(starts))  # type: ignore[no-any-return]

    def _tensor(self, array: np.ndarray | None) -> th.Tensor | None:
        return None if array is None else to_device(th.as_tensor(array), self.device)


def prepare_act(policy: Any, masks: MaskSource | None, compilation: Compilation, may_move: bool = True) -> Act:
    """How a policy acts in the next rollout, compiled if training is; ``may_move``: callbacks may move weights."""
    tensors = [*policy.parameters(), *policy.buffers()]

    def plain(*inputs: Any) -> tuple[th.Tensor, Carry]:
        step, carry = policy.act(*inputs)
        return step.packed(), carry

    def act(given: list[th.Tensor], *inputs: Any) -> tuple[th.Tensor, Carry]:
        with swapped(policy, [*policy.parameters(), *policy.buffers()], given):
            return plain(*inputs)

    compiled = compilation.compiled("acting", act, Reads(tensors, {"policy": policy, "masks": masks}))
    if compiled is None:
        return without_gradients(plain)
    return without_gradients(compiled.bind(tensors, plain=plain, may_move=may_move))


def ended(starts: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
    """Which episodes have ended, booleans ``(N,)``: all that start but those of environments that only reset."""
    if not np.count_nonzero(starts):
        return starts
    return starts & [not is_reset(info) for info in infos]


def _copied(obs: Any) -> Any:
    return {key: array.copy() for key, array in obs.items()} if isinstance(obs, dict) else obs.copy()


def _stack(observations: Any) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)
