"""Training by one process, which exchanges nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import explained_variance
from torch import nn

#: A minibatch: the rollout and the rows of it.
Rows = tuple[Any, th.Tensor]


class SingleProcess:
    """Where several processes would exchange something: a single one does nothing, or computes it alone."""

    #: Averages losses and gradients over processes (:class:`~ppo_plus.distributed.gradients.Reduction`).
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
