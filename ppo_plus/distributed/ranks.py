"""Processes that train one model together (``torch.distributed``): which one this is, and their collective operations.

A model that is made while a process group is there is one of the group's; without one it is alone, and sends nothing.
Each method but :meth:`Ranks.seed` is a *collective*: all processes call it, in the same order.
"""

import gc
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.policies import BasePolicy
from torch import distributed as dist

from ppo_plus.generators import derived_seed
from ppo_plus.trees import tree_leaves

T = TypeVar("T")


class RanksError(RuntimeError):
    """Processes that train together cannot continue: another one has ended, or their settings differ."""


class Ranks:
    """This process, ``rank`` from 0, among ``size`` that train one model."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        #: Whether there are others, and whether this one writes what is written once.
        self.several, self.leads = size > 1, rank == 0
        #: Seconds spent in collectives so far, most of them waiting for others.
        self.waited = 0.0

    @classmethod
    def present(cls) -> "Ranks":
        """Those of the process group, if there is one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def seed(self, seed: int | None) -> int | None:
        """The seed of what differs between processes (environments, noise, minibatches); on rank 0 the run's."""
        if not self.several or (seed is not None and self.leads):
            return seed
        return derived_seed(None if seed is None else [seed, self.rank])

    def sum(self, vector: th.Tensor) -> None:
        """Replace a vector by the sum of all, in place; everywhere the same, bit by bit."""
        self._timed(partial(dist.all_reduce, vector))

    def gather(self, tensor: th.Tensor) -> list[th.Tensor]:
        """The tensors of all, which have the same shape, by rank."""
        tensors = [th.empty_like(tensor) for _ in range(self.size)]
        self._timed(partial(dist.all_gather, tensors, tensor))
        return tensors

    def gather_values(self, value: T) -> list[T]:
        """Small values of all, by rank; anything that can be pickled."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.size
        self._timed(partial(dist.all_gather_object, values, value))
        return values

    def lead(self, value: T) -> T:
        """The value of rank 0; anything that can be pickled."""
        return self.gather_values(value)[0]

    def copy_lead(self, tensors: Iterable[th.Tensor]) -> None:
        """Write into tensors what they are on rank 0."""
        for tensor in tensors:
            # Of a view, its elements alone. NCCL cannot send what is on the CPU, such as an optimizer's count of steps.
            reached = "cpu" in dist.get_backend_config() or tensor.device.type != "cpu"
            whole = tensor.detach().to(tensor.device if reached else "cuda").contiguous()
            self._timed(partial(dist.broadcast, whole, src=0))
            tensor.detach().copy_(whole)

    def require_same(self, facts: dict[str, Any]) -> None:
        """:raises RanksError: processes differ in facts that have to be the same; on all of them"""
        by_rank = self.gather_values({name: repr(value) for name, value in facts.items()})
        for name in dict.fromkeys(name for texts in by_rank for name in texts):
            values = {texts.get(name, "an object"): rank for rank, texts in reversed(list(enumerate(by_rank)))}
            if len(values) > 1:
                said = ", ".join(f"{value} on rank {rank}" for value, rank in reversed(values.items()))
                raise RanksError(f"{name} differs between ranks: {said}")

    def leave(self) -> None:
        """End the group, so that no process waits for this one."""
        if self.several and dist.is_initialized():
            dist.destroy_process_group()
            # Its threads end with the last reference to it: now, and not while the interpreter ends.
            gc.collect()

    def _timed(self, collective: Callable[[], Any]) -> None:
        start = time.monotonic()
        try:
            collective()
        except (RuntimeError, ValueError) as error:
            raise RanksError(
                f"rank {self.rank} cannot continue, because another process that trains with it has ended or is "
                f"elsewhere in its program: look for its message ({str(error).splitlines()[0]:.200})"
            ) from error
        finally:
            self.waited += time.monotonic() - start


def state_of(policy: BasePolicy) -> list[th.Tensor]:
    """Parameters, buffers and optimizer state of a policy."""
    leaves = [*policy.parameters(), *policy.buffers(), *tree_leaves(policy.optimizer.state_dict()["state"])]
    return [leaf for leaf in leaves if isinstance(leaf, th.Tensor)]


def checksum(policy: BasePolicy) -> int:
    """The CRC-32 of :func:`state_of`."""
    parts = (tensor.detach().cpu().contiguous().reshape(-1) for tensor in state_of(policy))
    return reduce(lambda before, part: zlib.crc32(part.view(th.uint8).numpy(), before), parts, 0)  # type: ignore[arg-type]


def frozen_weights(policy: th.nn.Module) -> list[str]:
    """The names of weights that are not trained."""
    return [name for name, weight in policy.named_parameters() if not weight.requires_grad]
