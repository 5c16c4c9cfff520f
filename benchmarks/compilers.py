"""What a call of a compiled graph costs, by way of compiling: the package's own, ``torch.compile`` and AOTInductor.

One act step and one minibatch of the update of CartPole-v1 are traced; each contender compiles the very same graph, and
is then called in turns with the others. What differs is what stands around the compiled loops. Calls are measured in
the processor's time, compiling in the clock's, from empty caches (headers to precompile included)::

    python benchmarks/compilers.py
"""

import argparse
import os
import platform
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from ppo_plus import PPO_Plus
from ppo_plus.compiling.torch_private import OPTIONS, compile_graph, inductor_options, prepared

#: A compiled graph, called with its tensors.
Call = Callable[[list[th.Tensor]], Any]
NO_GUARDS = th.compiler.skip_all_guards_unsafe


def traced(n_envs: int) -> dict[str, tuple[th.fx.GraphModule, list[th.Tensor]]]:
    """The graphs that training compiles, with the tensors that they were traced for."""
    graphs: list[tuple[th.fx.GraphModule, list[th.Tensor]]] = []

    def keep(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Any:
        graphs.append((graph, [tensor.detach().clone() for tensor in tensors]))
        return compile_graph(graph, tensors)

    with mock.patch("ppo_plus.compiling.compiled.compile_graph", keep):
        env = make_vec_env("CartPole-v1", n_envs)
        PPO_Plus("MlpPolicy", env, n_steps=128, batch_size=256, seed=0, device="cpu", compile=True).learn(256 * n_envs)
    act, update = sorted(graphs, key=lambda each: len(each[0].graph.nodes))
    return {"act step": act, "update minibatch": update}


def own(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Call:
    run = compile_graph(graph, tensors)
    return lambda given: run(given.copy())


def by_torch_compile(graph: th.fx.GraphModule, tensors: list[th.Tensor], **options: Any) -> Call:
    th.compiler.reset()
    run = th.compile(graph, fullgraph=True, dynamic=False, options=OPTIONS | options)
    run(*tensors)
    return lambda given: run(*given)


def by_aot_inductor(graph: th.fx.GraphModule, tensors: list[th.Tensor]) -> Call:
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    exported = th.export.export(graph, tuple(tensors))
    run = aoti_load_package(aoti_compile_and_package(exported, inductor_configs=OPTIONS))
    return lambda given: run(*given)


CONTENDERS: dict[str, Callable[..., Call]] = {
    "ppo_plus": own,
    "torch.compile": by_torch_compile,
    "torch.compile, no guards": partial(by_torch_compile, guard_filter_fn=NO_GUARDS),
    "torch.compile, no guards, C++ wrapper": partial(by_torch_compile, guard_filter_fn=NO_GUARDS, cpp_wrapper=True),
    "AOTInductor": by_aot_inductor,
}


def difference(graph: th.fx.GraphModule, call: Call, tensors: list[th.Tensor]) -> float:
    """How far the results of a contender are from the graph's own, what it changes in place included."""
    results = []
    for function in (lambda given: graph(*given), call):
        given = [tensor.clone() for tensor in tensors]
        th.manual_seed(0)
        results.append([*function(given), *given])
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(*results, strict=True) if a.numel())


def time_of(call: Call, tensors: list[th.Tensor], calls: int) -> float:
    """Microseconds of the processor's time per call, which tells more than the clock's on a busy machine."""
    start = process_time()
    for _ in range(calls):
        call(tensors)
    return (process_time() - start) / calls * 1e6


@th.no_grad()
def compare(name: str, graph: th.fx.GraphModule, tensors: list[th.Tensor], rounds: int, calls: int) -> None:
    """Compile by every contender, call them in turns, print."""
    compiled: dict[str, tuple[Call, float]] = {}
    print(f"\n{name}: {len(graph.graph.nodes)} operations, {len(tensors)} tensors")
    # As the package hands it to Inductor, so that all contenders compile the same loops.
    with inductor_options() as options, config.patch(options):
        graph = prepared(graph, tensors)
    for contender, make in CONTENDERS.items():
        start = perf_counter()
        try:
            with fresh_cache():
                call = make(graph, tensors)
            compiled[contender] = call, perf_counter() - start
            print(f"  {contender}: within {difference(graph, call, tensors):.1e} of the graph itself")
        except Exception as error:
            print(f"  {contender}: {type(error).__name__}: {str(error).strip().splitlines()[0][:100]}")
    times: dict[str, list[float]] = {contender: [] for contender in compiled}
    for _ in range(rounds):
        for contender, (call, _) in compiled.items():
            times[contender].append(time_of(call, tensors, calls))
    for contender, (_, seconds) in compiled.items():
        print(f"  {contender:<40} {median(times[contender]):8.1f} µs a call, {seconds:6.1f} s to compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=200)
    arguments = parser.parse_args()
    th.set_num_threads(1)
    print(f"torch {th.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
    for name, (graph, tensors) in traced(arguments.n_envs).items():
        compare(name, graph, tensors, arguments.rounds, arguments.calls)


if __name__ == "__main__":
    main()
