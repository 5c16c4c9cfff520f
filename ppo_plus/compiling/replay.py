"""Functions on a GPU as one launch: their kernels are recorded in a CUDA graph, and replayed."""

from collections.abc import Callable
from functools import cache

import torch as th

from ppo_plus.compiling.torch_private import ONE_AT_A_TIME, own_workspaces


class Replayed:
    """A function of tensors on a GPU, recorded where it can be: launching small kernels one by one takes longer than
    running them.

    A recording reads and writes fixed memory: that of the static tensors, which come first, and copies of the others.
    If a static tensor has moved, the function runs once without a recording, and the next call records it again.

    :param function: may change the static tensors in place, and draw from the generator of the GPU
    """

    def __init__(self, function: Callable[[list[th.Tensor]], list[th.Tensor]], n_static: int):
        self._function, self._n_static = function, n_static
        #: Where the static tensors were in the last call.
        self._addresses: list[int] = []
        self._graph: th.cuda.CUDAGraph | None = None
        self._inputs: list[th.Tensor] = []
        self._outputs: list[th.Tensor] = []

    def __call__(self, given: list[th.Tensor]) -> list[th.Tensor]:
        static, varying = given[: self._n_static], given[self._n_static :]
        addresses = [tensor.data_ptr() for tensor in static]
        if addresses != self._addresses:
            self._addresses, self._graph = addresses, None
            return self._function(given)
        if self._graph is None:
            device, inputs = given[0].device, [tensor.clone() for tensor in varying]
            # A replay does not read tensors on other devices, and a copy of an expanded tensor has other strides.
            expanded = [own.stride() != tensor.stride() for own, tensor in zip(inputs, varying, strict=True)]
            if any(expanded) or any(each.device != device for each in given):
                return self._function(given)
            graph, self._inputs = th.cuda.CUDAGraph(), inputs
            recording = th.cuda.graph(graph, stream=_stream(device), capture_error_mode="thread_local")
            with ONE_AT_A_TIME, own_workspaces(), th.cuda.device(device), recording:
                self._outputs = self._function([*static, *inputs])
            self._graph = graph
        for own, tensor in zip(self._inputs, varying, strict=True):
            own.copy_(tensor)
        self._graph.replay()
        # The next replay writes into the same memory.
        return [tensor.clone() for tensor in self._outputs]


@cache
def _stream(device: th.device) -> th.cuda.Stream:
    """The stream on which a GPU's functions are recorded; torch's own is that of the first GPU."""
    return th.cuda.Stream(device)  # type: ignore[no-untyped-call]
