"""Nestings of tuples, lists, dicts and ``None`` around tensors: optree's functions, typed for any nesting."""

from collections.abc import Callable
from typing import Any

import optree

#: ``tree_map(function, tree, *others)``: the same nesting with the function's results in place of its leaves.
tree_map: Callable[..., Any] = optree.tree_map
#: The leaves of a nesting; ``None`` is none.
tree_leaves: Callable[[Any], list[Any]] = optree.tree_leaves
#: The leaves of a nesting and its form, whose ``unflatten`` puts other leaves in their places, and whose
#: ``flatten_up_to`` is ``tree_leaves`` of another nesting of that form.
tree_flatten: Callable[[Any], tuple[list[Any], Any]] = optree.tree_flatten
#: The form alone.
tree_structure: Callable[[Any], Any] = optree.tree_structure
