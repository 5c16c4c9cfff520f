"""Arrays that two processes share: what the environments of one worker take and return in a step."""

import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from ppo_plus.trees import tree_flatten


class SharedArrays:
    """Arrays of ``K`` environments in one block of memory.

    The process that makes the block passes its ``name`` to the other one, and unlinks it when that one has it too: then
    the memory is freed with the last of the two processes, however they end. Actions are shared if they are one array.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, k: int, name: str | None = None):
        has_array = isinstance(action_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
        actions = create_empty_array(action_space) if has_array else None
        has_masks = isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete))
        n_choices = spaces.flatdim(action_space) if has_masks else 0
        own = (np.empty(1, np.float32), np.empty((1, 3 + n_choices), bool))
        leaves, structure = tree_flatten((create_empty_array(observation_space), actions, *own))
        record = np.dtype([("", leaf.dtype, leaf.shape[1:]) for leaf in leaves], align=True)
        self.memory = SharedMemory(name, create=name is None, size=k * record.itemsize)
        if name is None and hasattr(os, "posix_fallocate"):
            try:
                # A write into memory that is not there would end the process without an error.
                os.posix_fallocate(vars(self.memory)["_fd"], 0, self.memory.size)
            except OSError as error:
                self.memory.close()
                self.memory.unlink()
                problem = f"{error.strerror}: /dev/shm has no room for {self.memory.size:,} bytes (Docker: --shm-size)"
                raise OSError(error.errno, problem) from error
        records = np.ndarray(k, record, self.memory.buf)
        arrays = [records[name] for name in record.names or ()]
        #: Observations as the space has them; actions, or ``None``; rewards; whether an episode ended, whether a time
        #: limit ended it, whether the action mask follows, and the mask.
        self.obs, self.actions, self.rewards, self.flags = structure.unflatten(arrays)

    def close(self) -> None:
        """Release the memory. The arrays cannot be used afterwards."""
        self.obs = self.actions = self.rewards = self.flags = None
        self.memory.close()


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
