"""Training by one process, which exchanges nothing, and by several.

After each rollout, several processes exchange episodes, normalization statistics, and whether to continue. In each
update they share the moments of advantages, and the mean of losses and gradients, so that together they make the steps
that one would make with all their transitions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.utils import explained_variance
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch import nn

from ppo_plus.distributed.ranks import (
    Fingerprint,
    Ranks,
    RanksError,
    as_text,
    differ_by_rounding,
    fingerprints,
    require_equal,
    state_of,
)
from ppo_plus.envs.normalization import running_statistics
from ppo_plus.formulas.losses import Losses
from ppo_plus.formulas.moments import Moments, total
from ppo_plus.policy.distributions import to_device
from ppo_plus.update.minibatch import Batch, Gradient

#: A minibatch: the rollout and the rows of it.
Rows = tuple[Any, th.Tensor]


class SingleProcess:
    """Where several processes would exchange something: a single one does nothing, or computes it alone."""

    #: Averages losses and gradients over processes (:class:`~ppo_plus.distributed.shared.Reduction`).
    reduction: Any = None
    #: Environments that were replaced in other processes.
    n_restarts = 0
    #: What schedules gave for the last update, which has to be the same in all processes.
    scheduled: Mapping[str, Any] = MappingProxyType({})

    def record(self, infos: Sequence[dict[str, Any]], dones: Any) -> tuple[Sequence[dict[str, Any]], Any]:
        """The infos and dones of a step that are to be logged now; ``dones`` may be ``None``, as in SB3."""
        return infos, dones

    def synchronize(
        self,
        env: Any,
        keep_training: bool,
        keep: int,
        num_timesteps: int,
        facts: Callable[[], dict[str, Any]],
        policy: nn.Module,
    ) -> tuple[bool, list[dict[str, Any]], int]:
        """End a rollout: statistics of ``env`` become those of all processes, and weights that differ by rounding are
        made the same. Returns whether all want to continue, infos of at most ``keep`` episodes of each to log now, and
        the largest count of timesteps, since one may have stopped early.

        :raises RanksError: weights, or what ``facts`` returns, differ
        """
        return keep_training, [], num_timesteps

    def normalize_advantages(self, buffer: Any) -> None:
        """Normalize the advantages of the rollouts of all processes, as those of one."""
        buffer.normalize_advantages()

    def prepare(self, rollout: Any, normalizes: bool) -> Any:
        """The rollout as :meth:`epochs` need it; ``normalizes``: advantages are normalized in each minibatch."""
        return rollout

    def epochs(self, epochs: Iterable[Iterable[Rows]], normalizes: bool) -> Iterable[Iterable[Rows]]:
        """Epochs with as many minibatches in each process, normalized over all of them."""
        return epochs

    def end_update(self, policy: nn.Module) -> None:
        """Average the statistics that layers keep of the data, such as those of batch normalization."""

    def explained_variance(self, values: np.ndarray, returns: np.ndarray) -> float:
        r"""How much of the variance of returns the critic predicts, :math:`1 - Var[R - V] / Var[R]`, of values and
        returns ``(B,)``; NaN where returns do not vary."""
        return float(explained_variance(values, returns))

    def log(self) -> dict[str, float]:
        """What is logged of the exchanges."""
        return {}


class _Message(NamedTuple):
    """The message of a process to the others after a rollout; see :meth:`SharedTraining.synchronize`."""

    facts: dict[str, str]
    keep_training: bool
    episodes: list[tuple[Any, Any]]
    moments: list[Moments]
    waited: float
    num_timesteps: int
    n_restarts: int
    weights: dict[str, Fingerprint]


class SharedTraining(SingleProcess):
    """Training by several processes as by one with all their transitions."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.reduction = Reduction(ranks)
        #: The moments of each running statistic at the start of the rollout, the same in all processes.
        self._common: list[Moments] = []
        #: Info entries of the episodes that have ended in this rollout.
        self._episodes: list[tuple[Any, Any]] = []
        #: Seconds that processes have waited for each other, on average.
        self.waited = 0.0

    def begin(self, env: VecEnv) -> None:
        """Start training: all processes take the normalization statistics of rank 0."""
        self._episodes = []
        found = _statistics(env)
        self.ranks.require_same({"VecNormalize": [np.shape(each.mean) for each in found]})
        # As they are: computed from moments, a variance may be rounded otherwise.
        for each, lead in zip(
            found, self.ranks.lead([(each.mean, each.var, each.count) for each in found]), strict=True
        ):
            each.mean, each.var, each.count = lead
        self._common = [_moments(each) for each in found]

    def record(self, infos: Sequence[dict[str, Any]], dones: Any) -> tuple[Sequence[dict[str, Any]], Any]:
        for i, info in enumerate(infos):
            done = dones is not None and dones[i]
            episode, success = info.get("episode"), info.get("is_success")
            if episode is not None or (success is not None and done):
                self._episodes.append((episode, success if done else None))
        return [], None

    def synchronize(
        self,
        env: Any,
        keep_training: bool,
        keep: int,
        num_timesteps: int,
        facts: Callable[[], dict[str, Any]],
        policy: nn.Module,
    ) -> tuple[bool, list[dict[str, Any]], int]:
        found = _statistics(env)
        new = [_moments(each).minus(common) for each, common in zip(found, self._common, strict=True)]
        texts = as_text({**facts(), **self.scheduled})
        episodes, restarts = self._episodes[-keep:], getattr(env.unwrapped, "n_restarts", 0)
        weights = fingerprints(policy)
        others = self.ranks.gather_values(
            _Message(texts, keep_training, episodes, new, self.ranks.waited, num_timesteps, restarts, weights)
        )
        require_equal([other.facts for other in others])
        if differ_by_rounding([other.weights for other in others]):
            self.ranks.copy_lead(state_of(policy).values())
        self._episodes = []
        for i, each in enumerate(found):
            _put(each, total([self._common[i], *(other.moments[i] for other in others)]))
            # What it is after a checkpoint, too, which keeps no moments.
            self._common[i] = _moments(each)
        self.waited = sum(other.waited for other in others) / len(others)
        self.n_restarts = sum(other.n_restarts for other in others)
        # In turns, since the window of means has no room for those of all.
        turns = zip_longest(*(other.episodes for other in others))
        infos = [{"episode": each[0], "is_success": each[1]} for turn in turns for each in turn if each is not None]
        return all(other.keep_training for other in others), infos, max(other.num_timesteps for other in others)

    def normalize_advantages(self, buffer: Any) -> None:
        valid = ... if buffer.valid is None else buffer.valid
        advantages = buffer.advantages[valid]
        whole = total(self.ranks.gather_values(Moments.of(th.as_tensor(advantages).cpu().reshape(-1))))
        buffer.advantages[valid] = (advantages - whole.mean.item()) / (whole.std.item() + 1e-8)

    def prepare(self, rollout: Any, normalizes: bool) -> Any:
        return with_room(rollout) if normalizes else rollout

    def epochs(self, epochs: Iterable[Iterable[Rows]], normalizes: bool) -> Iterable[Iterable[Rows]]:
        return shared_epochs(self.ranks, epochs, normalizes)

    def end_update(self, policy: nn.Module) -> None:
        for buffer in policy.buffers():
            if buffer.is_floating_point():
                # Divided first, so that nothing becomes infinite.
                self.ranks.sum(buffer.div_(self.ranks.size))

    def explained_variance(self, values: np.ndarray, returns: np.ndarray) -> float:
        own = Moments.of(th.from_numpy(np.stack([returns - values, returns], axis=1)))
        residual, whole = total(self.ranks.gather_values(own)).var.tolist()
        return float("nan") if whole == 0 else 1 - residual / whole

    def log(self) -> dict[str, float]:
        return {"time/wait": self.waited}


def _statistics(env: VecEnv) -> list[RunningMeanStd]:
    """What a ``VecNormalize`` normalizes by, if there is one."""
    normalize = unwrap_vec_normalize(env)
    return [] if normalize is None else running_statistics(normalize)


def _moments(statistics: RunningMeanStd) -> Moments:
    count, mean, var = (
        th.tensor(each, dtype=th.double) for each in (statistics.count, statistics.mean, statistics.var)
    )
    return Moments(count, mean, var * count)


def _put(statistics: RunningMeanStd, moments: Moments) -> None:
    statistics.mean, statistics.var = moments.mean.numpy(), moments.var.numpy()
    statistics.count = moments.n.item()


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
