"""Minibatches: what a loss is computed from."""

from typing import Any, NamedTuple

import torch as th

from ppo_plus.policy.distributions import widest
from ppo_plus.policy.policies import Carry, Features
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map

Observations = th.Tensor | dict[str, th.Tensor]


class Batch(NamedTuple):
    """A minibatch of ``B`` transitions, with the names of SB3's ``RolloutBufferSamples``.

    :param observations: tensor ``(B, ...)``, or a dict of them
    :param actions: internal actions (see :mod:`ppo_plus.policy.distributions`), float32, shape ``(B, action_dim)``
    :param old_values: the critic's predictions during the rollout, shape ``(B,)``
    :param old_log_prob: log-probability of the actions when they were taken, shape ``(B,)``
    :param advantages: shape ``(B,)``
    :param returns: targets of the critic, shape ``(B,)``
    :param old_params: parameters of the action distribution during the rollout, shape ``(B, param_dim)``; ``None`` from
        a buffer class that does not keep them
    :param masks: action masks (:mod:`ppo_plus.policy.masking`), booleans ``(B, M)``; ``None`` where there are none,
        or they are in the observations
    :param carry: with memory: what was remembered before the first step of each sequence. The transitions are then
        sequences of equal length, one after another; ``None`` without memory
    :param episode_starts: with memory: which observations begin an episode, shape ``(B,)``
    :param valid: which transitions to learn from, booleans ``(B,)``; ``None``: all. The others only hand on the memory
    :param normalized: advantages normalized within the minibatch that several processes have parts of, shape ``(B,)``;
        ``None``: there is one process
    :param features: what the policy's encoder makes of the observations, where it has run already; else ``None``
    """

    observations: Observations
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    old_params: th.Tensor | None = None
    masks: th.Tensor | None = None
    carry: Carry | None = None
    episode_starts: th.Tensor | None = None
    valid: th.Tensor | None = None
    normalized: th.Tensor | None = None
    features: Features | None = None

    def only_valid(self) -> "Batch":
        """The valid transitions alone, no longer in sequences."""
        assert self.valid is not None
        return pick(self._replace(carry=None, valid=None), self.valid.nonzero().squeeze(1))


def pick(data: Batch, indices: th.Tensor) -> Batch:
    """The transitions of a batch with these indices; with memory these are those of whole sequences."""
    transitions: Batch = rows(data._replace(carry=None), indices)
    if data.carry is None:
        return transitions
    length = steps_per_sequence(data)
    return transitions._replace(carry=rows(data.carry, indices[::length] // length))


def steps_per_sequence(data: Batch) -> int:
    """How many transitions of a batch belong together: with memory those of a sequence, else each is one by itself."""
    return 1 if data.carry is None else len(data.returns) // len(tree_leaves(data.carry)[0])


def n_transitions(data: Batch, indices: th.Tensor) -> int:
    """How many transitions of a minibatch are learned from."""
    return len(indices) if data.valid is None else int(data.valid[indices].sum())


def read(data: Any) -> Any:
    """Any nesting of tensors on the CPU, from a device in one copy. Integers up to 2**53 stay exact."""
    leaves, structure = tree_flatten(data)
    if all(leaf.device.type == "cpu" for leaf in leaves):
        return data
    numbers = th.cat([leaf.reshape(-1).to(widest(leaf.device)) for leaf in leaves]).cpu()
    parts = th.split(numbers, [leaf.numel() for leaf in leaves])
    return structure.unflatten(part.view(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True))


def rows(data: Any, indices: th.Tensor) -> Any:
    """The rows with these indices of any nesting of tensors."""
    return tree_map(lambda tensor: tensor.index_select(0, indices), data)
