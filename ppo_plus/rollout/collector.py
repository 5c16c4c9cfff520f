"""Collecting rollouts: what stands between the environments and the policy while they act."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.autoreset import is_reset
from ppo_plus.envs.errors import CheckedEnvs, check_reset, check_shape
from ppo_plus.envs.normalization import Statistics
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.envs.vec_env import row_of
from ppo_plus.policy.carry import Carry, Memory
from ppo_plus.policy.observations import to_network
from ppo_plus.require import require_finite
from ppo_plus.rollout.acting import Act
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.trees import tree_map


@dataclass(frozen=True)
class Task:
    """A rollout to collect.

    :param policy: whose actions to take
    :param act: its act
    :param buffer: where to store the transitions
    :param sde_sample_freq: when held noise is renewed, as in :class:`~ppo_plus.PPO_Plus`
    :param steps_per_sequence: steps of the sequences that are stored; 0 without memory
    """

    policy: Any
    act: Act
    buffer: RolloutBuffer
    sde_sample_freq: int | str
    steps_per_sequence: int


class Decision:
    """The actions for ``N`` environments, with what they were chosen from; arrays have SB3's names.

    :param obs: the observations
    :param starts: which of them begin an episode, booleans ``(N,)``
    :param masks: action masks, booleans ``(N, M)``; ``None``: none, or in the observations
    :param obs_tensor: the observations as the policy saw them
    :param step: a packed step
    :param distribution: of the actions
    """

    def __init__(
        self,
        obs: Any,
        starts: np.ndarray,
        masks: np.ndarray | None,
        obs_tensor: Any,
        step: np.ndarray,
        distribution: Any,
    ):
        n = distribution.action_dim
        self.obs, self.starts, self.masks, self.obs_tensor = obs, starts, masks, obs_tensor
        self.actions: np.ndarray = step[:, :n].astype(distribution.dtype, copy=False)
        self.value, self.log_prob, self.params = step[:, n], step[:, n + 1], step[:, n + 2 :]
        self.clipped_actions = distribution.to_env(self.actions)


class Collector:
    """The state of collecting: where the environments are, and what is carried from step to step.

    :param device: where the policy computes
    """

    def __init__(self, device: th.device | str = "cpu"):
        self.device = th.device(device)
        #: Last observations; ``None``: the environments are to be reset.
        self.obs: Any = None
        #: Which of them begin an episode, booleans ``(N,)``.
        self.starts: np.ndarray | None = None
        #: Memory and held noise of each environment; ``None``: both start anew.
        self.carry: Carry | None = None
        self._begin_rollout()

    def _begin_rollout(self) -> None:
        self._task: Any = None
        #: Of the environments' observations and rewards, as they were when the rollout began.
        self._statistics: Any = None
        #: Steps taken in this rollout.
        self.n_steps = 0
        #: Observations that the current step returned.
        self._incoming: Any = None
        #: How many steps each environment has taken, for messages.
        self._step = 0
        #: What was remembered before the present step's end.
        self._memory: Memory = {}
        #: Transitions cut by a time limit: row, column, final observation, memory before that.
        self._timeouts: list[tuple[int, int, Any, Memory]] = []
        #: Transitions in which a vector environment ignored the action and reset: row, column.
        self._resets: list[tuple[int, int]] = []
        #: Steps that led nowhere, since the environment failed and was replaced: row, column.
        self._cuts: list[tuple[int, int]] = []
        #: Where the rollout ended: the observations after its last step, what was remembered, which begin an episode.
        self._end: Any = None
        #: Its rewards as the environments gave them, ``(T, N)``.
        self._rewards: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # An incomplete rollout is dropped. On the CPU, so that it can be loaded where there is no GPU.
        kept = Collector()
        kept.obs, kept.starts = self.obs, self.starts
        kept.carry = None if self.carry is None else tree_map(th.Tensor.cpu, self.carry)
        return vars(kept)

    def forget(self) -> None:
        """Clear the memory, and draw all noise anew."""
        self.carry = None

    def to(self, device: th.device) -> None:
        """Go on where the policy computes now."""
        self.device = device
        if self.carry is not None:
            self.carry = tree_map(lambda tensor: tensor.to(device), self.carry)

    def interrupt(self) -> None:
        """Something else is going to use the environments: their episodes end here, as at a time limit."""
        self.obs = None
        # A wrapper may write into the observations that it has just returned.
        self._incoming = copy.deepcopy(self._incoming)

    def settle(self) -> None:
        """Somebody is going to ask the environments' wrappers: have them know all that there is to know by now."""

    def begin(self, task: Task, env: VecEnv, step: int) -> None:
        """Begin a rollout.

        :param task: what to collect
        :param env: the environments
        :param step: how many steps each of them has taken, for messages
        """
        self._begin_rollout()
        self._task = task
        if self.obs is None:
            self.restart(env, step)
        else:
            self._statistics = Statistics(env)

    def restart(self, env: VecEnv, step: int) -> None:
        """Reset the environments; parameters as for :meth:`begin`."""
        self._statistics = Statistics(env)
        with CheckedEnvs(env, lambda: step):
            self.obs = env.reset()
        check_reset(env, self.obs, step, self._statistics)
        self.starts = np.ones((env.num_envs,), dtype=bool)
        self.forget()

    def decide(self, masks: np.ndarray | None) -> Decision:
        """Choose the next actions.

        :param masks: action masks, booleans ``(N, M)``; ``None``: none, or in the observations
        :raises ValueError: the observations are of another shape than their space
        """
        # Copies: environments may return the same arrays in each step, and a transition is stored after the next one.
        task, obs, starts = self._task, _copied(self.obs), self.starts.copy()  # type: ignore[union-attr]
        policy = task.policy
        carry = self.renew_noise(policy, task.sde_sample_freq)
        if task.steps_per_sequence and self.n_steps % task.steps_per_sequence == 0:
            task.buffer.begin_sequences(carry.memory)
        obs_tensor = to_network(obs, policy.observation_space, self.device)
        starts_tensor = self._tensor(np.asarray(starts, dtype=bool)) if policy.remembers else None
        try:
            step, self.carry = task.act(obs_tensor, carry, starts_tensor, self._tensor(masks))
        except Exception:
            # Checked only on errors, so that steps are not slower.
            check_shape(obs, policy.observation_space, len(starts))  # type: ignore[arg-type]
            raise
        self._memory = self.carry.memory
        return Decision(obs, starts, masks, obs_tensor, step.cpu().numpy(), policy.family)  # type: ignore[arg-type]

    def renew_noise(self, policy: Any, sde_sample_freq: int | str) -> Carry:
        """The carry, with held noise drawn again where it is due."""
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

    def receive(self, new_obs: Any, rewards: np.ndarray, step: int) -> None:
        """Take what the environments have returned.

        :raises FloatingPointError: a number is not finite
        """
        self._statistics.require_finite(step, new_obs, rewards)
        self._incoming, self._step = new_obs, step

    def store(
        self,
        decision: Decision,
        rewards: np.ndarray,
        dones: np.ndarray,
        infos: list[dict[str, Any]],
        env: VecEnv,
    ) -> None:
        """Store a transition, and go on from where it led.

        :param decision: the actions taken
        :param rewards: shape ``(N,)``
        :param dones: which episodes have ended, shape ``(N,)``
        :param infos: one for each environment
        :param env: the environments to go on with
        :raises FloatingPointError: a final observation is not finite
        """
        row, new_obs = self.n_steps, self._incoming
        truncated = _truncated(dones, infos)
        for i, final_obs in truncated:
            require_finite("final observation", final_obs, self._step, env=i)
        if self.obs is None:
            # Something else has used the environments.
            truncated += [(i, row_of(new_obs, i)) for i in np.flatnonzero(~dones).tolist()]
            self.restart(env, self._step)
            new_obs, dones = self.obs, np.ones_like(dones)
        self._timeouts += [(row, i, final_obs, _row(self._memory, i)) for i, final_obs in truncated]
        if np.count_nonzero(dones):
            self._resets += [(row, i) for i in np.flatnonzero(dones).tolist() if is_reset(infos[i])]
            self._cuts += [(row, i) for i in np.flatnonzero(dones).tolist() if RESTART in infos[i]]
        extra = {} if decision.masks is None else {"masks": decision.masks}
        self._task.buffer.add(
            decision.obs,
            decision.actions,
            rewards,
            decision.starts,
            decision.value,
            decision.log_prob,
            decision.params,
            **extra,
        )
        self.n_steps += 1
        self.obs, self.starts = new_obs, dones

    def finish(self) -> None:
        """End a rollout: exclude the steps that only reset, and estimate advantages."""
        buffer = self._task.buffer
        assert self.starts is not None
        # Copies: whoever uses the environments before advantages are estimated anew may write into these.
        self._end = _copied(self.obs), self._memory, self.starts.copy()
        self._rewards = buffer.rewards.copy()
        if self._resets:
            buffer.exclude(*map(list, zip(*self._resets, strict=True)))  # type: ignore[arg-type]
        self.estimate(buffer)

    def estimate(self, buffer: RolloutBuffer) -> None:
        """Bootstrap from the policy's present values of final and last observations, and estimate advantages.

        :param buffer: has the rollout, and the values of its observations; or a twin of it
        """
        policy = self._task.policy
        obs, memory, starts = self._end
        buffer.rewards[...] = self._rewards
        with th.no_grad():
            values = self._values(policy, obs, memory, starts)
            if self._timeouts:
                rows, columns, final_obs, memories = zip(*self._timeouts, strict=True)
                memory = tree_map(lambda *parts: th.stack(parts), *memories)
                final_values = self._values(policy, _stack(final_obs), memory)
                buffer.bootstrap_timeouts(list(rows), list(columns), final_values)
        if self._cuts:
            buffer.cut(*map(list, zip(*self._cuts, strict=True)))  # type: ignore[arg-type]
        buffer.compute_returns_and_advantage(last_values=values, dones=starts)

    def _values(self, policy: Any, obs: Any, memory: Memory, starts: np.ndarray | None = None) -> th.Tensor:
        """The critic's values of observations, given what is remembered before them."""
        obs_tensor = to_network(obs, policy.observation_space, self.device)
        return policy.predict_values(obs_tensor, Carry(memory), self._tensor(starts))  # type: ignore[no-any-return]

    def _tensor(self, array: np.ndarray | None) -> th.Tensor | None:
        return None if array is None else th.as_tensor(array, device=self.device)


def ended(dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
    """Which episodes have ended: ``dones`` without the steps that a vector environment took to reset.

    :param dones: behind which steps an episode starts, booleans ``(N,)``
    :param infos: one for each environment
    """
    if not np.count_nonzero(dones):
        return dones
    return dones & [not is_reset(info) for info in infos]


def _truncated(dones: np.ndarray, infos: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Index and final observation of the environments whose episode a time limit, and nothing else, has ended."""
    if not np.count_nonzero(dones):
        return []
    return [
        # Copied: the environment may reuse the array before the rollout ends.
        (i, copy.deepcopy(infos[i]["terminal_observation"]))
        for i in np.flatnonzero(dones).tolist()
        if infos[i].get("TimeLimit.truncated", False) and infos[i].get("terminal_observation") is not None
    ]


def _row(memory: Memory, i: int) -> Memory:
    """The memory of environment ``i``."""
    return {name: tuple(part[i] for part in state) for name, state in memory.items()}


def _copied(obs: Any) -> Any:
    return {key: array.copy() for key, array in obs.items()} if isinstance(obs, dict) else obs.copy()


def _stack(observations: Any) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)
