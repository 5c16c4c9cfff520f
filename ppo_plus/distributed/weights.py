"""The weights and optimizer state of processes that train one model: the same at the start, and compared after that."""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch as th

from ppo_plus.distributed.ranks import Ranks, RanksError
from ppo_plus.trees import tree_leaves

#: How much weights may differ, relative to their norm, on processors that round differently.
ROUNDING = 1e-3


class Fingerprint(NamedTuple):
    r"""What tells one tensor from another."""

    checksum: int  # CRC-32 of its bytes
    norm: float  # the square root of the sum of the squares of its `n` numbers
    total: float  # their sum over `\sqrt{n}`, which changes by at most the norm of a change

    def is_near(self, other: "Fingerprint") -> bool:
        """Whether the two tensors may differ by rounding alone."""
        if self.checksum == other.checksum:
            return True
        allowed = ROUNDING * max(self.norm, other.norm, ROUNDING)
        return abs(self.total - other.total) <= allowed and abs(self.norm - other.norm) <= allowed


def state_of(policy: Any) -> dict[str, th.Tensor]:
    """Parameters, buffers and optimizer state of a policy, by name."""
    optimizer = policy.optimizer.state_dict()["state"]
    state = {f"optimizer state {i}": leaf for i, leaf in enumerate(tree_leaves(optimizer))}
    found = {**dict(policy.named_parameters()), **dict(policy.named_buffers()), **state}
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, th.Tensor)}


def fingerprints(policy: Any) -> dict[str, Fingerprint]:
    """The fingerprint of each entry of :func:`state_of` that is not a count."""

    def of(tensor: th.Tensor) -> Fingerprint:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        numbers = flat.double()
        checksum = zlib.crc32(flat.view(th.uint8).numpy())  # type: ignore[arg-type]
        return Fingerprint(checksum, numbers.norm().item(), numbers.sum().item() / max(len(numbers), 1) ** 0.5)

    return {name: of(tensor) for name, tensor in state_of(policy).items() if tensor.is_floating_point()}


def frozen(policy: th.nn.Module) -> list[str]:
    """The names of weights that are not trained."""
    return [name for name, weight in policy.named_parameters() if not weight.requires_grad]


def differ_by_rounding(by_rank: Sequence[dict[str, Fingerprint]]) -> bool:
    """Whether weights of processes differ, which processors of two kinds cause by rounding.

    :raises RanksError: they differ by more
    """
    differ = False
    for rank, other in enumerate(by_rank):
        for name in by_rank[0].keys() | other.keys():
            first, own = by_rank[0].get(name), other.get(name)
            if first is None or own is None or not first.is_near(own):
                raise RanksError(
                    f"{name} differs between ranks 0 and {rank}: processes that train one model must have the same "
                    "weights. Does a callback change them on one rank only (if rank == 0)? Let it do so on all"
                )
            differ = differ or first.checksum != own.checksum
    return differ


def copy_lead(ranks: Ranks, policy: Any) -> None:
    """Have all processes begin with the weights, buffers and optimizer state of rank 0.

    :raises RanksError: the networks or optimizers are not alike
    """
    given = [*state_of(policy).values()]
    ranks.require_same({"networks and optimizer": [(tuple(leaf.shape), str(leaf.dtype)) for leaf in given]})
    ranks.copy_lead(given)
