"""Processes that train one model together (``torch.distributed``): which one this is, and their collective operations.

A model that is made while a process group is there is one of the group's; without one it is alone, and sends nothing.
Each method but :meth:`Ranks.seed` is a *collective*: all processes call it, in the same order.
"""

import gc
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch as th
from torch import distributed as dist

from ppo_plus.generators import derived_seed
from ppo_plus.policy.policies import ActorCriticPolicy
from ppo_plus.trees import tree_leaves

T = TypeVar("T")
#: How much weights may differ, relative to their norm, on processors that round differently.
ROUNDING = 1e-3


class RanksError(RuntimeError):
    """Processes that train together cannot continue: another one has ended, or their settings differ."""


class Ranks:
    """This process, ``rank`` from 0, among ``size`` that train one model."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        #: Seconds spent in collectives so far, most of them waiting for others.
        self.waited = 0.0

    @classmethod
    def present(cls) -> "Ranks":
        """Those of the process group, if there is one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    @property
    def leads(self) -> bool:
        """Whether this one writes what is written once."""
        return self.rank == 0

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
        for name in by_rank[0]:
            values = {texts.get(name): rank for rank, texts in reversed(list(enumerate(by_rank)))}
            if len(values) > 1:
                said = ", ".join(f"{value} on rank {rank}" for value, rank in reversed(values.items()))
                raise RanksError(f"{name} differs between ranks: {said}")

    def settle_rounding(self, policy: ActorCriticPolicy, by_rank: Sequence[dict[str, int]]) -> None:
        """Copy the weights of rank 0 if the :func:`checksums` of processes differ, by rounding on different processors.

        :raises RanksError: they differ by more; on all of them, which then have the weights of rank 0
        """
        first, own, wrong = by_rank[0], by_rank[self.rank], None
        if all(other == first for other in by_rank):
            return
        if all(other.keys() == first.keys() for other in by_rank):
            state = state_of(policy)
            before = {name: state[name].detach().clone() for name in own if own[name] != first[name]}
            self.copy_lead(state.values())
            wrong = next((name for name, old in before.items() if not _is_near(state[name].detach(), old)), None)
        elif own.keys() != first.keys():
            wrong = min(own.keys() ^ first.keys())
        for rank, name in enumerate(self.gather_values(wrong)):
            if name is not None:
                raise RanksError(
                    f"{name} differs between ranks 0 and {rank}: processes that train one model must have the same "
                    "weights. Does a callback change them on one rank only (if rank == 0)? Let it do so on all"
                )

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


def use_own_gpu(device: th.device) -> None:
    """Make the GPU on which this process computes torch's current one, as NCCL needs it: the one that is named, or the
    one with the number of this process on its machine, unless another one is current already."""
    own = int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda" and device.index is not None:
        th.cuda.set_device(device)
    elif device.type == "cuda" and th.cuda.current_device() == 0 and own < th.cuda.device_count():
        th.cuda.set_device(own)


def _is_near(tensor: th.Tensor, other: th.Tensor) -> bool:
    """Whether two tensors may differ by rounding alone."""
    return bool((tensor - other).norm() <= ROUNDING * max(tensor.norm().item(), ROUNDING))


def state_of(policy: ActorCriticPolicy) -> dict[str, th.Tensor]:
    """Parameters, buffers and optimizer state of a policy, by name."""
    optimizer = policy.optimizer.state_dict()["state"]
    state = {f"optimizer state {i}": leaf for i, leaf in enumerate(tree_leaves(optimizer))}
    tensors = {**dict(policy.named_parameters()), **dict(policy.named_buffers()), **state}
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, th.Tensor)}


def checksums(policy: ActorCriticPolicy) -> dict[str, int]:
    """The CRC-32 of each entry of :func:`state_of` that is not a count."""
    state = {name: tensor.detach().cpu() for name, tensor in state_of(policy).items() if tensor.is_floating_point()}
    return {name: zlib.crc32(tensor.contiguous().reshape(-1).view(th.uint8).numpy()) for name, tensor in state.items()}  # type: ignore[arg-type]


def frozen_weights(policy: th.nn.Module) -> list[str]:
    """The names of weights that are not trained."""
    return [name for name, weight in policy.named_parameters() if not weight.requires_grad]
