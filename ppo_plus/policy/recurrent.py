"""Memory by torch's LSTMs and GRUs, with sb3-contrib's arguments, structure, initial weights and ``state_dict()``.

A recurrent layer here is torch's, with its weights and their names. Its state is a tuple of tensors of shape
``(N, layers, hidden)``: :math:`(h, c)` for an LSTM (Hochreiter and Schmidhuber 1997), :math:`(h,)` for a GRU
(Cho et al. 2014, arXiv:1406.1078).
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch as th
from torch import nn
from torch.nn import functional as F

from ppo_plus.policy.memory import LayerMemory, State
from ppo_plus.policy.policies import CnnPolicy, Memory, MultiInputPolicy

#: Negated input of a closed gate: its sigmoid is 0.
CLOSED = 1e4
#: The entry of a prepared rollout's memory that says how many episodes start within one of its sequences, at most.
MOST_STARTS = "most_starts"
# With resets, cuDNN has to copy a layer's weights in each call. The filter applies to the whole process.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)


class Layout:
    """Layout of sequences with episode starts for torch's loop over time, which cannot reset its state on the way.

    A *reset* step is inserted before each start, at which the layer closes its gates, so that its state becomes 0; at
    the first step, the given state is multiplied by 0 instead. Sequences with fewer starts end earlier; what follows is
    not read. A layout is at most twice as long as its sequences.

    :param marks: at which steps an episode starts, booleans of shape ``(n_sequences, length)``
    :param most: the most episode starts after the first step of a sequence; ``None``: counted, which waits for a GPU
    """

    def __init__(self, marks: th.Tensor, most: int | None = None):
        self.n_sequences = n_sequences = len(marks)
        #: 0 where the state before the sequence is reset, else 1; shape ``(n_sequences, 1, 1)``.
        self.keep = (~marks[:, :1, None]).float()
        #: 1 at reset steps and after a sequence, shape ``(n_sequences, length, 1)``; ``None`` if there are none.
        self.resets: th.Tensor | None = None
        n_before = marks[:, 1:].cumsum(dim=1)
        if most is None:
            most = int(n_before[:, -1:].max()) if n_before.numel() else 0
        if most:
            length = marks.shape[1] + most
            rows = th.arange(marks.shape[1], device=marks.device).repeat(n_sequences, 1)
            rows[:, 1:] += n_before
            self._rows = (rows + length * th.arange(n_sequences, device=marks.device)[:, None]).view(-1)
            resets = th.ones(n_sequences * length, dtype=th.float32, device=marks.device).index_fill(0, self._rows, 0.0)
            self.resets = resets.view(n_sequences, length, 1)

    def pad(self, x: th.Tensor) -> th.Tensor:
        """Sequences one after another, ``(B, F)``, as ``(n_sequences, length, F)``; zeros at reset steps."""
        if self.resets is None:
            return x.view(self.n_sequences, -1, x.shape[1])
        n_rows = self.resets.numel()
        return x.new_zeros(n_rows, x.shape[1]).index_copy(0, self._rows, x).view(self.n_sequences, -1, x.shape[1])

    def unpad(self, y: th.Tensor) -> th.Tensor:
        """The inverse of :meth:`pad`."""
        y = y.flatten(0, 1)
        return y if self.resets is None else y.index_select(0, self._rows)


def _of_layer(state: State, i: int) -> State:
    """The state of one layer, shape ``(N, hidden)``; contiguous, as cuDNN and other backends need it."""
    return tuple(part[:, i].contiguous() for part in state)


class Recurrent(nn.RNNBase):
    """A recurrent layer with an explicit state: :class:`LSTM` or :class:`GRU`.

    ``init``, ``step`` and ``sequences`` are those of :class:`~ppo_plus.policy.memory.MemoryLayer`.
    """

    #: Number of tensors in its state.
    n_states: int
    #: The weights of one more input, which is 1 at reset steps: they set the state to 0.
    _reset_weights: Callable[[list[Any]], th.Tensor]
    #: One step of a layer: its next state, the output first.
    _cell: Callable[[th.Tensor, State, list[Any]], State]
    #: All steps of a layer by torch's loop: the outputs, ``(n_sequences, length, hidden_size)``.
    _loop: Callable[[th.Tensor, State, list[Any]], th.Tensor]

    def init(self, n_envs: int) -> State:
        shape = n_envs, self.num_layers, self.hidden_size
        return tuple(self.all_weights[0][0].new_zeros(shape) for _ in range(self.n_states))

    def step(self, x: th.Tensor, state: State) -> tuple[th.Tensor, State]:
        layers: list[State] = []
        for i, weights in enumerate(self.all_weights):
            if i:
                x = F.dropout(x, self.dropout, self.training)
            layers.append(self._cell(x, _of_layer(state, i), weights))
            x = layers[-1][0]
        return x, tuple(th.stack(parts, dim=1) for parts in zip(*layers, strict=True))

    def sequences(self, x: th.Tensor, state: State, layout: Layout) -> th.Tensor:
        x = layout.pad(x)
        state = tuple(part * layout.keep for part in state)
        for i, layer in enumerate(self.all_weights):
            weights: list[Any] = layer
            if i:
                x = F.dropout(x, self.dropout, self.training)
            if layout.resets is not None:
                x = th.cat([x, layout.resets], dim=2)
                weights = [th.cat([weights[0], self._reset_weights(weights)[:, None]], dim=1), *weights[1:]]
            x = self._loop(x, _of_layer(state, i), weights)
        return layout.unpad(x)

    def _loop_options(self) -> tuple[bool, int, float, bool, bool, bool]:
        """The other arguments of torch's loop, for one layer with the environment first."""
        # Torch stores what gradients need only "in training".
        return self.bias, 1, 0.0, th.is_grad_enabled(), False, True


class LSTM(Recurrent, nn.LSTM):
    """``nn.LSTM`` with an explicit state :math:`(h, c)`."""

    n_states = 2

    def _reset_weights(self, weights: list[Any]) -> th.Tensor:
        # With input, forget and output gates at 0, c and h are 0 for any candidate.
        i, f, g, o = weights[0].new_full((4, self.hidden_size), -CLOSED)
        return th.cat([i, f, th.zeros_like(g), o])

    def _cell(self, x: th.Tensor, state: State, weights: list[Any]) -> State:
        return th.lstm_cell(x, state, *weights)

    def _loop(self, x: th.Tensor, state: State, weights: list[Any]) -> th.Tensor:
        return th.lstm(x, [part[None] for part in state], weights, *self._loop_options())[0]


class GRU(Recurrent, nn.GRU):
    """``nn.GRU`` with an explicit state :math:`(h,)`."""

    n_states = 1

    def _reset_weights(self, weights: list[Any]) -> th.Tensor:
        # With reset and update gates at 0, h is the candidate, which without its bias is tanh(0).
        r, z, n = weights[0].new_full((3, self.hidden_size), -CLOSED)
        return th.cat([r, z, -weights[2].chunk(3)[2] if self.bias else th.zeros_like(n)])

    def _cell(self, x: th.Tensor, state: State, weights: list[Any]) -> State:
        return (th.gru_cell(x, *state, *weights),)

    def _loop(self, x: th.Tensor, state: State, weights: list[Any]) -> th.Tensor:
        return th.gru(x, state[0][None], weights, *self._loop_options())[0]


class RecurrentMemory(LayerMemory):
    """:class:`~ppo_plus.policy.memory.LayerMemory` of torch's layers: :class:`LSTMMemory`, :class:`GRUMemory`.

    :param lstm_kwargs: ``bias`` and ``dropout`` of torch's layers
    """

    # Torch's loops over time are not compiled.
    compiles_encoder = False

    def __init__(self, *args: Any, lstm_kwargs: dict[str, Any] | None = None, **kwargs: Any):
        if (lstm_kwargs or {}).keys() - {"bias", "dropout"}:
            raise ValueError(f"policy_kwargs: lstm_kwargs={lstm_kwargs!r} may only set bias and dropout")
        self.lstm_kwargs = self.layer_kwargs = lstm_kwargs or {}
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"lstm_kwargs": self.lstm_kwargs}

    def _prepare_starts(self, starts: th.Tensor, memory: Memory) -> Layout:
        return Layout(starts, memory.get(MOST_STARTS))

    def prepare_rollout(self, rollout: Any) -> Any:
        rollout = super().prepare_rollout(rollout)
        # On a CPU, each minibatch counts for itself, which makes shorter layouts.
        if rollout.episode_starts.device.type == "cpu":
            return rollout
        memory = rollout.carry.memory
        inside = rollout.episode_starts.view(len(memory["actor"][0]), -1)[:, 1:]
        memory = memory | {MOST_STARTS: int(inside.sum(dim=1).max())}
        return rollout._replace(carry=rollout.carry._replace(memory=memory))


class LSTMMemory(RecurrentMemory):
    """:class:`~ppo_plus.policy.recurrent.RecurrentMemory` of LSTMs."""

    layer = LSTM
    layer_name = "lstm"


class GRUMemory(RecurrentMemory):
    """:class:`~ppo_plus.policy.recurrent.RecurrentMemory` of GRUs."""

    layer = GRU
    layer_name = "gru"


class MlpLstmPolicy(LSTMMemory):
    """:class:`~ppo_plus.policy.policies.ActorCriticPolicy` with LSTMs."""


class CnnLstmPolicy(LSTMMemory, CnnPolicy):
    """:class:`~ppo_plus.policy.policies.CnnPolicy` with LSTMs."""


class MultiInputLstmPolicy(LSTMMemory, MultiInputPolicy):
    """:class:`~ppo_plus.policy.policies.MultiInputPolicy` with LSTMs."""


class MlpGruPolicy(GRUMemory):
    """:class:`~ppo_plus.policy.policies.ActorCriticPolicy` with GRUs."""


class CnnGruPolicy(GRUMemory, CnnPolicy):
    """:class:`~ppo_plus.policy.policies.CnnPolicy` with GRUs."""


class MultiInputGruPolicy(GRUMemory, MultiInputPolicy):
    """:class:`~ppo_plus.policy.policies.MultiInputPolicy` with GRUs."""
