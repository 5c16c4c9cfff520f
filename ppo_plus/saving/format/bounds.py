"""What may be built from a file: no more numbers than its weights explain, and only networks' own activations.

A few bytes can name a network of any size, so what is made is counted before it is made.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th

from ppo_plus.compiling.torch_private import Announced
from ppo_plus.saving.format.names import MODULES, Damaged, Refused, is_registered, name_of
from ppo_plus.trees import tree_leaves

#: How many numbers may be made while a model is built, and how many times more than its file has weights: networks may
#: replace others, and initial weights are computed in steps.
MOST_NUMBERS, MOST_TIMES = 2**22, 16
#: How many numbers each tensor counts for at least, since it takes time, too.
LEAST = 256


@contextmanager
def building(weights: Any) -> Iterator[None]:
    """Raise :class:`Damaged` before networks are built that are much larger than the weights of a file, and for errors
    that do not name a wrong argument."""
    n_weights = sum(each.numel() for each in tree_leaves(weights) if isinstance(each, th.Tensor))
    left = MOST_NUMBERS + MOST_TIMES * n_weights

    def count(numbers: int) -> None:
        nonlocal left
        left -= LEAST + numbers
        if left < 0:
            raise Damaged("its networks are larger than its weights")

    try:
        with Announced(count):
            yield
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise Refused(f"no model can be made of it ({type(error).__name__}: {error})") from error


def require_activation(policy_kwargs: Any) -> None:
    """:raises Refused: the activation that a file asks for is neither one of torch's nor the program's"""
    function = policy_kwargs.get("activation_fn") if isinstance(policy_kwargs, dict) else None
    while isinstance(function, functools.partial):
        function = function.func
    module, _, title = name_of(function).partition(":") if hasattr(function, "__qualname__") else ("", "", "")
    is_torchs = function is th.nn.Identity or getattr(function, "__module__", "") == th.nn.Tanh.__module__
    if module in MODULES and not is_torchs and not is_registered(function):
        raise Refused(f"its activation_fn, {title}, is not one of torch's activations: register it to allow it")
