"""Training by several processes: what they exchange after each rollout (episodes, normalization statistics, and whether
to continue), and in each update (:mod:`ppo_plus.distributed.gradients`)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch import nn

from ppo_plus.distributed.gradients import Reduction, shared_epochs, with_room
from ppo_plus.distributed.ranks import Ranks, as_text, require_equal
from ppo_plus.distributed.single import Rows, SingleProcess
from ppo_plus.distributed.weights import Fingerprint, differ_by_rounding, fingerprints, state_of
from ppo_plus.envs.normalization import running_statistics
from ppo_plus.formulas.moments import Moments, total


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
