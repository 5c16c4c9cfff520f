"""Observations and actions in any nesting of dicts and tuples."""

from collections.abc import Callable
from typing import Any

import numpy as np


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to an array or tensor, or to each one in a nesting of dicts, TensorDicts and tuples."""
    if hasattr(value, "items"):
        return {key: mapped(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(function, part) for part in value)
    return function(value)


def row_of(obs: Any, i: int) -> Any:
    """A copy of the observation of environment ``i``."""
    return mapped(lambda array: np.array(array[i]), obs)
