"""Trees of tuples, lists, dicts and ``None`` with tensors as leaves: optree's functions, typed for any tree."""

from collections.abc import Callable
from typing import Any

import optree

#: ``tree_map(function, tree, *others)``: the same tree with the function's results as leaves.
tree_map: Callable[..., Any] = optree.tree_map
#: The leaves of a tree; ``None`` is not a leaf.
tree_leaves: Callable[[Any], list[Any]] = optree.tree_leaves
#: The leaves of a tree and its structure, whose ``unflatten`` makes a tree of other leaves, and whose ``flatten_up_to``
#: is ``tree_leaves`` of another tree of that structure.
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = optree.tree_flatten
#: The structure alone.
tree_structure: Callable[[Any], Any] = optree.tree_structure
