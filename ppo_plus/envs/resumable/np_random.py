"""The generators ``np_random`` of environments and spaces, as plain values."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo_plus.envs.resumable.plain_values import State
from ppo_plus.generators import make_bit_generator


def generator_of(owner: Any) -> State | None:
    """The generator of an environment or a space; ``None``: it has made none."""
    generator = owner._np_random
    if generator is None:
        return None
    return {"seed": getattr(owner, "_np_random_seed", None), "state": generator.bit_generator.state}


def set_generator(owner: Any, state: State | None) -> None:
    """Put back what :func:`generator_of` returned.

    :raises ValueError: it is no state of one of NumPy's generators
    """
    if state is None:
        owner._np_random = None
        return
    bits, generator = make_bit_generator(state["state"]), owner._np_random
    if generator is not None and type(generator.bit_generator) is type(bits):
        # The same object goes on, which others may hold too.
        generator.bit_generator.state = state["state"]
    else:
        owner._np_random = np.random.Generator(bits)
    if hasattr(owner, "_np_random_seed"):
        owner._np_random_seed = state["seed"]


def with_parts(space: spaces.Space) -> Iterator[spaces.Space]:
    """A space and its parts, each of which has a generator."""
    yield space
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in space.values() if isinstance(space, spaces.Dict) else space:
            yield from with_parts(sub)
