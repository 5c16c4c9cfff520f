"""The generators of random numbers that a process shares: Python's, NumPy's and torch's."""

import random
from typing import Any

import numpy as np
import torch as th

from ppo_plus.generators import check_facts


def get_states() -> dict[str, Any]:
    """The states of the generators; those of GPUs only if they are in use."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
    }


def set_states(states: dict[str, Any]) -> None:
    """:raises ValueError: the state of NumPy's generator is not valid; nothing has changed then"""
    check_facts(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states["numpy"])
    th.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: th.cuda.device_count()]):
        th.cuda.set_rng_state(state, device)
