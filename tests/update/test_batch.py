"""Minibatches: rows of a rollout, and with memory the sequences that they are."""

import torch as th

from ppo_plus import Batch, Carry
from ppo_plus.update.batch import pick


def sequences(n=3, length=2):
    """Sequences one after another; before each, its number is remembered."""
    numbers = th.arange(float(n * length))
    memory = {"actor": (th.arange(float(n)).view(n, 1, 1),)}
    starts = th.zeros(n * length, dtype=th.bool)
    valid = numbers % 3 != 0
    fields = {name: numbers for name in ("old_values", "old_log_prob", "advantages", "returns")}
    observations = {"a": numbers[:, None]}
    return Batch(observations, numbers[:, None], **fields, carry=Carry(memory), episode_starts=starts, valid=valid)


def test_memory_goes_with_its_sequence():
    batch = pick(sequences(), th.tensor([4, 5, 0, 1]))
    assert batch.returns.tolist() == batch.observations["a"].flatten().tolist() == [4, 5, 0, 1]
    assert batch.carry.memory["actor"][0].flatten().tolist() == [2, 0]


def test_valid_transitions_are_in_no_sequences():
    batch = sequences().only_valid()
    assert batch.returns.tolist() == batch.actions.flatten().tolist() == [1, 2, 4, 5]
    assert batch.carry is None and batch.valid is None
