"""Arrays that two processes share: what the environments of one worker take and return in a step."""

from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from gymnasium import spaces

from ppo_plus.trees import tree_flatten


class SharedArrays:
    """Arrays of ``K`` environments in one block of memory.

    The process that makes the block passes its name to the other one, and unlinks it when that one has it too: then the
    memory is freed with the last of the two processes, however they end.

    :param observation_space: arrays of fixed shapes, or Dict and Tuple of them
    :param action_space: actions are shared if they are one array
    :param k: number of environments
    :param name: of a block that exists; ``None``: make one
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, k: int, name: str | None = None):
        has_array = isinstance(action_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
        actions = _empty(action_space) if has_array else None
        has_masks = isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete))
        n_choices = spaces.flatdim(action_space) if has_masks else 0
        own = (np.empty((), np.float32), np.empty(3 + n_choices, bool))
        leaves, structure = tree_flatten((_empty(observation_space), actions, *own))
        record = np.dtype([("", leaf.dtype, leaf.shape) for leaf in leaves], align=True)
        self.memory = SharedMemory(name, create=name is None, size=k * record.itemsize)
        records = np.ndarray(k, record, self.memory.buf)
        arrays = [records[name] for name in record.names or ()]
        #: Observations as the space has them; actions, or ``None``; rewards; whether an episode ended, whether a time
        #: limit ended it, whether the action mask follows, and the mask.
        self.obs, self.actions, self.rewards, self.flags = structure.unflatten(arrays)

    def close(self) -> None:
        """Release the memory. The arrays cannot be used afterwards."""
        self.obs = self.actions = self.rewards = self.flags = None
        self.memory.close()


def _empty(space: spaces.Space) -> Any:
    """Arrays for a space, of which only shape and dtype are used; workers have checked that it is supported."""
    if isinstance(space, spaces.Dict):
        return {key: _empty(sub) for key, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_empty, space))
    assert space.shape is not None
    return np.empty(space.shape, space.dtype)


def write_row(arrays: Any, i: int, obs: Any) -> None:
    """Write an observation into row ``i``, in the dtype of the space. A single number may come as an array of one."""
    if isinstance(arrays, dict):
        for key, array in arrays.items():
            write_row(array, i, obs[key])
    elif isinstance(arrays, tuple):
        for array, part in zip(arrays, obs, strict=True):
            write_row(array, i, part)
    else:
        arrays[i] = np.reshape(obs, arrays.shape[1:])
