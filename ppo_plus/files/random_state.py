"""The generators of random numbers that a process shares: Python's, NumPy's and torch's."""

import random
from typing import Any

import numpy as np
import torch as th

from ppo_plus.generators import check_facts


def get_states() -> dict[str, Any]:
    """Where the generators stand, as plain values, arrays and tensors; of each GPU only where it is in use."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
    }


def set_states(states: dict[str, Any]) -> None:
    """Put the generators where they stood.

    :param states: from :func:`get_states`; states of GPUs that are not here are left out
    :raises ValueError: that of NumPy's generator is none; nothing has changed then
    """
    check_facts(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states["numpy"])
    th.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: th.cuda.device_count()]):
        th.cuda.set_rng_state(state, device)
