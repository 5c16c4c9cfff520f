"""Advantages recomputed between the epochs of an update, with what the critic has learned in it.

Advantages and returns depend on the critic, which learns during an update, so recomputed estimates are better.

Source: Andrychowicz et al. 2021, *What Matters for On-Policy Deep Actor-Critic Methods?* (arXiv:2006.05990), which
recommends it; Tianshou's ``recompute_advantage``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch as th

from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.rollout.buffer import AT_ONCE, RolloutBuffer
from ppo_plus.update.minibatch import Batch, pick, steps_per_sequence


def values_of(policy: ActorCriticPolicy, rollout: Batch) -> th.Tensor:
    """What the critic predicts for every observation of a rollout; with memory, by sequences from the stored memory.

    :param rollout: ``B`` transitions
    :return: shape ``(B,)``
    """
    rows = th.arange(len(rollout.returns), device=rollout.returns.device)
    length = steps_per_sequence(rollout)
    parts = th.split(rows, max(AT_ONCE // length, 1) * length)
    with th.no_grad():
        return th.cat([policy.evaluate_batch(pick(rollout, part))[0] for part in parts])


@contextmanager
def following_rewards(buffer: RolloutBuffer, estimate: Callable[[RolloutBuffer], None]) -> Iterator[None]:
    """Estimate again after the block, in which callbacks may change the rewards of the rollout.

    :param estimate: as of :func:`reestimated`
    :raises ValueError: they have changed values, or advantages otherwise than by their rewards
    """
    before = buffer.twin()
    yield
    left = buffer.twin()
    buffer.stored("values").copy_(before.stored("values"))
    estimate(buffer)
    for name in ("values", "advantages", "returns"):
        found = left.stored(name)
        if not (th.equal(found, before.stored(name)) or th.allclose(found, buffer.stored(name), rtol=1e-3, atol=1e-5)):
            raise ValueError(
                f"recompute_advantages=True cannot recompute what a callback wrote into the rollout buffer's {name}: "
                "change its rewards only, from which all epochs are estimated, or use recompute_advantages=False"
            )


def reestimated(
    epochs: Iterable[Any],
    rollout: Batch,
    policy: ActorCriticPolicy,
    buffer: RolloutBuffer,
    estimate: Callable[[RolloutBuffer], None],
) -> Iterator[Any]:
    """Epochs; before each but the first, the rollout gets advantages and returns by the policy's present values.

    What describes the policy that collected the rollout stays: its log-probabilities, and the old values that
    ``clip_range_vf`` refers to, which bound how far one *update* moves the policy and the critic. So does the buffer.

    :param rollout: what the passes are over; its advantages and returns are changed in place
    :param estimate: fills the advantages and returns of a buffer that has the values, bootstrapping by the policy
    """
    for number, epoch in enumerate(epochs):
        if number:
            twin = buffer.twin()
            # As in the rollout: without dropout, and with unchanged statistics of batch normalization.
            policy.set_training_mode(False)
            twin.put_values(values_of(policy, rollout))
            estimate(twin)
            policy.set_training_mode(True)
            rollout.advantages.copy_(twin.column("advantages"))
            rollout.returns.copy_(twin.column("returns"))
        yield epoch
