"""Memory of policies: the base of its kinds, and kinds that are layers between the encoder and the hidden layers.

A policy class gets memory by one more base class: ``class CnnLstmPolicy(LSTMMemory, CnnPolicy)``. The state of the
layers is an argument and a result (:class:`~ppo_plus.policy.policies.Carry`): a tuple of tensors whose first dimension
is the environment, reset to zero where an episode starts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from ppo_plus.policy.policies import ActorCriticPolicy, Features, Memory
from ppo_plus.require import require_int
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map

State = tuple[th.Tensor, ...]


class WithMemory(ActorCriticPolicy):
    """Adds memory to a policy class, as the first of its base classes.

    A kind of memory implements :meth:`memory_dim`, ``init_memory`` and ``encode_step``. Its memory is any nesting of
    tensors with at least two dimensions, of which the first is the environment. Sequences are computed step by step:
    override ``encode_sequences`` where that can be done faster, and ``_build_memory`` to create layers.
    """

    remembers = True
    # Computing step by step is a graph that grows with the sequences.
    compiles_encoder = False

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
        inputs = tree_map(lambda rows: rows.unflatten(0, (n_sequences, -1)), (obs, episode_starts))
        steps = []
        for t in range(tree_leaves(inputs)[0].shape[1]):
            obs_now, starts_now = tree_map(lambda rows, t=t: rows[:, t], inputs)
            features, memory = self.encode_step(obs_now, memory, starts_now)
            steps.append(features)
        return Features(*(th.stack(parts, dim=1).flatten(0, 1) for parts in zip(*steps, strict=True)))

    def memory_to_state(self, memory: Memory) -> tuple[th.Tensor, ...]:
        return tuple(part.transpose(0, 1) for part in tree_leaves(memory))

    def state_to_memory(self, state: Sequence[np.ndarray | th.Tensor] | None, n_envs: int) -> Memory:
        return state_to_memory(state, self.init_memory(n_envs))


def reset_memory(memory: Memory, episode_starts: th.Tensor | None) -> Memory:
    """Memory that is 0 where an episode starts (booleans, ``None``: nowhere), also where it is not finite."""
    if episode_starts is None:
        return memory
    return tree_map(lambda part: part.masked_fill(episode_starts.view(-1, *[1] * (part.ndim - 1)), 0), memory)


def state_to_memory(state: Sequence[np.ndarray | th.Tensor] | None, empty: Memory) -> Memory:
    """Memory like ``empty`` with the numbers of a ``state`` of ``predict``; ``None``: ``empty`` itself."""
    if state is None:
        return empty
    leaves, structure = tree_flatten(empty)
    # Not by len, which would make the number a constant of an exported program.
    n_envs = leaves[0].shape[0]
    needed = [(leaf.shape[1], n_envs, *leaf.shape[2:]) for leaf in leaves]
    shapes = [np.shape(part) for part in state]
    if shapes != needed:
        raise ValueError(
            f"state has arrays of shapes {shapes}, but {n_envs} observations need {needed}: pass predict's, or None"
        )
    parts = zip(state, leaves, strict=True)
    return structure.unflatten(th.as_tensor(part).to(leaf).transpose(0, 1) for part, leaf in parts)


class MemoryLayer(nn.Module):
    """Layers that compute whole sequences at once, by :meth:`forward`; a step is a sequence of length 1.

    :param layers: the layers from bottom to top
    :param state_shape: the shape of a layer's state in one environment
    """

    def __init__(self, layers: Iterable[nn.Module], *state_shape: int):
        super().__init__()
        self.layers, self.state_shape = nn.ModuleList(layers), state_shape

    def init(self, n_envs: int) -> State:
        """The state of ``n_envs`` environments before their first step: zeros."""
        return (next(self.parameters()).new_zeros(n_envs, len(self.layers), *self.state_shape),)

    def forward(self, x: th.Tensor, state: State, starts: th.Tensor) -> tuple[th.Tensor, State]:
        """Outputs of ``N`` sequences of ``T`` steps, shape ``(N, T, hidden)``, and the states after them.

        :param x: shape ``(N, T, input_size)``
        :param state: the states before their first steps
        :param starts: at which steps an episode begins, booleans of shape ``(N, T)``
        """
        raise NotImplementedError

    def step(self, x: th.Tensor, state: State) -> tuple[th.Tensor, State]:
        """One step of each environment: output ``(N, hidden)`` of input ``(N, input_size)``, and the state after it."""
        y, state = self(x[:, None], state, th.zeros_like(x[:, :1], dtype=th.bool))
        return y[:, 0], state

    def sequences(self, x: th.Tensor, state: State, starts: th.Tensor) -> th.Tensor:
        """Outputs ``(B, hidden)`` of whole sequences, one after another; ``state`` is before their first steps."""
        return self(x.view(*starts.shape, -1), state, starts)[0].flatten(0, 1)  # type: ignore[no-any-return]


class LayerMemory(WithMemory):
    """Adds layers with memory to a policy class, as the first of its base classes.

    The names of the arguments are sb3-contrib's, for all kinds of layers.

    :param args: arguments of the policy class, by position
    :param lstm_hidden_size: units of each layer, at least 1
    :param n_lstm_layers: layers on top of each other, at least 1
    :param shared_lstm: the critic uses the output of the actor's layers (without a gradient into them); needs
        ``enable_critic_lstm=False`` and a shared features extractor
    :param enable_critic_lstm: the critic has separate layers. Without them, and without sharing, it has no memory
    :param kwargs: arguments of the policy class, by name
    :raises ValueError: an argument that does not fit another, or is not supported
    """

    compiles_encoder = True
    #: The kind of layers (of type :class:`MemoryLayer`, or like it), and the prefix of their attributes.
    layer: Callable[..., Any]
    layer_name: str
    #: Further arguments of the layers, by name.
    layer_kwargs: dict[str, Any] = {}
    #: What divides ``lstm_hidden_size``, and why.
    multiple_of = 1, ""

    def __init__(
        self,
        *args: Any,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        **kwargs: Any,
    ):
        require_int("policy_kwargs: lstm_hidden_size", lstm_hidden_size, 1)
        require_int("policy_kwargs: n_lstm_layers", n_lstm_layers, 1)
        divisor, reason = self.multiple_of
        if lstm_hidden_size % divisor:
            raise ValueError(f"policy_kwargs: {lstm_hidden_size=} must be a multiple of {divisor}, {reason}")
        if shared_lstm and enable_critic_lstm:
            raise ValueError("policy_kwargs: shared_lstm=True needs enable_critic_lstm=False")
        self.lstm_hidden_size, self.n_lstm_layers = lstm_hidden_size, n_lstm_layers
        self.shared_lstm, self.enable_critic_lstm = shared_lstm, enable_critic_lstm
        self._owners = ("actor", "critic") if enable_critic_lstm else ("actor",)
        super().__init__(*args, **kwargs)
        if shared_lstm and not self.share_features_extractor:
            raise ValueError(
                "policy_kwargs: shared_lstm=True needs share_features_extractor=True, and actor and critic that "
                "see the same (actor_keys, critic_keys)"
            )

    def memory_dim(self, features_dim: int) -> int:
        return self.lstm_hidden_size

    def _build_memory(self) -> None:
        for owner in self._owners:
            sizes = self.input_dims[owner], self.lstm_hidden_size, self.n_lstm_layers
            setattr(self, f"{self.layer_name}_{owner}", self.layer(*sizes, **self.layer_kwargs))
        if not self.enable_critic_lstm and not self.shared_lstm:
            self.critic = nn.Linear(self.input_dims["critic"], self.vf_features_dim)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = ("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm")
        return super()._get_constructor_parameters() | {name: getattr(self, name) for name in names}

    @property
    def _layers(self) -> dict[str, Any]:
        """The layers by owner."""
        return {owner: getattr(self, f"{self.layer_name}_{owner}") for owner in self._owners}

    def init_memory(self, n_envs: int) -> Memory:
        return {owner: layer.init(n_envs) for owner, layer in self._layers.items()}

    def encode_step(
        self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None
    ) -> tuple[Features, Memory]:
        features, outputs, after = self.encode(obs), {}, {}
        memory = reset_memory(memory, episode_starts)
        for owner, layer in self._layers.items():
            outputs[owner], after[owner] = layer.step(getattr(features, owner), memory[owner])
        return self._features(features, outputs), after

    def encode_sequences(self, obs: PyTorchObs, memory: Memory, episode_starts: th.Tensor | None = None) -> Features:
        features = self.encode(obs)
        if episode_starts is None:
            episode_starts = th.zeros_like(features.actor[:, 0], dtype=th.bool)
        starts = self._prepare_starts(episode_starts.view(len(memory["actor"][0]), -1), memory)
        outputs = {
            owner: layer.sequences(getattr(features, owner), memory[owner], starts)
            for owner, layer in self._layers.items()
        }
        return self._features(features, outputs)

    def _prepare_starts(self, starts: th.Tensor, memory: Memory) -> Any:
        """The episode starts of sequences, booleans of shape ``(n_sequences, length)``, in the layers' form."""
        return starts

    def _features(self, inputs: Features, outputs: dict[str, th.Tensor]) -> Features:
        """The outputs of the layers; a critic without layers shares the actor's, or has no memory."""
        if not self.enable_critic_lstm:
            outputs["critic"] = outputs["actor"].detach() if self.shared_lstm else self.critic(inputs.critic)
        return Features(**outputs)

    # Actions depend on the actor's memory alone.

    def memory_to_state(self, memory: Memory) -> tuple[th.Tensor, ...]:
        return super().memory_to_state(memory["actor"])

    def state_to_memory(self, state: Sequence[np.ndarray | th.Tensor] | None, n_envs: int) -> Memory:
        memory = self.init_memory(n_envs)
        return memory | {"actor": state_to_memory(state, memory["actor"])}
