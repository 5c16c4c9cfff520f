"""What processes that train one model share in an update, so that together they make the steps that one would make with
all their transitions: the moments of advantages, and the mean of losses and gradients."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch as th

from ppo_plus.distributed.ranks import Ranks, RanksError
from ppo_plus.distributed.single import Rows
from ppo_plus.formulas.losses import Losses
from ppo_plus.formulas.moments import Moments, total
from ppo_plus.policy.distributions import to_device
from ppo_plus.update.batch import Batch
from ppo_plus.update.gradient import Gradient


class Reduction:
    """Means over all processes, weighted by their numbers of transitions, in one all-reduce."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self._names: tuple[str, ...] = ()

    def __call__(self, found: tuple[Losses, Gradient] | None, targets: list[Any], n: int) -> tuple[Losses, Gradient]:
        """The loss and the gradient with respect to ``targets`` of the minibatch, given those of this process's part
        of it, if it has one. A part of the gradient that is missing in all processes stays missing."""
        if found is not None:
            self._names = tuple(found[0].diagnostics)
        elif not self._names:
            raise RanksError(f"rank {self.ranks.rank} has no transitions to learn from: use more n_steps")
        grads: Gradient = (None,) * len(targets) if found is None else found[1]
        given = [target.new_zeros(target.shape) if g is None else g for g, target in zip(grads, targets, strict=True)]
        like = given[0]
        if found is None:
            numbers = like.new_zeros(len(self._names) + 1)
        else:
            numbers = th.stack([found[0].total.detach(), *found[0].diagnostics.values()]).to(like.dtype)
        weighted = [part.reshape(-1) * n for part in (*given, numbers)]
        counts = th.tensor([*(float(g is not None) for g in grads), float(n)], dtype=like.dtype)
        flat = th.cat([*weighted, to_device(counts, like.device)])
        self.ranks.sum(flat)
        *parts, reached, count = th.split(flat, [*(part.numel() for part in weighted), len(grads), 1])
        *means, numbers = (part / count for part in parts)
        # A single target is all weights, which some loss reaches.
        missing = [False] if len(grads) == 1 else (reached == 0).tolist()
        loss, *diagnostics = numbers.unbind()
        return Losses(loss, dict(zip(self._names, diagnostics, strict=True))), tuple(
            None if absent else mean.view(target.shape)
            for absent, mean, target in zip(missing, means, targets, strict=True)
        )


def shared_epochs(ranks: Ranks, epochs: Iterable[Iterable[Rows]], normalizes: bool) -> Iterator[Iterable[Rows]]:
    """Epochs with as many minibatches in each process, of which the last ones may have no rows; with
    :attr:`~ppo_plus.Batch.normalized` advantages if it ``normalizes``, for which rollouts have a place."""
    for epoch in epochs:
        minibatches = list(epoch)
        if not minibatches:
            raise RanksError(f"rank {ranks.rank} has no transitions to learn from: use more n_steps")
        data = minibatches[0][0]
        most = int(th.cat(ranks.gather(to_device(th.tensor([len(minibatches)]), data.returns.device))).max())
        nothing = th.zeros(0, dtype=th.long, device=data.returns.device)
        minibatches += [(data, nothing)] * (most - len(minibatches))
        yield normalized(ranks, minibatches) if normalizes else minibatches


def with_room(rollout: Batch) -> Batch:
    """The rollout with a place for its normalized advantages."""
    return rollout._replace(normalized=th.zeros_like(rollout.advantages))


def normalized(ranks: Ranks, minibatches: list[Rows]) -> list[Rows]:
    """Minibatches with advantages that have mean 0 and standard deviation 1 over all processes' parts of each."""
    parts = [data.advantages[indices] for data, indices in minibatches]
    sizes = th.tensor([len(part) for part in parts])
    of = to_device(th.arange(len(parts)).repeat_interleave(sizes), parts[0].device)
    advantages = th.cat(parts).double()
    counted = th.ones_like(advantages)
    if minibatches[0][0].valid is not None:
        counted = th.cat([data.valid[i] for data, i in minibatches]).double()

    def sums(values: th.Tensor) -> th.Tensor:
        return th.zeros(len(parts), dtype=values.dtype, device=values.device).index_add_(0, of, values)

    n = sums(counted)
    mean = sums(counted * advantages) / n.clamp(min=1)
    m2 = sums(counted * (advantages - mean[of]) ** 2)
    whole = total(Moments(*table) for table in ranks.gather(th.stack([n, mean, m2])))
    # A single advantage has no standard deviation, and stays unchanged.
    alone = whole.n < 2
    shift, scale = whole.mean.where(~alone, 0.0)[of], (whole.std + 1e-8).where(~alone, 1.0)[of]
    values = th.split(((advantages - shift) / scale).to(parts[0].dtype), sizes.tolist())
    return [_with(data, indices, part) for (data, indices), part in zip(minibatches, values, strict=True)]


def _with(data: Batch, indices: th.Tensor, values: th.Tensor) -> Rows:
    """The minibatch with these normalized advantages."""
    if data.normalized is None:
        # A custom buffer, each of whose minibatches may be of another rollout.
        data = with_room(data)
    assert data.normalized is not None
    data.normalized[indices] = values
    return data, indices
