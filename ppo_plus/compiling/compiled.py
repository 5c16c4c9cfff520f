"""Pure functions of tensors, compiled. What the compiler cannot do, the function itself does."""

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch as th

from ppo_plus.compiling.constants import first_difference
from ppo_plus.compiling.torch_private import COMPILERS, ONE_AT_A_TIME, find_compiler, forgetting_sources, trace
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map, tree_structure

#: Graphs beyond this many operations take minutes to compile.
MAX_OPERATIONS = 5_000
#: What has to be traced more often than this during one ``learn`` reads something that changes all the time.
MAX_TRACES = 4
#: Numbers that are compared at a time.
PIECE = 65_536
#: How often a compiled form that does something else is tried: other threads may have drawn random numbers meanwhile.
MAX_TRIALS = 5


class CompileError(RuntimeError):
    """A function could not be compiled, although that was demanded."""


def demanded(reason: str) -> CompileError:
    """The error where ``compile=True`` and something, for this reason, cannot be compiled."""
    return CompileError(f"compile=True, but {reason}: use compile=False")


class Compiled:
    """A pure function of tensors that compiles itself at the first call of what :meth:`bind` returns.

    The function takes any nesting of tuples, lists, dicts and ``None`` around tensors, and returns one, possibly with
    constants among the tensors. It may change its first ``n_mutable`` arguments in place and draw from torch's global
    generator. Whatever else it reads is a constant of the trace. Where its settled arguments (see :meth:`bind`) have
    other shapes, layouts or dtypes than the traced ones it is traced anew; where its other arguments have, the function
    itself runs. An argument that it returns unchanged is the caller's own tensor.

    :param function: the function
    :param name: what it is, for messages
    :param n_mutable: how many of its arguments it may change in place
    :param strict: raise :class:`CompileError` where it cannot be compiled, instead of warning and falling back
    :param reads: lists what it reads besides its arguments, in a form that can be compared: a call must not change it
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        n_mutable: int = 0,
        strict: bool = False,
        reads: Callable[[], Any] = dict,
    ):
        self.function = function
        self.name = name
        self.n_mutable = n_mutable
        self.strict = strict
        self.reads = reads
        self.n_traces = 0
        #: Why it is not compiled; ``None``: it is, or will be at its first call.
        self.failure: str | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the compiled form: the next call traces anew."""
        self._run: Callable[[list[th.Tensor]], Any] | None = None
        self._signature: list[Any] = []
        self._static_form: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles compile for themselves.
        return vars(self) | {"_run": None, "_signature": [], "_static_form": None}

    @property
    def is_compiled(self) -> bool:
        """Whether calls run the compiled form now."""
        return self._run is not None

    def bind(
        self,
        *static: Any,
        watched: bool = False,
        in_place: Callable[[], bool] | None = None,
        plain: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """The function with its first arguments settled, for many calls in a row.

        :param static: the first arguments: the same tensors in every call, though their values may change
        :param watched: whether somebody may move these tensors (``tensor.data = ...``) between the calls, possibly to
            another layout
        :param in_place: whether they are still what the function is to be called with, asked before each call; where
            they are not, ``plain`` runs
        :param plain: what runs where the compiled form does not; by default the function
        :return: a function of the others, which must have the same structure in every call
        """
        static_tensors, form = tree_flatten(static)
        n_static = len(static_tensors)
        addresses: list[Any] | None = None
        varying_form: Any = None

        def settle() -> None:
            nonlocal addresses
            if self._static_form != form or self._signature[:n_static] != _signature(static_tensors):
                self.reset()
            self._static_form = form
            addresses = _addresses(static_tensors) if watched and self._run is not None else None

        settle()

        def uncompiled(*varying: Any) -> Any:
            return self.function(*static, *varying) if plain is None else plain(*varying)

        def call(*varying: Any) -> Any:
            nonlocal varying_form
            if (self.failure is not None and not self.strict) or (in_place is not None and not in_place()):
                return uncompiled(*varying)
            if varying_form is None:
                varying_form = tree_structure(varying)
            # The compiled form checks nothing itself. It may be another by now, made for a later binding.
            if self._static_form is not form or (addresses is not None and addresses != _addresses(static_tensors)):
                settle()
            # Where the structure is known this takes a tenth of the time of finding it.
            tensors = [*static_tensors, *varying_form.flatten_up_to(varying)]
            signature = _signature(tensors[n_static:])
            if self._run is None:
                self._compile((*static, *varying))
                if self._run is not None:
                    settle()
            if self._run is None or signature != self._signature[n_static:]:
                return uncompiled(*varying)
            return self._run(tensors)

        return call

    def agrees(self, *args: Any) -> bool:
        """Whether the compiled form does what the function does, tried on copies of these arguments.

        The generators' states are restored. True where nothing is compiled.
        """
        if self._run is None:
            return True
        results = []
        for function in (self.function, self._call_compiled):
            # Each with the same random numbers, and none of them missing afterwards.
            with th.random.fork_rng():
                mutable: Any = tree_map(th.clone, args[: self.n_mutable])
                results.append((function(*mutable, *args[self.n_mutable :]), mutable))
        eager, compiled = (tree_leaves(result) for result in results)
        return all(_close(a, b) for a, b in zip(eager, compiled, strict=True))

    def _call_compiled(self, *args: Any) -> Any:
        tensors = tree_leaves(args)
        if _signature(tensors) != self._signature:
            raise CompileError("a copy of a tensor that may change has another layout than the tensor")
        assert self._run is not None
        return self._run(tensors)

    def _compile(self, args: tuple[Any, ...]) -> None:
        try:
            if self.n_traces >= MAX_TRACES:
                raise CompileError(f"what it reads changed {MAX_TRACES} times, and each time it had to be traced anew")
            self.n_traces += 1
            self._signature = _signature(tree_leaves(args))
            with ONE_AT_A_TIME, forgetting_sources():
                forms = self._trace_and_compile(args)
                while True:
                    self._run = next(forms)
                    if any(self.agrees(*args) for _ in range(MAX_TRIALS if threading.active_count() > 1 else 1)):
                        break
        except Exception as error:
            self.fail(in_one_line(error), error)

    def fail(self, reason: str, cause: Exception | None = None) -> None:
        """From now on the function itself runs.

        :param reason: why, for people
        :param cause: the error behind it
        :raises CompileError: ``strict``
        """
        self.reset()
        if self.strict:
            raise demanded(f"{self.name} could not be compiled ({reason})") from cause
        if self.failure is None:
            warnings.warn(f"{self.name} runs uncompiled, and slower ({reason})", RuntimeWarning, stacklevel=5)
        self.failure = reason

    def _trace_and_compile(self, args: tuple[Any, ...]) -> Iterator[Callable[[list[th.Tensor]], Any]]:
        """Compiled forms, to be tried one after the other.

        :raises CompileError: there is none (any more)
        """
        leaves, spec = tree_flatten(args)
        tensors = _distinct(leaves)
        structure: Any = None
        #: For each leaf of the result where it is found: the index of a given tensor, of a made one, or a constant.
        places: list[tuple[str, Any]] = []

        def flat(*given: th.Tensor) -> list[Any]:
            nonlocal structure
            results, structure = tree_flatten(self.function(*spec.unflatten(given)))
            made: list[th.Tensor] = []
            places.clear()
            for leaf in results:
                # What comes back as it was given need not pass through the compiled form.
                index = next((i for i, tensor in enumerate(given) if leaf is tensor), None)
                if index is not None:
                    places.append(("given", index))
                elif isinstance(leaf, th.Tensor):
                    places.append(("made", len(made)))
                    made.append(leaf)
                else:
                    places.append(("constant", leaf))
            return made

        before = self.reads()
        graph = trace(flat, tensors)
        after = self.reads()
        if before != after:
            self.n_traces = MAX_TRACES  # it would again
            what = after if isinstance(after, str) else first_difference(before, after)
            raise CompileError(f"it keeps something from call to call ({what})")
        _refuse_tensors(graph, tensors)
        if len(graph.graph.nodes) > MAX_OPERATIONS:
            raise CompileError(f"its graph has {len(graph.graph.nodes)} operations, more than {MAX_OPERATIONS}")
        build = _builder(structure, places)
        failure: Exception | None = None
        for compile_graph in COMPILERS:
            try:
                run = compile_graph(graph, tensors)
            except Exception as error:
                failure = failure or error
            else:
                yield lambda tensors, run=run: build(run(tensors.copy()), tensors)  # type: ignore[misc]
        raise failure or CompileError("the compiled form does not reproduce the function's results")


def obstacle(device: th.device) -> str | None:
    """Why nothing can be compiled here, whatever it is; ``None`` if something can.

    :param device: where it would run
    """
    if device.type == "cpu":
        try:
            find_compiler()
        except Exception as error:
            return in_one_line(error)
    return None


def in_one_line(error: Exception) -> str:
    """The kind of an error, and the first line of what it says."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _builder(structure: Any, places: list[tuple[str, Any]]) -> Callable[[list[th.Tensor], list[th.Tensor]], Any]:
    """A function that puts a result together of the tensors that were made and those that were given.

    :param structure: of the result
    :param places: where each of its leaves is found
    """
    unflatten = structure.unflatten

    def build(made: list[th.Tensor], given: list[th.Tensor]) -> Any:
        return unflatten([made[at] if kind == "made" else given[at] if kind == "given" else at for kind, at in places])

    return build


def _refuse_tensors(graph: th.fx.GraphModule, given: list[th.Tensor]) -> None:
    """:raises CompileError: a weight, or memory of a given tensor, would be a constant"""
    memory = {tensor.untyped_storage().data_ptr() for tensor in given} - {0}
    for node in graph.graph.find_nodes(op="get_attr"):
        constant = getattr(graph, str(node.target))
        if not isinstance(constant, th.Tensor):
            continue
        if constant.requires_grad or constant.untyped_storage().data_ptr() in memory:
            what = "weight" if constant.requires_grad else "buffer or frozen weight"
            raise CompileError(
                f"it reads a {what} of shape {tuple(constant.shape)} elsewhere than in its module, such as from a list "
                "or the optimizer's groups"
            )


def _close(a: Any, b: Any) -> bool:
    """Whether two results are the same but for rounding; in pieces, which need no memory to speak of."""
    if a is b or not isinstance(a, th.Tensor) or a.shape != b.shape:
        return bool(a is b or (not isinstance(a, th.Tensor) and a == b))
    return all(
        th.allclose(x.double(), y.double(), rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in zip(th.split(a.flatten(), PIECE), th.split(b.flatten(), PIECE), strict=True)
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
