"""How many threads torch uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads in the block."""
    before = th.get_num_threads()
    th.set_num_threads(number)
    try:
        yield
    finally:
        th.set_num_threads(before)
