"""Training by one process, which exchanges nothing, and by several.

After each rollout, several processes exchange episodes, normalization statistics, and whether to continue. In each
update they share the moments of advantages, and the mean of losses and gradients, so that together they make the steps
that one would make with all their transitions.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.utils import explained_variance, set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from ppo_plus.distributed.ranks import Ranks, RanksError, checksum, frozen_weights, state_of
from ppo_plus.envs.checks import seed_envs
from ppo_plus.envs.normalization import running_statistics
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.formulas.losses import Losses, normalize
from ppo_plus.formulas.moments import Moments, total
from ppo_plus.trees import to_device
from ppo_plus.update.minibatch import Batch, Gradient, LossAndGradient

#: A minibatch: the rollout and the rows of it.
Rows = tuple[Batch, th.Tensor]


def shared_training(ranks: Ranks | None = None) -> "SingleProcess":
    """Training by these processes, by default those that are there: several if this one belongs to a process group."""
    ranks = ranks or Ranks.present()
    return SharedTraining(ranks) if ranks.several else SingleProcess(ranks)


class SingleProcess:
    """Training by one process: what several would exchange, it computes alone or does not need."""

    #: Averages losses and gradients over processes (:meth:`SharedTraining.reduction`).
    reduction: Callable[[LossAndGradient | None, list[th.Tensor], int], LossAndGradient] | None = None

    def __init__(self, ranks: Ranks):
        self.ranks = ranks

    def use_device(self, device: th.device) -> None:
        """Let this process compute on its own GPU."""

    def seed(self, env: VecEnv | None, seed: int | None) -> None:
        """Draw other numbers than the other processes from now on: noise, minibatches, and what environments draw."""

    def begin(self, model: OnPolicyAlgorithm, facts: Mapping[str, Any]) -> None:
        """Start training: all processes take the weights and normalization statistics of rank 0.

        :raises RanksError: ``facts``, or the shapes of their networks, optimizers or statistics, differ
        """

    def share_statistics(self, vec_normalize: VecNormalize | None) -> None:
        """Statistics of ``VecNormalize`` become those of all processes."""

    def has_nothing_to_learn(self, valid: np.ndarray | None) -> bool:
        """Whether no process has a transition to learn from, so that there is no update.

        :param valid: which rows of this process's rollout are transitions; ``None``: all
        """
        return valid is not None and not valid.any()

    def metrics(self, env: VecEnv | None) -> dict[str, float]:
        """What is logged of the processes and their environments, by name."""
        single = env and env.unwrapped
        is_supervised = isinstance(single, SupervisedVecEnv) and single.restarts
        return {"faults/env_restarts": single.n_restarts} if is_supervised else {}  # type: ignore[union-attr]

    def record(self, ended: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those infos of episodes that are to be logged now."""
        return ended

    def synchronize(
        self, model: OnPolicyAlgorithm, facts: Mapping[str, Any], keep_training: bool
    ) -> tuple[bool, list[dict[str, Any]], int]:
        """End a rollout: share statistics, and weights that differ, by rounding or because one process has changed
        them, become those of rank 0.

        :param facts: what has to be the same in all processes
        :param keep_training: whether this process wants to continue
        :return: whether all want to continue, infos of episodes to log now, and the largest count of timesteps, since
            one may have stopped early
        :raises RanksError: ``facts`` differ
        """
        return keep_training, [], model.num_timesteps

    def total(self, moments: Moments) -> Moments:
        """The moments of the numbers of all processes together."""
        return moments

    def normalized(self, advantages: th.Tensor) -> th.Tensor:
        """Advantages ``(B,)`` with mean 0 and standard deviation 1 over the rollouts of all processes."""
        return normalize(advantages)

    def epochs(self, epochs: Iterable[Iterable[Rows]], normalizes: bool) -> Iterable[Iterable[Rows]]:
        """Epochs with as many minibatches in each process, of which the last ones may have no rows; if it
        ``normalizes``, with advantages that are normalized over all processes (:attr:`~ppo_plus.Batch.normalized`)."""
        return epochs

    def end_update(self, policy: BasePolicy) -> None:
        """Average the statistics that layers keep of the data, such as those of batch normalization."""

    def explained_variance(self, values: th.Tensor, returns: th.Tensor) -> float:
        r"""How much of the variance of returns the critic predicts, :math:`1 - Var[R - V] / Var[R]`, of values and
        returns ``(B,)``; NaN where returns do not vary."""
        return float(explained_variance(values.cpu().numpy(), returns.cpu().numpy()))


class SharedTraining(SingleProcess):
    """Training by several processes as by one with all their transitions."""

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        #: The moments of each running statistic at the start of the rollout, the same in all processes.
        self._common: list[Moments] = []
        #: Info entries of the episodes that have ended in this rollout.
        self._episodes: list[dict[str, Any]] = []
        #: The names of the loss's diagnostics, once a minibatch had transitions.
        self._diagnostics: tuple[str, ...] = ()
        #: Seconds that processes have waited for each other, on average, and environments that all have replaced.
        self._waited, self._n_restarts = 0.0, 0

    def use_device(self, device: th.device) -> None:
        # NCCL needs torch's current GPU to be the one of this process: the one that is named, or the one with its
        # number on its machine, unless another one is current already.
        own = int(os.environ.get("LOCAL_RANK", "0"))
        if device.type == "cuda" and device.index is not None:
            th.cuda.set_device(device)
        elif device.type == "cuda" and th.cuda.current_device() == 0 and own < th.cuda.device_count():
            th.cuda.set_device(own)

    def seed(self, env: VecEnv | None, seed: int | None) -> None:
        # Weights are drawn alike before. With a seed, rank 0 draws what a single process would.
        set_random_seed(self.ranks.seed(seed))  # type: ignore[arg-type]
        if seed is not None and env is not None:
            seed_envs(env, (seed + self.ranks.rank * env.unwrapped.num_envs) % 2**32)

    def begin(self, model: OnPolicyAlgorithm, facts: Mapping[str, Any]) -> None:
        self.ranks.require_same({**facts, "frozen weights": frozen_weights(model.policy)})
        self._copy_weights(model.policy)
        self._episodes = []
        statistics = running_statistics(model.get_vec_normalize_env())
        self.ranks.require_same({"VecNormalize": [np.shape(running.mean) for running in statistics]})
        # Copied unchanged; see `share_statistics`.
        of_lead = self.ranks.lead([(running.mean, running.var, running.count) for running in statistics])
        for running, (mean, var, count) in zip(statistics, of_lead, strict=True):
            running.mean, running.var, running.count = mean, var, count
        self._common = [_moments(running) for running in statistics]

    def _copy_weights(self, policy: BasePolicy) -> None:
        state = state_of(policy)
        self.ranks.require_same({"networks and optimizer": [(tuple(leaf.shape), str(leaf.dtype)) for leaf in state]})
        self.ranks.copy_lead(state)

    def metrics(self, env: VecEnv | None) -> dict[str, float]:
        own = super().metrics(env)
        return {name: max(value, self._n_restarts) for name, value in own.items()} | {"time/wait": self._waited}

    def share_statistics(self, vec_normalize: VecNormalize | None) -> None:
        statistics = running_statistics(vec_normalize)
        own = [_moments(running).minus(common) for running, common in zip(statistics, self._common, strict=True)]
        for i, parts in enumerate(zip(*self.ranks.gather_values(own), strict=True)):
            if not any(part.n for part in parts):
                continue  # a variance from moments may be rounded differently
            whole, running = total([self._common[i], *parts]), statistics[i]
            running.mean, running.var, running.count = whole.mean.numpy(), whole.var.numpy(), whole.n.item()
            # Recomputed, as after a resume: checkpoints contain no moments.
            self._common[i] = _moments(running)

    def has_nothing_to_learn(self, valid: np.ndarray | None) -> bool:
        return False  # the others would wait for this one

    def record(self, ended: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._episodes += [info for info in ended if any(entry is not None for entry in info.values())]
        return []

    def synchronize(
        self, model: OnPolicyAlgorithm, facts: Mapping[str, Any], keep_training: bool
    ) -> tuple[bool, list[dict[str, Any]], int]:
        self.ranks.require_same(dict(facts))
        self.share_statistics(model.get_vec_normalize_env())
        n_restarts = getattr(model.env and model.env.unwrapped, "n_restarts", 0)
        episodes = self._episodes[-model.ep_info_buffer.maxlen :]  # type: ignore[union-attr, operator]
        message = (keep_training, model.num_timesteps, episodes, self.ranks.waited, n_restarts)
        by_rank = self.ranks.gather_values((*message, checksum(model.policy)))
        keep_all, timesteps, ended, waited, restarts, checksums = zip(*by_rank, strict=True)
        if len({*checksums}) > 1:
            self._copy_weights(model.policy)
        self._episodes = []
        self._waited, self._n_restarts = sum(waited) / len(waited), sum(restarts)
        # In turns, since the window of means has no room for those of all.
        infos = [info for turn in zip_longest(*ended) for info in turn if info is not None]
        return all(keep_all), infos, max(timesteps)

    def total(self, moments: Moments) -> Moments:
        return total(self.ranks.gather_values(Moments(*(part.cpu() for part in moments))))

    def normalized(self, advantages: th.Tensor) -> th.Tensor:
        whole = self.total(Moments.of(advantages.reshape(-1)))
        return (advantages - whole.mean.item()) / (whole.std.item() + 1e-8)

    def epochs(self, epochs: Iterable[Iterable[Rows]], normalizes: bool) -> Iterator[Iterable[Rows]]:
        rollout: Batch | None = None
        room = th.empty(0)  # for its normalized advantages
        for epoch in epochs:
            minibatches = list(epoch)
            if not minibatches:
                raise RanksError(f"rank {self.ranks.rank} has no transitions to learn from: use more n_steps")
            first, _ = minibatches[0]
            nothing = th.zeros(0, dtype=th.long, device=first.returns.device)
            counts = self.ranks.gather(to_device(th.tensor([len(minibatches)]), nothing.device))
            minibatches += [(first, nothing)] * (int(th.cat(counts).max()) - len(minibatches))
            if normalizes:
                parts = self._normalized(minibatches)
                for i, ((data, indices), part) in enumerate(zip(minibatches, parts, strict=True)):
                    # The minibatches of a custom buffer may be of several rollouts.
                    if data is not rollout:
                        rollout, room = data, th.zeros_like(data.advantages)
                        with_room = data._replace(normalized=room)
                    room[indices] = part
                    minibatches[i] = with_room, indices
            yield minibatches

    def _normalized(self, minibatches: list[Rows]) -> Sequence[th.Tensor]:
        """The advantages of minibatches, with mean 0 and standard deviation 1 over all processes' parts of each."""
        parts = [rollout.advantages[indices] for rollout, indices in minibatches]
        own = [
            Moments.of(part if rollout.valid is None else part[rollout.valid[indices]])
            for part, (rollout, indices) in zip(parts, minibatches, strict=True)
        ]
        tables = self.ranks.gather(th.stack([th.stack(moments) for moments in own], dim=1))
        whole = total(Moments(*table) for table in tables)
        # A single advantage has no standard deviation, and stays unchanged.
        alone = whole.n < 2
        shifts, scales = whole.mean.where(~alone, 0.0), (whole.std + 1e-8).where(~alone, 1.0)
        return [((part - shift) / scale).to(part) for part, shift, scale in zip(parts, shifts, scales, strict=True)]

    def reduction(self, part: LossAndGradient | None, weights: list[Any], n: int) -> LossAndGradient:
        """The loss of a minibatch and its gradient with respect to ``weights``: means over all processes in one
        all-reduce. ``part`` is the same of this process's ``n`` transitions of the minibatch, if it has any."""
        if part is not None:
            self._diagnostics = tuple(part[0].diagnostics)
        elif not self._diagnostics:
            raise RanksError(f"rank {self.ranks.rank} has no transitions to learn from: use more n_steps")
        gradient: Gradient = (None,) * len(weights) if part is None else part[1]
        summands = [like.new_zeros(like.shape) if g is None else g for g, like in zip(gradient, weights, strict=True)]
        numbers = summands[0].new_zeros(len(self._diagnostics) + 1)
        if part is not None:
            numbers = th.stack([part[0].total.detach(), *part[0].diagnostics.values()]).to(numbers.dtype)
        weighted = [summand.reshape(-1) * n for summand in (*summands, numbers)]
        flat = th.cat([*weighted, numbers.new_full((1,), n)])
        self.ranks.sum(flat)
        *sums, count = flat.split([*(summand.numel() for summand in weighted), 1])
        *means, numbers = (values / count for values in sums)
        loss, *diagnostics = numbers.unbind()
        losses = Losses(loss, dict(zip(self._diagnostics, diagnostics, strict=True)))
        return losses, tuple(mean.view(like.shape) for mean, like in zip(means, weights, strict=True))

    def end_update(self, policy: BasePolicy) -> None:
        for buffer in policy.buffers():
            if buffer.is_floating_point():
                # Divided first, so that nothing becomes infinite; a buffer may be a view with gaps.
                whole = (buffer / self.ranks.size).contiguous()
                self.ranks.sum(whole)
                buffer.copy_(whole)

    def explained_variance(self, values: th.Tensor, returns: th.Tensor) -> float:
        residual, whole = self.total(Moments.of(th.stack([returns - values, returns], dim=1))).var.tolist()
        return float("nan") if whole == 0 else 1 - residual / whole


def _moments(running: RunningMeanStd) -> Moments:
    count, mean, var = (th.from_numpy(np.array(part, float)) for part in (running.count, running.mean, running.var))
    return Moments(count, mean, var * count)
