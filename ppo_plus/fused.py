"""Pure functions of tensors, compiled. What the compiler cannot do, the function itself does."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ppo_plus.inductor import compile_graph, find_compiler, trace
from ppo_plus.kernels import IS_TESTED, TESTED

#: Graphs beyond this many operations take minutes to compile.
MAX_OPERATIONS = 5_000
#: What has to be traced more often than this during one ``learn`` reads something that changes all the time.
MAX_TRACES = 4
#: Numbers that are compared at a time.
PIECE = 65_536


class CompileError(RuntimeError):
    """A function could not be compiled, although that was demanded."""


class Fused:
    """A pure function of tensors that compiles itself at the first call of what :meth:`bind` returns.

    The function takes and returns any nesting of tuples, lists, dicts and ``None`` around tensors. It may change its
    first ``n_mutable`` arguments in place and draw from torch's global generator. Whatever else it reads is a constant
    of the trace. Where its settled arguments (see :meth:`bind`) have other shapes, layouts or dtypes than the traced
    ones it is traced anew; where its other arguments have, the function itself runs. An argument that it returns
    unchanged is the caller's own tensor.

    :param function: the function
    :param name: what it is, for messages
    :param n_mutable: how many of its arguments it may change in place
    :param strict: raise :class:`CompileError` where it cannot be compiled, instead of warning and falling back
    """

    def __init__(self, function: Callable[..., Any], name: str, n_mutable: int = 0, strict: bool = False):
        self.function = function
        self.name = name
        self.n_mutable = n_mutable
        self.strict = strict
        self.n_traces = 0
        self._failed = False
        self.reset()

    def reset(self) -> None:
        """Forget the compiled form: the next call traces anew."""
        self._run: Callable[[list[th.Tensor]], Any] | None = None
        self._signature: list[Any] = []
        self._static_form: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles compile for themselves.
        return vars(self) | {"_run": None, "_signature": [], "_static_form": None}

    def bind(self, *static: Any, watched: bool = False) -> Callable[..., Any]:
        """The function with its first arguments settled, for many calls in a row.

        :param static: the first arguments: the same tensors in every call, though their values may change
        :param watched: whether somebody may move these tensors (``tensor.data = ...``) between the calls, possibly to
            another layout
        :return: a function of the others, which must have the same structure in every call
        """
        static_tensors: list[th.Tensor] = []
        _collect(static, static_tensors)
        n_static = len(static_tensors)
        form = _form(static)
        addresses: list[Any] | None = None

        def settle() -> None:
            nonlocal addresses
            if self._static_form != form or self._signature[:n_static] != _signature(static_tensors):
                self.reset()
            self._static_form = form
            addresses = _addresses(static_tensors) if watched and self._run is not None else None

        settle()

        def call(*varying: Any) -> Any:
            if self._failed and not self.strict:
                return self.function(*static, *varying)
            # The compiled form checks nothing itself. It may be another by now, made for a later binding.
            if self._static_form is not form or (addresses is not None and addresses != _addresses(static_tensors)):
                settle()
            tensors = static_tensors.copy()
            _collect(varying, tensors)
            signature = _signature(tensors[n_static:])
            if self._run is None:
                self._compile((*static, *varying))
                if self._run is not None:
                    settle()
            if self._run is None or signature != self._signature[n_static:]:
                return self.function(*static, *varying)
            return self._run(tensors)

        return call

    def agrees(self, *args: Any, noise: float = 0.0) -> bool:
        """Whether the compiled form does what the function does, tried on copies of these arguments.

        The constants of the trace may have changed since it was made. The generators' states are restored. True where
        nothing is compiled.

        :param noise: standard deviation of what is added to the copy of the first argument, so that terms show that
            vanish at its present value, as a KL penalty does before the first step
        """
        if self._run is None:
            return True
        tensors: list[th.Tensor] = []
        _collect(args, tensors)
        if _signature(tensors) != self._signature:
            return True
        results = []
        for function in (self.function, self._call_compiled):
            # Each with the same random numbers, and none of them missing afterwards.
            with th.random.fork_rng():
                mutable = tree_map(lambda tensor: tensor.clone(), args[: self.n_mutable])
                if noise:
                    mutable[0].add_(noise * th.randn_like(mutable[0]))
                results.append((function(*mutable, *args[self.n_mutable :]), mutable))
        eager, compiled = (tree_flatten(result)[0] for result in results)
        return all(_close(a, b) for a, b in zip(eager, compiled, strict=True))

    def check(self, *args: Any, noise: float = 0.0) -> None:
        """Forget the compiled form if it no longer :meth:`agrees`."""
        if not self.agrees(*args, noise=noise):
            self.reset()

    def _call_compiled(self, *args: Any) -> Any:
        tensors: list[th.Tensor] = []
        _collect(args, tensors)
        if _signature(tensors) != self._signature:
            raise CompileError("a copy of a tensor that may change has another layout than the tensor")
        assert self._run is not None
        return self._run(tensors)

    def _compile(self, args: tuple[Any, ...]) -> None:
        try:
            if self.n_traces >= MAX_TRACES:
                raise CompileError(f"what it reads changed {MAX_TRACES} times, and each time it had to be traced anew")
            self.n_traces += 1
            self._run = self._trace_and_compile(args)
            tensors: list[th.Tensor] = []
            _collect(args, tensors)
            self._signature = _signature(tensors)
            if not self.agrees(*args):
                raise CompileError("the compiled form does not reproduce the function's results")
        except Exception as error:
            self.reset()
            self._failed = True
            reason = _in_one_line(error)
            if self.strict:
                raise CompileError(
                    f"compile=True, but {self.name} could not be compiled ({reason}): use compile=False"
                ) from error
            warnings.warn(f"{self.name} runs uncompiled, and slower ({reason})", RuntimeWarning, stacklevel=4)

    def _trace_and_compile(self, args: tuple[Any, ...]) -> Callable[[list[th.Tensor]], Any]:
        leaves, spec = tree_flatten(args)
        tensors = _distinct([leaf for leaf in leaves if leaf is not None])
        structure: Any = None

        def flat(*flat_tensors: th.Tensor) -> list[Any]:
            nonlocal structure
            rest = iter(flat_tensors)
            given = [None if leaf is None else next(rest) for leaf in leaves]
            result = self.function(*tree_unflatten(given, spec))
            outputs: list[th.Tensor] = []

            def place(leaf: Any) -> "_Place | None":
                if leaf is None:
                    return None
                # What comes back as it was given need not pass through the compiled form.
                for i, tensor in enumerate(flat_tensors):
                    if leaf is tensor:
                        return _Place(f"given[{i}]")
                outputs.append(leaf)
                return _Place(f"made[{len(outputs) - 1}]")

            structure = tree_map(place, result)
            return outputs

        graph = trace(flat, tensors)
        _refuse_weights(graph)
        if len(graph.graph.nodes) > MAX_OPERATIONS:
            raise CompileError(f"its graph has {len(graph.graph.nodes)} operations, more than {MAX_OPERATIONS}")
        run, build = compile_graph(graph, tensors), _builder(structure)
        return lambda tensors: build(run(tensors.copy()), tensors)


def obstacle(device: th.device) -> str | None:
    """Why nothing can be compiled here, whatever it is; ``None`` if something can.

    :param device: where it would run
    """
    if not IS_TESTED:
        return f"torch {th.__version__} is not among the tested versions {', '.join(TESTED)}"
    if device.type == "cpu":
        try:
            find_compiler()
        except Exception as error:
            return _in_one_line(error)
    return None


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let torch's optimizers compute with tensors throughout, as they do under ``torch.compile``."""
    before = th.compiler._is_compiling_flag
    th.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        th.compiler._is_compiling_flag = before


@contextmanager
def swapped(module: nn.Module, own: Sequence[th.Tensor], others: Sequence[th.Tensor]) -> Iterator[None]:
    """Let a module compute with other parameters and buffers for a while.

    A buffer that the module replaces meanwhile, instead of changing it in place, is written into its stand-in.

    :param module: the module
    :param own: parameters and buffers of it; one that it has under several names is replaced under all of them
    :param others: what stands in for each
    """
    replacements = {id(tensor): other for tensor, other in zip(own, others, strict=True)}
    stores: list[dict[str, Any]] = [
        store
        for part in module.modules()
        for store in (part._parameters, part._buffers)  # type: ignore[misc]
    ]
    before = [store.copy() for store in stores]
    try:
        for store in stores:
            for name, tensor in store.items():
                store[name] = replacements.get(id(tensor), tensor)
        yield
        for store, kept in zip(stores, before, strict=True):
            for name, tensor in kept.items():
                stand_in = replacements.get(id(tensor))
                if stand_in is not None and store[name] is not stand_in:
                    stand_in.copy_(store[name])
    finally:
        for store, kept in zip(stores, before, strict=True):
            store.clear()
            store.update(kept)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class _Place(str):
    """Where a tensor of a result is found, as an expression of Python."""


def _builder(structure: Any) -> Callable[[list[th.Tensor], list[th.Tensor]], Any]:
    """A function that puts tensors into the places of a structure: as one expression of Python, which is ten times
    faster than pytree's own way.

    :param structure: any nesting of tuples, lists, dicts and ``None`` around places
    :return: a function of the tensors that were made, and of those that were given
    """
    constants: dict[str, Any] = {}

    def constant(value: Any) -> str:
        constants[f"constant_{len(constants)}"] = value
        return f"constant_{len(constants) - 1}"

    def expression(part: Any) -> str:
        if part is None or isinstance(part, _Place):
            return str(part)
        if isinstance(part, dict):
            return "{" + "".join(f"{constant(key)}: {expression(value)}, " for key, value in part.items()) + "}"
        make = getattr(part, "_make", type(part))
        return f"{constant(make)}((" + "".join(f"{expression(value)}, " for value in part) + "))"

    build: Callable[..., Any] = eval(f"lambda made, given: {expression(structure)}", constants)
    return build


def _form(tree: Any) -> Any:
    """What a nesting is but for its tensors: their number and shapes do not tell the order of keys and the ``None``."""
    leaves, spec = tree_flatten(tree)
    return spec, [leaf is None for leaf in leaves]


def _refuse_weights(graph: th.fx.GraphModule) -> None:
    """:raises CompileError: a weight would be a constant, and never learned"""
    for node in graph.graph.find_nodes(op="get_attr"):
        constant = getattr(graph, str(node.target))
        if isinstance(constant, th.Tensor) and constant.requires_grad:
            raise CompileError(
                f"it reads a weight of shape {tuple(constant.shape)} elsewhere than in its module, such as from a list "
                "or the optimizer's groups"
            )


def _close(a: th.Tensor, b: th.Tensor) -> bool:
    """Whether two results are the same but for rounding; in pieces, which need no memory to speak of."""
    if a is b or a.shape != b.shape:
        return a is b
    return all(
        th.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(a.flatten().split(PIECE), b.flatten().split(PIECE), strict=True)
    )


def _distinct(tensors: list[th.Tensor]) -> list[th.Tensor]:
    """Copies in place of repetitions: the trace takes one object for one argument."""
    return [
        tensor.clone() if any(tensor is other for other in tensors[:i]) else tensor for i, tensor in enumerate(tensors)
    ]


def _signature(tensors: list[th.Tensor]) -> list[Any]:
    """What the compiled form takes for granted of its inputs."""
    return [(tensor.shape, tensor.dtype, tensor.stride(), tensor.device) for tensor in tensors]


def _addresses(tensors: list[th.Tensor]) -> list[Any]:
    """Where tensors stand in memory, and how: faster than :func:`_signature`, and changed wherever that is, but for
    tensors that are cut shorter in their place."""
    return [*map(th.Tensor.data_ptr, tensors), *map(th.Tensor.stride, tensors)]


def _collect(tree: Any, out: list[th.Tensor]) -> None:
    """Append the tensors of a nesting in pytree order; several times faster than pytree's own."""
    # Tensors come last: asking whether something else is one takes longest.
    if isinstance(tree, (tuple, list)):
        for value in tree:
            _collect(value, out)
    elif isinstance(tree, dict):
        for value in tree.values():
            _collect(value, out)
    elif tree is not None and isinstance(tree, th.Tensor):
        out.append(tree)
