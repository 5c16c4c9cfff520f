"""Torch's private parts: every private name that the package uses, each behind a probe.

On a small network, the Python around ``torch.autograd.grad``, ``Optimizer.step`` or a compiled graph takes longer than
the work itself. What is called here in their place is torch's own, but promises less to stay as it is. So each direct
way is tried once, at its first use, on a small case beside the public way (:func:`direct`); where a name is missing, or
the answers differ, the public way is taken. Compiled graphs are tried by :class:`~ppo_plus.compiling.compiled.Compiled`
in every single case.
"""

import linecache
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import torch as th
from torch import nn, optim

from ppo_plus.compiling.graphs import SMALL_PRODUCTS, settle_scalars

Function = TypeVar("Function", bound=Callable[..., Any])

#: A compiled graph: it takes a list of tensors, which it empties, and returns one.
Run = Callable[[list[th.Tensor]], list[th.Tensor]]

#: Settings of Inductor.
OPTIONS: dict[str, Any] = {
    # The compiled form draws the numbers that eager mode would draw.
    "fallback_random": True,
    # By one exponential, exact to 1e-7 absolutely; the library's takes a fifth of the update of a small network.
    "cpp.use_decompose_tanh": True,
    # The caller compares shapes and layouts, and tries results before they are used. Each of these checks, of arguments
    # and of what library kernels return, makes a stream for its message, in half a microsecond.
    "size_asserts": False,
}


@cache
def _vectors(capability: str) -> list[Any]:
    """The vectors that torch itself uses, as Inductor knows them; empty: none.

    :param capability: how torch calls them
    """
    from torch._inductor import config, cpu_vec_isa

    if platform.machine() not in ("x86_64", "AMD64"):
        return [cpu_vec_isa.pick_vec_isa()]
    with config.patch("cpp.vec_isa_ok", True):
        # Asked whether they are there, AVX-512's still find out whether they know bfloat16.
        return [each for each in cpu_vec_isa.supported_vec_isa_list if str(each) == capability.lower() and each]


@contextmanager
def inductor_options() -> Iterator[dict[str, Any]]:
    """:data:`OPTIONS`, with the width of this processor's vectors, which Inductor takes as torch does.

    Inductor's cache of graphs leaves that width out of its keys, although it writes code for one: where processors
    share a cache, or the environment variable ``ATEN_CPU_CAPABILITY`` changes, that code would compute something else.

    Left to itself, Inductor compiles and loads a program for each of up to six extensions of an x86 processor, most of
    them for arithmetic of bytes and half precision: as long as it takes to compile the networks of CartPole, and in
    every further process more than a third of what is left when these come from its cache.
    """
    try:
        from torch._inductor import cpu_vec_isa

        find = cpu_vec_isa.valid_vec_isa_list
        found = _vectors(th.backends.cpu.get_cpu_capability())
        width = found[0].bit_width() if found else 0
    except (ImportError, AttributeError):
        yield OPTIONS
        return
    cpu_vec_isa.valid_vec_isa_list = lambda: found  # type: ignore[assignment]
    try:
        yield OPTIONS | {"cpp.simdlen": width, "cpp.vec_isa_ok": True}
    finally:
        cpu_vec_isa.valid_vec_isa_list = find


#: What settles which way is taken, for each function; not while something is traced.
_CHOICES: list[Callable[[], Any]] = []


def direct(public: Callable[..., Any], case: Callable[[Callable[..., Any]], Any]) -> Callable[[Function], Function]:
    """Decorate a direct way to do what a public function does: it is used if it gives the same bits on a small case.

    :param public: the public function
    :param case: calls the function that it is given on a small case and returns a tensor, or a sequence of tensors and
        ``None``
    """

    def decorate(function: Function) -> Function:
        @cache
        def chosen() -> Callable[..., Any]:
            return function if _answer_alike(function, public, case) else public

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return chosen()(*args, **kwargs)

        call.chosen = chosen  # type: ignore[attr-defined]
        _CHOICES.append(chosen)
        return call  # type: ignore[return-value]

    return decorate


def _answer_alike(
    function: Callable[..., Any], public: Callable[..., Any], case: Callable[[Callable[..., Any]], Any]
) -> bool:
    try:
        one, other = (case(each) for each in (function, public))
    except Exception:  # whatever a private function may raise
        return False
    one, other = ([each] if isinstance(each, th.Tensor) else list(each) for each in (one, other))
    return len(one) == len(other) and all(
        a is b if a is None or b is None else a.dtype == b.dtype and th.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


# --- gradients -----------------------------------------------------------------------------------------------------


def _doubled_without_graph(decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[th.Tensor]:
    weight = th.ones(2, requires_grad=True)
    doubled = decorate(lambda x: 2 * x)(weight)
    return [doubled, th.tensor(doubled.requires_grad), th.tensor(th.is_grad_enabled())]


@direct(lambda function: th.no_grad()(function), _doubled_without_graph)
def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.no_grad()(function)``, whose own cost per call is a tenth of acting on a small network."""
    set_grad_enabled = th._C._set_grad_enabled

    def call(*args: Any) -> Any:
        before = th.is_grad_enabled()
        set_grad_enabled(False)
        try:
            return function(*args)
        finally:
            set_grad_enabled(before)

    return call


def _public_gradient(loss: th.Tensor, params: list[th.Tensor]) -> tuple[th.Tensor | None, ...]:
    return th.autograd.grad(loss, params, allow_unused=True)


def _small_gradient(gradient: Callable[..., Any]) -> Sequence[th.Tensor | None]:
    used, unused = th.arange(3.0, requires_grad=True), th.ones(2, requires_grad=True)
    grads: Sequence[th.Tensor | None] = gradient(used.exp().sum() + (2 * used[0]).tanh(), [used, unused])
    return grads


@direct(_public_gradient, _small_gradient)
def gradient(loss: th.Tensor, params: list[th.Tensor]) -> tuple[th.Tensor | None, ...]:
    """The gradient of a loss, as by ``torch.autograd.grad(loss, params, allow_unused=True)``; its graph is freed.

    :param loss: one number
    :param params: tensors that it may depend on
    :return: a tensor for each of them; ``None`` for those that it does not depend on
    """
    if loss.dim():
        return _public_gradient(loss, params)
    grads: tuple[th.Tensor | None, ...] = _engine()(
        (loss,), (th.ones_like(loss),), False, False, tuple(params), allow_unreachable=True, accumulate_grad=False
    )
    return grads


@cache
def _engine() -> Any:
    from torch.autograd import Variable

    return Variable._execution_engine.run_backward


@direct(
    lambda tensors: th.cat([tensor.reshape(-1) for tensor in tensors]),
    lambda flatten: flatten([th.ones(2, 3).t(), th.zeros(())]),
)
def flatten(tensors: Sequence[th.Tensor]) -> th.Tensor:
    """Tensors one after another as one vector; several times cheaper than reshaping one by one."""
    return _flatten_dense()(tensors)  # type: ignore[no-any-return]


@cache
def _flatten_dense() -> Any:
    from torch._utils import _flatten_dense_tensors

    return _flatten_dense_tensors


# --- optimizers ----------------------------------------------------------------------------------------------------


def optimizer_step(
    optimizer: optim.Optimizer,
    params: list[nn.Parameter],
    grads: Sequence[th.Tensor | None],
    learning_rate: th.Tensor,
    applied: th.Tensor,
) -> None:
    """``optimizer.step()`` where ``applied``; directly by the fused kernel for an Adam on one parameter.

    With the kernel, a CUDA device decides by itself whether the step is applied, and the host never synchronizes.
    Otherwise ``p.grad`` is set to what was applied.

    :param optimizer: a torch optimizer
    :param params: all its parameters
    :param grads: their gradients
    :param learning_rate: of all its groups, 0-d, or one number for each
    :param applied: whether to step, 0-d
    """
    by_kernel = _is_plain_adam(optimizer, params) and bool(optimizer.state.get(params[0]))
    waits = not by_kernel or applied.device.type != "cuda"
    if waits:
        if not applied:
            return
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad
    if not by_kernel:
        for group, rate in zip(optimizer.param_groups, learning_rate.expand(len(optimizer.param_groups)), strict=True):
            group["lr"] = float(rate)
        optimizer.step()
        return
    if waits:
        adam_step(optimizer, params[0], float(learning_rate))
    else:
        # `found_inf` is gradient scaling's name for what a step is not applied for.
        _kernel_step(optimizer, params[0], grads[0], learning_rate, applied, applied.logical_not().float())


def _adam_case(step: Callable[..., None]) -> list[th.Tensor]:
    p = nn.Parameter(th.ones(3))
    optimizer = optim.AdamW([p], lr=0.1, weight_decay=0.1, fused=True)
    for lr in (0.1, 0.2):
        p.grad = th.arange(3.0)
        if optimizer.state:
            step(optimizer, p, lr)
        else:
            optimizer.step()
    return [p.detach(), *(th.as_tensor(value) for value in optimizer.state[p].values())]


def _public_adam_step(optimizer: optim.Optimizer, p: nn.Parameter, learning_rate: float) -> None:
    optimizer.param_groups[0]["lr"] = learning_rate
    optimizer.step()


@direct(_public_adam_step, _adam_case)
def adam_step(optimizer: optim.Optimizer, p: nn.Parameter, learning_rate: float) -> None:
    """A step of Adam or AdamW on its only parameter, which has a gradient and a state.

    :param optimizer: with ``fused=True``
    :param p: its parameter
    :param learning_rate: of the step
    """
    _kernel_step(optimizer, p, p.grad, learning_rate, 1, None)


def _kernel_step(
    optimizer: optim.Optimizer, p: nn.Parameter, grad: Any, learning_rate: Any, n_steps: Any, found_inf: Any
) -> None:
    group, state = optimizer.param_groups[0], optimizer.state[p]
    kernel: Any = th._fused_adamw_ if group["decoupled_weight_decay"] else th._fused_adam_
    state["step"].add_(n_steps)
    kernel(
        [p.data],
        [grad],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        lr=learning_rate,
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        found_inf=found_inf,
    )


def _is_plain_adam(optimizer: optim.Optimizer, params: list[nn.Parameter]) -> bool:
    """Whether the kernel alone does all that ``step`` does."""
    if type(optimizer) not in (optim.Adam, optim.AdamW) or len(params) != 1 or len(optimizer.param_groups) != 1:
        return False
    if has_step_hooks(optimizer):
        return False
    group = optimizer.param_groups[0]
    return bool(group["fused"] and not group["amsgrad"])


@cache
def _hooks_of_all_optimizers() -> tuple[Any, ...]:
    """The tables; where they cannot be seen there may be some."""
    try:
        from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
    except ImportError:
        return (True,)
    return _global_optimizer_pre_hooks, _global_optimizer_post_hooks


def has_step_hooks(optimizer: optim.Optimizer) -> bool:
    """Whether something is called before or after the steps of an optimizer, or in their place."""
    own = (getattr(optimizer, f"_optimizer_step_{when}_hooks", True) for when in ("pre", "post"))
    return "step" in vars(optimizer) or any(own) or any(_hooks_of_all_optimizers())


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let torch's optimizers compute with tensors throughout, as they do under ``torch.compile``."""
    before = getattr(th.compiler, "_is_compiling_flag", False)
    th.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        th.compiler._is_compiling_flag = before


# --- modules -------------------------------------------------------------------------------------------------------


@contextmanager
def swapped(module: nn.Module, own: Sequence[th.Tensor], others: Sequence[th.Tensor]) -> Iterator[None]:
    """Let a module compute with other parameters and buffers for a while.

    A buffer that the module replaces meanwhile, instead of changing it in place, is written into its stand-in.

    :param module: the module
    :param own: parameters and buffers of it; one that it has under several names is replaced under all of them
    :param others: what stands in for each
    """
    replacements = {id(tensor): other for tensor, other in zip(own, others, strict=True)}
    stores: list[dict[str, Any]] = [store for part in module.modules() for store in (part._parameters, part._buffers)]
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


#: Tables of hooks of a module, and of a tensor; missing ones are empty.
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def after_accumulation(weights: Sequence[nn.Parameter], grads: Sequence[th.Tensor | None]) -> list[th.Tensor | None]:
    """What ``loss.backward()`` would leave as ``p.grad``: gradients behind the hooks of
    ``register_post_accumulate_grad_hook``, which ``torch.autograd.grad`` passes by.

    :param weights: what hooks may be registered on
    :param grads: their gradients
    """
    return [
        _after_hooks(p, grad) if getattr(p, "_post_accumulate_grad_hooks", None) and grad is not None else grad
        for p, grad in zip(weights, grads, strict=True)
    ]


def _after_hooks(p: nn.Parameter, grad: th.Tensor) -> th.Tensor | None:
    p.grad = grad
    hooks: Any = p._post_accumulate_grad_hooks
    for hook in list(hooks.values()):
        hook(p)
    return p.grad


def are_hooks_on_all_modules() -> bool:
    """Whether something is called with every module's inputs, outputs or gradients."""
    from torch.nn.modules import module

    return any(getattr(module, f"_global{name}", None) for name in MODULE_HOOKS)


def buffer_tables(module: nn.Module) -> list[dict[str, th.Tensor | None]]:
    """Where the parts of a module keep their buffers: what is replaced in a module is replaced in its table."""
    return [part._buffers for part in module.modules()]


def still_in_place(module: nn.Module) -> Callable[[], bool]:
    """A function that tells whether a module still has the parts, parameters and buffers that it has now, by identity,
    and the attributes and forward hooks.

    What changes inside an attribute is not seen. It takes some twenty microseconds for a small network (its tables have
    left the processor's cache by then), where a walk through its modules takes fifty.
    """
    parts = list(module.modules())
    tables: list[dict[str, Any]] = [
        table for part in parts for table in (part._modules, part._parameters, part._buffers)
    ]
    held = _ids(tables), [each for table in tables for each in table.values()]  # no other object gets their address
    readers = [_reader(part) for part in parts]
    hooks: list[Any] = [table for part in parts for table in (part._forward_hooks, part._forward_pre_hooks)]
    before = [read() for read in readers], list(map(dict, hooks))

    def same() -> bool:
        try:
            return held[0] == _ids(tables) and before[0] == [read() for read in readers] and before[1] == hooks
        except (LookupError, RuntimeError, ValueError):  # deleted, or tensors and arrays, which have no truth value
            return False

    return same


#: What every module has, and nobody changes but torch.
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def _reader(part: nn.Module) -> Callable[[], Any]:
    """A function that returns the attributes of a module, but for those of which its class says that what it computes
    does not depend on them, and how many it has."""
    attributes = vars(part)
    read = itemgetter(*(attributes.keys() - _OF_EVERY_MODULE - getattr(type(part), "not_constant", frozenset())))
    return lambda: (len(attributes), read(attributes))


def _ids(tables: list[dict[str, Any]]) -> list[int]:
    return list(map(id, chain.from_iterable(map(dict.values, tables))))


# --- compiling -----------------------------------------------------------------------------------------------------


#: Torch traces and compiles one function at a time: it exchanges parts of itself for a while.
ONE_AT_A_TIME = threading.RLock()


def find_compiler() -> None:
    """:raises Exception: Inductor finds no C++ compiler"""
    from torch._inductor.cpp_builder import get_cpp_compiler

    get_cpp_compiler()


def trace(function: Callable[..., list[th.Tensor]], tensors: list[th.Tensor]) -> th.fx.GraphModule:
    """The operations that a function makes of these tensors.

    Tensors that it reads besides its arguments, such as a network's own table, become constants.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    for settle in _CHOICES:
        settle()
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)


@contextmanager
def forgetting_sources() -> Iterator[None]:
    """Let torch forget the source text of the graphs that are made within it; it keeps all for good, for tracebacks."""
    try:
        from torch.fx.graph_module import _loader

        sources = _loader.eval_cache
    except (ImportError, AttributeError):
        sources = {}
    before = set(sources)
    try:
        yield
    finally:
        for name in sources.keys() - before:
            del sources[name]
            linecache.cache.pop(name, None)


def compile_directly(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Run:
    """The graph compiled by Inductor for tensors of these shapes, dtypes, layouts and devices; it may change them in
    place.

    The compiled form checks none of that: given others, it may read and write any memory. ``torch.compile`` puts
    several layers of Python around it, which a graph without gradients and without aliases among its arguments does
    not need: they cost as much as a small network itself.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    on_cpu = _on_cpu(tensors)
    # Inductor keeps on disk only what it compiled for a mode with shapes.
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
    with (
        inductor_options() as options,
        config.patch(options | {"cpp_wrapper": on_cpu}),
        th.no_grad(),
        tracing(TracingContext(mode)),
    ):
        output: Any = compile_fx_inner(prepared(graph, tensors), inputs, cpp_wrapper=on_cpu, is_inference=True)
    return output.current_callable  # type: ignore[no-any-return]


def compile_publicly(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Run:
    """:func:`compile_directly` through ``torch.compile``, whose results cost about twice as much per call
    (``benchmarks/compilers.py``)."""
    graph = prepared(graph, tensors)
    # The caller compares what guards would.
    skip = getattr(th.compiler, "skip_all_guards_unsafe", None)
    filtered = {} if skip is None else {"guard_filter_fn": skip}
    with inductor_options() as options:
        run = th.compile(graph, fullgraph=True, dynamic=False, options=options | filtered)

    def call(given: list[th.Tensor]) -> list[th.Tensor]:
        # It compiles at its first call, and refuses to run while another thread traces.
        with ONE_AT_A_TIME, inductor_options():
            results = list(run(*given))
        given.clear()
        return results

    return call


#: Ways to compile a graph, the fastest result first.
COMPILERS = (compile_directly, compile_publicly)


def prepared(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> th.fx.GraphModule:
    """The graph in Inductor's own set of operations, none of which changes a tensor but, at the end, an argument."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    # The table depends on Inductor's options.
    with inductor_options() as options, config.patch(options), th.no_grad():
        decompositions = {**select_decomp_table(), **(SMALL_PRODUCTS if _on_cpu(tensors) else {})}
        functional = functionalize(graph, remove="mutations")
        graph = make_fx(functional, decompositions, "fake", _allow_non_fake_inputs=True)(*tensors)
    settle_scalars(graph)
    for node in reversed(graph.graph.nodes):
        # The optimizer's marks for the profiler, which torch.compile refuses.
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _on_cpu(tensors: list[th.Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)
