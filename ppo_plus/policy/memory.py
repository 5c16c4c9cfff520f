"""Memory of policies: the interface of its kinds.

It has six methods, which :class:`~ppo_plus.policy.policies.ActorCriticPolicy` defines for a policy without memory: the
memory before the first step (``init_memory``), one step of each environment (``encode_step``), whole sequences
(``encode_sequences``), what is counted once per rollout (``prepare_rollout``), and the state of ``predict``
(``memory_to_state``, ``state_to_memory``).
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs

from ppo_plus.policy.policies import ActorCriticPolicy, Features, Memory
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map


class WithMemory(ActorCriticPolicy):
    """Adds memory to a policy class, as the first of its base classes.

    A kind of memory implements :meth:`memory_dim`, ``init_memory`` and ``encode_step``. Its memory is any nesting of
    tensors with at least two dimensions, of which the first is the environment. Sequences are computed step by step:
    override ``encode_sequences`` where that can be done faster, and ``_build_memory`` to create layers.
    """

    remembers = True

    def memory_dim(self, features_dim: int) -> int:
        """The number of features that memory makes of ``features_dim`` features of an observation."""
        raise NotImplementedError

    def _build_mlp_extractor(self) -> None:
        #: Features of observations, before memory.
        self.input_dims = {"actor": int(self.features_dim), "critic": int(self.vf_features_dim)}
        self.features_dim, self.vf_features_dim = map(self.memory_dim, self.input_dims.values())
        super()._build_mlp_extractor()

    def encode_sequences(self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None) -> Features:
        n_sequences = len(tree_leaves(memory)[0])
        inputs: Any = tree_map(lambda rows: rows.unflatten(0, (n_sequences, -1)), (obs, episode_starts))
        steps = []
        for t in range(tree_leaves(inputs)[0].shape[1]):
            obs_now, starts_now = tree_map(lambda rows, t=t: rows[:, t], inputs)
            features, memory = self.encode_step(obs_now, memory, starts_now)
            steps.append(features)
        return Features(*(th.stack(parts, dim=1).flatten(0, 1) for parts in zip(*steps, strict=True)))

    def memory_to_state(self, memory: Memory) -> tuple[th.Tensor, ...]:
        return tuple(part.transpose(0, 1) for part in tree_leaves(memory))

    def state_to_memory(self, state: Any, n_envs: int) -> Memory:
        return state_to_memory(state, self.init_memory(n_envs))


def state_to_memory(state: Any, empty: Memory) -> Memory:
    """Memory like ``empty`` with the numbers of a ``state`` of ``predict``; ``None``: ``empty`` itself.

    :raises ValueError: the state has another shape
    """
    if state is None:
        return empty
    leaves, structure = tree_flatten(empty)
    # Not by len, which would make the number a constant of an exported program.
    n_envs = leaves[0].shape[0]
    needed = [(leaf.shape[1], n_envs, *leaf.shape[2:]) for leaf in leaves]
    shapes = [np.shape(part) for part in state]
    if shapes != needed:
        raise ValueError(
            f"state has arrays of shapes {shapes}, but {n_envs} observations need {needed}: pass what predict "
            "returned for as many, or None at the start"
        )
    parts = zip(state, leaves, strict=True)
    return structure.unflatten(
        th.as_tensor(part, dtype=leaf.dtype, device=leaf.device).transpose(0, 1) for part, leaf in parts
    )
