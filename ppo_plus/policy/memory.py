"""Memory: recurrent layers with an explicit state.

A layer here is torch's own, with its weights and their names, used in two ways: one :meth:`Recurrent.step` for acting,
and whole :meth:`Recurrent.sequences` for learning. What it remembers is handed in and handed back as a tuple of tensors
of shape ``(N, layers, hidden)``, first dimension the environment: :math:`(h, c)` for an LSTM (Hochreiter and
Schmidhuber 1997), :math:`(h,)` for a GRU (Cho et al. 2014, arXiv:1406.1078). It is forgotten where an episode starts.
"""

import numpy as np
import torch as th
from torch import nn
from torch.nn import functional as F

from ppo_plus.policy.carry import State

#: Input, negative, of a gate that is to be shut: its sigmoid is 0.
CLOSED = 1e4


class Layout:
    """How sequences in which episodes start are laid out for torch's loop over time, which cannot forget on the way.

    Before each start (but at the first step, where the given state is left out) a *reset* step is put in, at which
    the layer shuts its gates and so forgets everything. Sequences with fewer starts end earlier; what follows is not
    read. A layout is at most twice as long as its sequences.

    :param starts: whether an episode starts there, ``n_sequences`` sequences one after another, booleans of ``(B,)``
    :param n_sequences: number of sequences, all of the same length
    """

    def __init__(self, starts: th.Tensor, n_sequences: int):
        # Numpy, because its operations on a few numbers take a tenth of the time; the length is read anyway.
        marks = starts.numpy(force=True).reshape(n_sequences, -1)
        self.n_sequences = n_sequences
        #: 0 where the state before the sequence is to be forgotten, else 1; shape ``(n_sequences, 1, 1)``.
        self.remembers = _floats(~marks[:, :1, None], starts.device)
        #: 1 at reset steps, else 0, shape ``(n_sequences, length, 1)``; ``None`` if there are none.
        self.resets: th.Tensor | None = None
        later = marks.copy()
        later[:, 0] = False
        n_resets = later.cumsum(axis=1, dtype=np.int64)
        n_more = int(n_resets[:, -1].max())
        if n_more:
            length = marks.shape[1] + n_more
            rows = n_resets + np.arange(marks.shape[1]) + length * np.arange(n_sequences)[:, None]
            self._rows = th.from_numpy(rows.reshape(-1)).to(starts.device)
            resets = np.zeros((n_sequences * length, 1), dtype=bool)
            resets[rows[later] - 1] = True
            self.resets = _floats(resets.reshape(n_sequences, length, 1), starts.device)

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


def _floats(flags: np.ndarray, device: th.device) -> th.Tensor:
    return th.from_numpy(flags.astype(np.float32)).to(device)


class Recurrent(nn.RNNBase):
    """A recurrent layer with an explicit state: :class:`LSTM` or :class:`GRU`."""

    #: Tensors that its state consists of.
    n_states: int

    def init(self, n_envs: int) -> State:
        """Nothing remembered by ``n_envs`` environments."""
        shape = n_envs, self.num_layers, self.hidden_size
        return tuple(self.all_weights[0][0].new_zeros(shape) for _ in range(self.n_states))

    def step(self, x: th.Tensor, state: State, starts: th.Tensor | None = None) -> tuple[th.Tensor, State]:
        """One step of each environment.

        :param x: shape ``(N, input_size)``
        :param state: before the step
        :param starts: whether an episode starts with it, booleans of shape ``(N,)``; ``None``: nowhere
        :return: output ``(N, hidden_size)`` and the state after the step
        """
        if starts is not None:
            remembers = (~starts)[:, None, None].to(x.dtype)
            state = tuple(part * remembers for part in state)
        layers: list[State] = []
        for i, weights in enumerate(self._weights):
            if i:
                x = F.dropout(x, self.dropout, self.training)
            layers.append(self._cell(x, tuple(part[:, i] for part in state), weights))
            x = layers[-1][0]
        return x, tuple(th.stack(parts, dim=1) for parts in zip(*layers, strict=True))

    def sequences(self, x: th.Tensor, state: State, layout: Layout) -> th.Tensor:
        """Whole sequences.

        :param x: sequences one after another, shape ``(B, input_size)``
        :param state: before the first step of each of them
        :param layout: where episodes start in them
        :return: outputs, shape ``(B, hidden_size)``
        """
        x = layout.pad(x)
        state = tuple(part * layout.remembers for part in state)
        for i, weights in enumerate(self._weights):
            if i:
                x = F.dropout(x, self.dropout, self.training)
            if layout.resets is not None:
                x = th.cat([x, layout.resets], dim=2)
                weights = [th.cat([weights[0], self._reset_weights(weights)[:, None]], dim=1), *weights[1:]]
            x = self._loop(x, tuple(part[:, i] for part in state), weights)
        return layout.unpad(x)

    @property
    def _weights(self) -> list[list[th.Tensor]]:
        """The weights of each layer, also where others stand in for the module's own."""
        return [[weight for weight in layer] for layer in self.all_weights]

    def _reset_weights(self, weights: list[th.Tensor]) -> th.Tensor:
        """The weights of one more input, which is 1 at reset steps: they leave the state at 0."""
        raise NotImplementedError

    def _cell(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> State:
        """One step of a layer: its next state, the output first."""
        raise NotImplementedError

    def _loop(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> th.Tensor:
        """All steps of a layer by torch's own loop: the outputs, ``(n_sequences, length, hidden_size)``."""
        raise NotImplementedError

    def _options(self) -> tuple[bool, int, float, bool, bool, bool]:
        """The further arguments of torch's loop, for one layer with the environment first."""
        # What is needed for gradients is kept only "in training".
        return self.bias, 1, 0.0, th.is_grad_enabled(), False, True


class LSTM(Recurrent, nn.LSTM):
    """``nn.LSTM`` with an explicit state :math:`(h, c)`."""

    n_states = 2

    def _reset_weights(self, weights: list[th.Tensor]) -> th.Tensor:
        # With input, forget and output gates at 0, c and h are 0, whatever the candidate is.
        i, f, g, o = weights[0].new_full((4, self.hidden_size), -CLOSED)
        return th.cat([i, f, th.zeros_like(g), o])

    def _cell(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> State:
        h, c = th.lstm_cell(x, state, *weights)
        return h, c

    def _loop(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> th.Tensor:
        return th.lstm(x, [part[None] for part in state], weights, *self._options())[0]


class GRU(Recurrent, nn.GRU):
    """``nn.GRU`` with an explicit state :math:`(h,)`."""

    n_states = 1

    def _reset_weights(self, weights: list[th.Tensor]) -> th.Tensor:
        # With reset and update gates at 0, h is the candidate, which without its bias is tanh(0).
        r, z, n = weights[0].new_full((3, self.hidden_size), -CLOSED)
        return th.cat([r, z, -weights[2].chunk(3)[2] if self.bias else th.zeros_like(n)])

    def _cell(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> State:
        return (th.gru_cell(x, *state, *weights),)

    def _loop(self, x: th.Tensor, state: State, weights: list[th.Tensor]) -> th.Tensor:
        return th.gru(x, state[0][None], weights, *self._options())[0]
