"""Whether a model's training is compiled, and functions of tensors that compile themselves, or else run uncompiled."""

import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch as th
from optree import PyTreeSpec

from ppo_plus.compiling.constants import NotComparable, Reads, constants_of, first_difference
from ppo_plus.compiling.torch_private import ONE_AT_A_TIME, compile_graph, find_compiler, own_workspaces, trace
from ppo_plus.trees import tree_flatten, tree_leaves, tree_map

#: Graphs beyond this many operations take minutes to compile.
MAX_OPERATIONS = 5_000
#: A function that is traced more often than this during one ``learn`` reads something that changes all the time.
MAX_TRACES = 4
#: Gradient steps from which on compiling saves time: it makes each about 1 ms shorter (see
#: ``benchmarks/benchmark.py``), and takes 2 to 4 s, except for the first time on a machine.
WORTH_COMPILING = 4_000
#: The reason that needs no message.
AS_ASKED = "compile=False"


class CompileError(RuntimeError):
    """A function could not be compiled, and ``compile=True``."""


def keeps_changing(what: str) -> str:
    """Why something is not compiled again, with the remedy."""
    return (
        f"{what} changed {MAX_TRACES} times, and each time it was traced again: keep a number that changes in a buffer "
        'of the policy ("A number that changes" in docs/customizing.md)'
    )


def compile_error(reason: str) -> CompileError:
    """The error for ``compile=True`` and something that cannot be compiled, with the reason."""
    return CompileError(f"compile=True, but {reason}: use compile=False")


@dataclass(eq=False)
class Compiled:
    """A function of tensors that compiles itself at the first call of what :meth:`bind` returns.

    The function takes any nesting of tuples, lists, dicts and ``None`` around tensors, and returns one, possibly with
    constants among the tensors. It may change its first argument in place and draw from torch's global generator.
    Everything else that it reads is a constant of the trace. If its bound arguments (see :meth:`bind`) have other
    shapes, layouts or dtypes than the traced ones, it is traced again; if its other arguments have, the function runs
    uncompiled. An argument that it returns unchanged is the caller's own tensor.

    :param name: its name in messages
    :param reads: what it reads besides its arguments; a call must not change it
    :param strict: raise :class:`CompileError` if it cannot be compiled, instead of warning and running uncompiled
    :param constants: what it was compiled for, in a form that can be compared
    """

    function: Callable[..., Any]
    name: str
    reads: Reads = Reads()
    strict: bool = False
    constants: dict[str, Any] | str | None = None
    n_traces: int = field(default=0, init=False)
    #: Why it is not compiled; ``None``: it is, or will be at its first call.
    failure: str | None = field(default=None, init=False)
    _run: Callable[[list[th.Tensor]], Any] | None = field(default=None, init=False)
    _signature: list[Any] = field(default_factory=list, init=False)
    _static_form: PyTreeSpec | None = field(default=None, init=False)

    def reset(self) -> None:
        """Drop the compiled form: the next call traces again."""
        self._run, self._signature, self._static_form = None, [], None

    def bind(self, *static: Any, plain: Callable[..., Any] | None = None, may_move: bool = False) -> Callable[..., Any]:
        """Bind the first arguments of the function, for many calls in a row.

        :param static: the first arguments: the same tensors in every call, whose values may change
        :param plain: what runs instead of the compiled form; by default the function
        :param may_move: whether the tensors may get another layout between the calls (``tensor.data = ...``)
        :return: a function of the others, which must have the same structure in every call
        """
        static_tensors, form = tree_flatten(static)
        n_static = len(static_tensors)
        varying_form: Any = None
        layout: list[Any] = []

        def call(*varying: Any) -> Any:
            nonlocal varying_form, layout
            if self.failure is None:
                if varying_form is None:
                    _, varying_form = tree_flatten(varying)
                # The compiled form checks nothing. It may be that of another binding.
                if self._static_form is not form or (may_move and layout != _layout(static_tensors)):
                    if self._static_form != form or self._signature[:n_static] != _signature(static_tensors):
                        self.reset()
                    self._static_form = form
                    layout = _layout(static_tensors) if may_move else []
                # Flattening by a known structure takes a tenth of the time.
                tensors = [*static_tensors, *varying_form.flatten_up_to(varying)]
                signature = _signature(tensors[n_static:])
                if self._run is None:
                    self._compile((*static, *varying), n_static)
                if self._run is not None and signature == self._signature[n_static:]:
                    return self._run(tensors)
            return self.function(*static, *varying) if plain is None else plain(*varying)

        return call

    def agrees(self, *args: Any) -> bool:
        """Whether the compiled form has the function's results, tried on copies of the arguments."""

        def run(*args: Any) -> Any:
            tensors = tree_leaves(args)
            if _signature(tensors) != self._signature:
                raise CompileError("a copy of a tensor that may change has another layout than the tensor")
            assert self._run is not None
            return self._run(tensors)

        gpu = [leaf.device for leaf in tree_leaves(args) if leaf.is_cuda][:1]
        mutable = tree_map(th.clone, args[:1])
        expected: list[Any] = []
        # On a GPU, the last two run as recorded (`Replayed`).
        for function in (self.function, run, *([run, run] if gpu else [])):
            tree_map(th.Tensor.copy_, mutable, args[:1])
            # Each with the same random numbers, and without using them up.
            with th.random.fork_rng(devices=gpu):
                result = function(*mutable, *args[1:])
            leaves = tree_leaves((result, tree_map(th.clone, mutable)))
            expected = expected or leaves
            if not all(_close(a, b) for a, b in zip(expected, leaves, strict=True)):
                return False
        return True

    def _compile(self, args: tuple[Any, ...], n_static: int) -> None:
        try:
            if self.n_traces >= MAX_TRACES:
                raise CompileError(keeps_changing("what it reads"))
            self.n_traces += 1
            self._signature = _signature(tree_leaves(args))
            with ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):
                self._run = self._trace_and_compile(args, n_static)
                if not self.agrees(*args):
                    raise CompileError(
                        "the compiled form does not reproduce the function's results, as where it draws random numbers "
                        "that are not torch's, or changes what it was given"
                    )
        except Exception as error:
            if _was_interrupted(error):
                self.reset()
                raise KeyboardInterrupt from error
            self.fail(in_one_line(error), error)
        except BaseException:
            self.reset()  # it has not been compared yet
            raise

    def fail(self, reason: str, cause: Exception | None = None) -> None:
        """Run the function uncompiled from now on; ``strict``: raise an error."""
        self.reset()
        known, self.failure = self.failure, reason
        if self.strict:
            raise compile_error(f"{self.name} could not be compiled ({reason})") from cause
        if known is None:
            warn_of_slowness(f"{self.name} runs uncompiled, and slower ({reason})")

    def _trace_and_compile(self, args: tuple[Any, ...], n_static: int) -> Callable[[list[th.Tensor]], Any]:
        """The compiled form, a function of the tensors in these arguments."""
        leaves, spec = tree_flatten(args)
        # Copies in place of repetitions: a trace takes each object for one argument.
        tensors = [leaf.clone() if any(leaf is each for each in leaves[:i]) else leaf for i, leaf in enumerate(leaves)]
        structure: PyTreeSpec | None = None
        #: For each leaf of the result its place among the inputs, the computed tensors, and the constants.
        places: list[int] = []
        constants: list[Any] = []

        def flat(*inputs: th.Tensor) -> list[Any]:
            nonlocal structure, places, constants
            results, structure = tree_flatten(self.function(*spec.unflatten(inputs)))
            # A tensor that is returned unchanged need not pass through the compiled form.
            unchanged = {id(tensor) for tensor in inputs}
            computed = [leaf for leaf in results if isinstance(leaf, th.Tensor) and id(leaf) not in unchanged]
            constants = [leaf for leaf in results if not isinstance(leaf, th.Tensor)]
            place = {id(leaf): i for i, leaf in enumerate([*inputs, *computed, *constants])}
            places = [place[id(leaf)] for leaf in results]
            return computed

        def plain() -> Any:
            with th.random.fork_rng(devices=[leaf.device for leaf in leaves if leaf.is_cuda][:1]):
                return self.function(*tree_map(th.clone, args[:1]), *args[1:])

        plain()  # what it makes at its first call, such as a table, is kept
        before = constants_of(self.reads)
        # Traced last, since what it keeps is then no real tensor.
        for run_once in (plain, lambda: trace(flat, tensors)):
            graph = run_once()
            try:
                after = constants_of(self.reads)
                changed = first_difference(before, after) if before != after else None
            except NotComparable as error:
                changed = str(error).split()[0]  # where it is
            if changed is not None:
                self.n_traces = MAX_TRACES  # it would again
                raise CompileError(f"it keeps something from call to call ({changed})")
        _check_tensors(graph, tensors)
        if len(graph.graph.nodes) > MAX_OPERATIONS:
            raise CompileError(f"its graph has {len(graph.graph.nodes)} operations, more than {MAX_OPERATIONS}")
        assert structure is not None
        run, unflatten = compile_graph(graph, tensors), structure.unflatten
        if any(tensor.is_cuda for tensor in tensors) and not _draws_on_cpu(graph):
            run = Replayed(run, n_static)

        def compiled(inputs: list[th.Tensor]) -> Any:
            leaves = [*inputs, *run(inputs.copy()), *constants]
            return unflatten([leaves[place] for place in places])

        return compiled


def warn_of_slowness(message: str) -> None:
    """Warn that something runs uncompiled."""
    warnings.warn(message, RuntimeWarning, stacklevel=6)


def obstacle(device: th.device) -> str | None:
    """Why nothing can be compiled on a device; ``None`` if it can."""
    if th.is_anomaly_enabled():
        return "anomaly mode is on: torch.autograd.set_detect_anomaly(False) ends it"
    if device.type == "cpu":
        try:
            find_compiler()
        except Exception as error:
            return in_one_line(error)
    return None


def in_one_line(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C, which all processes of a terminal get, has ended the C++ compiler."""
    while error is not None and getattr(error, "returncode", None) != -signal.SIGINT:
        error = error.__cause__ or error.__context__
    return error is not None


def _check_tensors(graph: th.fx.GraphModule, inputs: list[th.Tensor]) -> None:
    """:raises CompileError: a weight, or memory of an input, would be a constant"""
    memory = {tensor.untyped_storage().data_ptr() for tensor in inputs} - {0}
    for node in graph.graph.find_nodes(op="get_attr"):
        constant = getattr(graph, str(node.target))
        if not isinstance(constant, th.Tensor):
            continue
        if constant.requires_grad or constant.untyped_storage().data_ptr() in memory:
            what = "weight" if constant.requires_grad else "buffer or frozen weight"
            raise CompileError(f"it reads a {what} of shape {tuple(constant.shape)} not from its module (from a list?)")


def _draws_on_cpu(graph: th.fx.GraphModule) -> bool:
    """Whether a function for a GPU draws random numbers on the CPU, which a replay would not draw again."""
    draws = [node for node in graph.graph.nodes if th.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())]
    return any(leaf.device.type == "cpu" for node in draws for leaf in tree_leaves(node.meta["val"]))


def _close(a: Any, b: Any) -> bool:
    """Whether two results are the same up to rounding."""
    if not isinstance(a, th.Tensor):
        return bool(a is b or a == b)
    return a.shape == b.shape and th.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5, equal_nan=True)


def _layout(tensors: list[th.Tensor]) -> list[Any]:
    """What replacing the data of a tensor may change; faster than :func:`_signature`."""
    return [(tensor.stride(), tensor.dtype) for tensor in tensors]


def _signature(tensors: list[th.Tensor]) -> list[Any]:
    """The properties of its inputs that a compiled form assumes."""
    return [(tensor.shape, tensor.dtype, tensor.stride(), tensor.device) for tensor in tensors]


class Replayed:
    """A function of tensors on a GPU, recorded where it can be: launching small kernels takes longer than running them.

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

    def __call__(self, tensors: list[th.Tensor]) -> list[th.Tensor]:
        static, varying = tensors[: self._n_static], tensors[self._n_static :]
        addresses = [tensor.data_ptr() for tensor in static]
        if addresses != self._addresses:
            self._addresses, self._graph = addresses, None
            return self._function(tensors)
        if self._graph is None:
            device, inputs = tensors[0].device, [tensor.clone() for tensor in varying]
            # A replay does not read tensors on other devices, and a copy of an expanded tensor has other strides.
            expanded = [own.stride() != tensor.stride() for own, tensor in zip(inputs, varying, strict=True)]
            if any(expanded) or any(tensor.device != device for tensor in tensors):
                return self._function(tensors)
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


@dataclass(frozen=True)
class CompileStatus:
    """Whether a run is compiled: true or false, and as text with the reason."""

    compiles: bool
    reason: str
    #: Whether it should be and cannot, which gives a warning.
    unexpected: bool = False

    def __bool__(self) -> bool:
        return self.compiles

    def __str__(self) -> str:
        return f"{'yes' if self.compiles else 'no'}: {self.reason}"


class Compilation:
    """Decisions and compiled functions of a model; a saved model keeps the decision, and compiles again."""

    def __init__(self) -> None:
        #: Gradient steps that all calls of ``learn`` have planned since the model was made or loaded.
        self.n_planned = 0
        #: What was decided last.
        self.decision = CompileStatus(False, "learn has not been called yet")
        self.strict = False
        #: Why a function cannot be compiled, by its name.
        self.unable: dict[str, str] = {}
        #: The compiled form of each function, by its name.
        self.functions: dict[str, Compiled] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Copies compile for themselves.
        return vars(self) | {"functions": {}}

    def plan(self, requested: bool | str, n_steps: int, device: th.device, unsupported: str | None = None) -> None:
        """Decide for a call of ``learn`` that plans ``n_steps`` gradient steps: on the arguments alone, never on time.

        :param requested: the argument ``compile``
        :param unsupported: why the policy cannot be compiled on any machine; ``None``: it can
        """
        planned = self.n_planned + n_steps
        decision = self._decide(requested, planned, device, unsupported)
        before, self.decision, self.strict = self.decision, decision, requested is True
        if self.strict and not decision:
            raise compile_error(decision.reason)
        if decision.unexpected and decision != before:
            warn_of_slowness(f"training runs uncompiled, and slower: {decision.reason}")
        self.n_planned = planned
        for compiled in self.functions.values():
            compiled.n_traces = 0

    def _decide(self, requested: bool | str, n_steps: int, device: th.device, unsupported: str | None) -> CompileStatus:
        if requested is False:
            return CompileStatus(False, AS_ASKED)
        if unsupported is not None:
            return CompileStatus(False, unsupported)
        planned = f"{n_steps:,} gradient steps are planned"
        on_nvidia = device.type == "cuda" and not th.version.hip
        if device.type != "cpu" and not on_nvidia:
            return CompileStatus(False, f"nothing is compiled on {device}, where compiling has not been tested")
        if on_nvidia and requested == "auto":
            return CompileStatus(False, f"on {device}, only compile=True compiles")
        # A compiled model stays compiled, but not because its file says so.
        stays = self.decision and self.n_planned
        if requested == "auto" and not stays and n_steps < WORTH_COMPILING:
            start = f"compiling starts at {WORTH_COMPILING:,}; compile=True compiles all the same"
            return CompileStatus(False, f"{planned}; {start}")
        reason = obstacle(device)
        if reason is not None:
            return CompileStatus(False, f"nothing can be compiled here ({reason})", unexpected=True)
        return CompileStatus(True, "compile=True" if requested is True else planned)

    @property
    def notice(self) -> str | None:
        """The message before training: whether it is going to be compiled, and why; ``None``: nothing new."""
        if self.functions or self.decision.reason == AS_ASKED:
            return None
        if not self.decision:
            return f"training runs uncompiled: {self.decision.reason}"
        return f"compiling first ({self.decision.reason}): some 30 s, or a few if these networks were compiled before"

    def status(self, own_update: str | None = None) -> CompileStatus:
        """The decision, or why it could not be carried out; ``own_update`` is the name of a custom ``train``."""
        if not self.decision:
            return self.decision
        if own_update is not None and "the update" not in self.functions:
            return CompileStatus(False, f"{own_update} is a custom method, and is not compiled")
        failures = {name: compiled.failure for name, compiled in self.functions.items() if compiled.failure}
        reasons = [f"{name} runs uncompiled ({reason})" for name, reason in (failures | self.unable).items()]
        return CompileStatus(False, "; ".join(reasons)) if reasons else self.decision

    def compiled(
        self, name: str, function: Callable[..., Any], reads: Reads, unable: str | None = None
    ) -> Compiled | None:
        """The compiled form of a function; a new one if what it reads has changed; ``None``: it has to run uncompiled.

        :param function: another one of the same name that reads the same must do the same
        :param unable: why it cannot be compiled; ``None``: it can
        """
        if not self.decision:
            return None
        known_reason = self.unable.pop(name, None)
        if unable is not None:
            self.unable[name] = unable
            if self.strict:
                raise compile_error(unable)
            if known_reason is None:
                warn_of_slowness(f"{name} runs uncompiled, and slower: {unable}")
            return None
        # Kernels are compiled for a number of threads.
        autocast = [th.is_autocast_enabled(kind) and th.get_autocast_dtype(kind) for kind in ("cpu", "cuda")]
        products = (getattr(backend, "matmul", None) for backend in (th.backends.cuda, th.backends.mkldnn))
        precision = th.get_default_dtype(), [getattr(each, "fp32_precision", None) for each in products]
        settings = th.get_num_threads(), precision, autocast, self.strict
        everything = replace(reads, objects={"settings": settings, **reads.objects})
        try:
            constants: dict[str, Any] | str = constants_of(everything)
        except (NotComparable, RecursionError) as error:
            constants = str(error)
        known = self.functions.get(name)
        if known is not None and known.constants == constants:
            if self.strict and known.failure:
                known.fail(known.failure)
            return known
        compiled = Compiled(function, name, reads, self.strict, constants)
        self.functions[name] = compiled
        if isinstance(constants, str):
            compiled.fail(constants)
        elif known is not None:
            compiled.n_traces = known.n_traces
            if known.n_traces >= MAX_TRACES:
                compiled.failure = known.failure  # without a second warning
                compiled.fail(known.failure or keeps_changing(first_difference(known.constants, constants)))
        return compiled
