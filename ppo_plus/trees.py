"""Trees of tuples, lists, dicts and ``None`` with tensors as leaves: optree's functions, typed for any tree; and how
tensors go to a device and come back."""

from collections.abc import Callable
from typing import Any

import optree
import torch as th

#: ``tree_map(function, tree, *others)``: the same tree with the function's results as leaves.
tree_map: Callable[..., Any] = optree.tree_map
#: The leaves of a tree; ``None`` is not a leaf.
tree_leaves: Callable[[Any], list[Any]] = optree.tree_leaves
#: The leaves of a tree and its structure, whose ``unflatten`` makes a tree of other leaves, and whose ``flatten_up_to``
#: is ``tree_leaves`` of another tree of that structure.
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = optree.tree_flatten
#: The structure alone.
tree_structure: Callable[[Any], Any] = optree.tree_structure


def widest(device: th.device) -> th.dtype:
    """The floating-point type with the most digits on a device."""
    return th.float32 if device.type == "mps" else th.float64


def to_device(tensor: th.Tensor, device: th.device) -> th.Tensor:
    """``tensor.to(device)``, without waiting for a GPU: CUDA puts memory that is not pinned aside before it returns."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def read(tree: Any) -> Any:
    """A tree on the CPU; from a device in one copy, for which the host waits once. Integers up to 2**53 stay exact."""
    leaves, structure = tree_flatten(tree)
    if all(leaf.device.type == "cpu" for leaf in leaves):
        return tree
    numbers = th.cat([leaf.detach().reshape(-1).to(widest(leaf.device)) for leaf in leaves]).cpu()
    parts = th.split(numbers, [leaf.numel() for leaf in leaves])
    return structure.unflatten([part.view(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)])
