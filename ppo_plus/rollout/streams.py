"""The streams of a rollout: from the infos of each step, and computed at the end. ``K - 1`` is their number."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th

from ppo_plus.envs.checked_envs import is_reset
from ppo_plus.envs.checks import InvalidOutput, as_reward
from ppo_plus.envs.supervised.shared_memory import write_row
from ppo_plus.envs.supervised.vec_env import RESTART
from ppo_plus.formulas.losses import linear_recurrence
from ppo_plus.formulas.moments import Moments
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.policy.streams import Pool, StreamPart, Streams
from ppo_plus.require import NotFinite
from ppo_plus.rollout.buffer import AT_ONCE, ObsRows, RolloutBuffer, values_of
from ppo_plus.trees import to_device, tree_map

#: Bound of normalized rewards, as that of ``VecNormalize``.
CLIP = 10.0


def stream_columns(
    streams: Streams, new_obs: ObsRows, dones: np.ndarray, infos: Sequence[dict[str, Any]]
) -> tuple[ObsRows | None, np.ndarray]:
    """What a step adds to the buffer: the observations after it, also of episodes that it has ended, if streams are
    computed from them; and the rewards in ``info``, ``(N, K - 1)``, which are 0 where an environment only reset,
    or failed, since its info then lacks the keys of streams.

    :raises KeyError: one is missing
    :raises ValueError: one is not a number
    """
    rewards = np.zeros((len(dones), len(streams.parts)), dtype=np.float32)
    for k, part in enumerate(streams.parts):
        for i in range(0 if part.stream.is_computed else len(dones)):
            info = infos[i] if i < len(infos) else {}
            if not is_reset(info) and RESTART not in info:
                found = part.stream.find(info, f" of environment {i}")
                try:
                    rewards[i, k] = as_reward(found)
                except InvalidOutput:
                    message = f"the stream {part.stream.name!r} is {found!r:.200} in the info of environment {i}"
                    raise ValueError(f"{message}: it must be one number") from None
    if not streams.are_computed:
        return None, rewards
    after = copy.deepcopy(new_obs) if dones.any() else new_obs
    for i in np.flatnonzero(dones).tolist():
        if (final := infos[i].get("terminal_observation")) is not None:
            write_row(after, i, final)
    return after, rewards


def stream_tensors(streams: Streams, infos: Mapping[str, Any], like: th.Tensor) -> th.Tensor:
    """The rewards in the infos of environments in tensors, ``(N, K - 1)``; errors as :func:`stream_columns`."""
    rows = [like * 0.0 if part.stream.is_computed else part.stream.find(infos) for part in streams.parts]
    for part, row in zip(streams.parts, rows, strict=True):
        if np.shape(row) not in ((len(like),), (len(like), 1)):
            raise ValueError(f"the stream {part.stream.name!r} is {row!r:.200} in infos: return {len(like)} numbers")
    return th.stack([th.as_tensor(row).reshape(-1).to(like) for row in rows], dim=1)


def complete_streams(
    policy: ActorCriticPolicy, buffer: RolloutBuffer, sums: th.Tensor | None, dones: th.Tensor, pool: Pool
) -> tuple[th.Tensor, dict[str, float]]:
    """Give a buffer its ``stream_buffers``, whose rewards are computed and normalized, and adapt multipliers.

    :param sums: for each environment and stream the sum of rewards in the present episode, and a discounted sum,
        ``(K - 1, 2, N)``; ``None``: they are unknown, and the present episodes are not counted
    :param dones: which steps have ended an episode, booleans ``(T, N)``
    :param pool: combines the moments of all processes
    :return: the sums after the rollout; the mean sums of the episodes that have ended in it, by name
    :raises FloatingPointError: a reward is not finite
    """
    starts, table, means = buffer.stored("episode_starts"), buffer.stored("stream_rewards"), dict[str, float]()
    after, own_buffers = [], []
    valid = None if buffer.valid is None else th.from_numpy(buffer.valid)
    known = dones
    if sums is None:
        known, sums = dones & (starts.cumsum(dim=0) > 0), table.new_zeros(table.shape[2], 2, buffer.n_envs)
    assert policy.streams is not None
    for k, part in enumerate(policy.streams.parts):
        stream = part.stream
        rewards = computed(part, buffer, pool).to(table) if stream.is_computed else table[..., k].clone()
        if valid is not None:
            rewards[~valid] = 0.0
        for row, i in (~rewards.isfinite()).nonzero()[:1].tolist():
            raise NotFinite(f"the stream {stream.name!r} is not finite in step {row} of environment {i}")
        own = buffer.twin(rewards=rewards, episode_starts=starts if stream.episodic else th.zeros_like(starts))
        own.episodic = stream.episodic
        own.gamma = buffer.gamma if stream.gamma is None else stream.gamma
        own.gae_lambda = buffer.gae_lambda if stream.gae_lambda is None else stream.gae_lambda
        totals = discounted_sums(rewards, sums[k, 0].to(rewards), starts, 1.0, valid)
        discounted = discounted_sums(rewards, sums[k, 1].to(rewards), own.stored("episode_starts"), own.gamma, valid)
        after.append(th.stack([totals[-1], discounted[-1]]))
        ended = pool(Moments.of(totals[known]))
        if ended.n > 0:
            means[stream.name] = ended.mean.item()
            part.end_rollout(means[stream.name])
        if stream.normalize:
            part.add(pool(Moments.of(discounted.flatten() if valid is None else discounted[valid])))
            rewards.div_(part.std.item()).clamp_(-CLIP, CLIP)
        own_buffers.append(own)
    buffer.stream_buffers = own_buffers
    buffer.put_values(values_of(policy, policy.prepare_rollout(buffer.on_device())))
    return th.stack(after), means


def computed(part: StreamPart, buffer: RolloutBuffer, pool: Pool) -> th.Tensor:
    """The rewards of a stream that are computed from transitions, ``(T, N)``."""
    names = ("observations", "actions", "final_observations")
    whole = [tree_map(lambda rows: rows.flatten(0, 1), buffer.stored(name)) for name in names]
    size, device, n = AT_ONCE // 4, part.mean.device, buffer.buffer_size * buffer.n_envs
    pieces = [tree_map(lambda rows, i=i: to_device(rows[i : i + size], device), whole) for i in range(0, n, size)]
    with th.no_grad():
        for i, (_, _, next_obs) in enumerate(pieces):
            if buffer.valid is not None:
                counted = to_device(th.from_numpy(buffer.valid).flatten()[i * size : (i + 1) * size], device)
                next_obs = tree_map(lambda rows, counted=counted: rows[counted], next_obs)
            part.observe(next_obs, pool)
        return th.cat([part.rewards(*piece) for piece in pieces]).view(buffer.buffer_size, buffer.n_envs)


def discounted_sums(
    rewards: th.Tensor, before: th.Tensor, starts: th.Tensor, gamma: float, valid: th.Tensor | None = None
) -> th.Tensor:
    r""":math:`S_t = r_t + \gamma (1 - d_t) S_{t-1}`, ``(T, N)``.

    :param before: :math:`S` before the first step, ``(N,)``
    :param valid: which rows are transitions, booleans ``(T, N)``; ``None``: all. The others, whose rewards are 0, leave
        the sums unchanged
    """
    decay = gamma * (1.0 - starts.to(rewards.dtype))
    if valid is not None:
        decay = decay.where(valid, 1.0)
    return linear_recurrence(decay.T, rewards.T, before).T
