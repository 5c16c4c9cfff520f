"""A CUDA device for tests: a real one where there is one, else one that is simulated on the host (``device.cpp``).

Use it in a separate process, since :func:`install` changes torch for good.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HERE = Path(__file__).parent


def install() -> str:
    """Have torch know a CUDA device; returns what it is."""
    if th.cuda.is_available():
        return th.cuda.get_device_name()
    # Before torch has CUDA: it would look for more of it. And only here, since it takes a second.
    import torch._dynamo  # noqa: F401
    from torch.utils.cpp_extension import load

    # Where ninja is, which is installed beside Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # What is compiled is kept, and fits one version of torch.
    name = re.sub(r"\W", "_", f"simulated_device_{th.__version__}")
    device = load(name, [str(HERE / "device.cpp")], extra_cflags=["-O1", "-std=c++20"])
    for name, value in _functions(device).items():
        setattr(th.cuda, name, value)
    for name in ("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all", "manual_seed_all"):
        setattr(th.cuda.random, name, getattr(th.cuda, name))
    th.cuda.CUDAGraph, th.cuda.graph = Graph, recording
    th.cuda.Stream, th._C._cuda_clearCublasWorkspaces = _Stream, lambda: None
    th._C._cuda_getDevice, th._C._cuda_setDevice = device.current_device, device.set_device
    th._C._cuda_getDeviceCount = lambda: device.N_DEVICES
    th._C._cuda_isInBadFork = lambda: False
    th._C._cuda_set_sync_debug_mode = device.set_sync_debug_mode
    th._C._cuda_get_sync_debug_mode = device.get_sync_debug_mode
    th.serialization.register_package(1, _tag, _put)
    th.UntypedStorage.clone = _cloning(th.UntypedStorage.clone)
    return "simulated"


def _functions(device: Any) -> dict[str, Any]:
    """What ``torch.cuda`` needs. Random numbers are those of the CPU's generator, so that results can be compared."""

    def set_rng_state(state: th.Tensor, device: Any = None) -> None:
        th.set_rng_state(state)

    def set_rng_state_all(states: list[th.Tensor]) -> None:
        for state in states:
            th.set_rng_state(state)

    def exchange_device(index: int) -> int:
        before: int = device.current_device()
        if index >= 0:
            device.set_device(index)
        return before

    return {
        "_initialized": True,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "_is_compiled": lambda: True,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: device.N_DEVICES,
        "current_device": device.current_device,
        "set_device": lambda given: device.set_device(th._utils._get_device_index(given, optional=True)),
        "get_device_name": lambda given=None: "simulated",
        "get_device_capability": lambda given=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda given=None: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda given=None: th.get_rng_state(),
        "get_rng_state_all": lambda: [th.get_rng_state()] * device.N_DEVICES,
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
    }


class _Stream:
    """A stream of a device; the simulated one has no other."""

    def __init__(self, device: th.device) -> None:
        self.device = device


class Graph:
    """What stands for a CUDA graph: the operations that were recorded, with their tensors."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        """Do them again, into the same memory."""
        for operation, args, kwargs, results in self.calls:
            for new, old in zip(tree_leaves(operation(*args, **kwargs)), tree_leaves(results), strict=True):
                if isinstance(old, th.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class Recording(TorchDispatchMode):
    """Operations, whose effects are undone at the end, since a recording does not run them."""

    def __init__(self, graph: Graph):
        super().__init__()
        self.graph, self.before = graph, []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {**dict(zip((each.name for each in operation._schema.arguments), args, strict=False)), **(kwargs or {})}
        for each in operation._schema.arguments:
            if each.is_write:
                self.before += [(tensor, tensor.clone()) for tensor in tree_leaves(given.get(each.name))]
        results = operation(*args, **(kwargs or {}))
        # A GPU does not record what the host does.
        if any(isinstance(each, th.Tensor) and each.device.type == "cuda" for each in tree_leaves(results)):
            self.graph.calls.append((operation, args, kwargs or {}, results))
        return results


@contextmanager
def recording(graph: Graph, stream: _Stream, **_: Any) -> Iterator[None]:
    """The block is recorded, on a stream of its device."""
    assert stream.device.index == th.cuda.current_device()
    random = th.get_rng_state()
    with Recording(graph) as mode:
        yield
    for tensor, before in reversed(mode.before):
        tensor.copy_(before)
    th.set_rng_state(random)


def _cloning(clone: Any) -> Any:
    """Copies of storages, as ``copy.deepcopy`` makes them."""

    def cloned(storage: Any) -> Any:
        if storage.device.type != "cuda":
            return clone(storage)
        return th.empty(0, dtype=th.uint8, device=storage.device).set_(storage).clone().untyped_storage()

    return cloned


def _tag(storage: Any) -> str | None:
    return f"cuda:{storage.device.index}" if storage.device.type == "cuda" else None


def _put(storage: Any, location: str) -> Any:
    if not location.startswith("cuda"):
        return None
    raw = th.empty(0, dtype=th.uint8).set_(storage)
    return raw.to(location, copy=True).untyped_storage()


@contextmanager
def waits() -> Iterator[list[str]]:
    """The places where the host waits for the device in the block."""
    found: list[str] = []
    before = th.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        th.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            th.cuda.set_sync_debug_mode(before)
    for each in caught:
        if "called a synchronizing CUDA operation" in str(each.message):
            found.append(f"{Path(each.filename).name}:{each.lineno} {each.message}")
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
