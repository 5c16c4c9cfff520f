"""The compiled form of a function does what the function does, or is not used; whether training is compiled, and when a
form is made again."""

import copy
import subprocess
import warnings
from types import SimpleNamespace

import pytest
import torch as th

from ppo_plus import CompileError
from ppo_plus.compiling.compiled import MAX_TRACES, WORTH_COMPILING, Compilation, Compiled, CompileStatus, _close
from ppo_plus.compiling.constants import Reads

CPU = th.device("cpu")


def step(state, inputs):
    """Changes its first argument in place, draws random numbers, and returns a nesting."""
    noise = th.randn(3)
    state["total"].add_(inputs["x"].sum())
    return {"noisy": inputs["x"] + noise, "parts": (inputs["x"] * state["total"], None)}


def arguments(n=3):
    return {"total": th.zeros(())}, {"x": th.arange(float(n))}


@pytest.fixture(params=["traced", pytest.param("compiled", marks=pytest.mark.exhaustive)])
def form(request):
    """What is checked of tracing alone is checked with Inductor, too, which takes seconds for each function."""
    if request.param == "traced":
        request.getfixturevalue("traced")


@pytest.fixture
def compiled(form):
    compiled = Compiled(step, "a step", strict=True)
    state, inputs = arguments()
    compiled.bind(state)(inputs)
    assert compiled._run is not None
    return compiled


def test_same_outputs_changes_and_random_numbers(compiled):
    (state, inputs), (own_state, _) = arguments(), arguments()
    th.manual_seed(0)
    results = compiled.bind(state)(inputs)
    th.manual_seed(0)
    eager = step(own_state, inputs)
    assert th.equal(results["noisy"], eager["noisy"])
    assert th.equal(results["parts"][0], eager["parts"][0]) and results["parts"][1] is None
    assert state["total"] == own_state["total"] == 3.0


@pytest.mark.usefixtures("form")
def test_what_comes_back_as_it_was_given_is_the_same_tensor():
    compiled = Compiled(lambda x, y: {"given": [y, x], 3: (x + y, ()), None: None}, "a nesting", strict=True)
    x, y = th.ones(2), th.zeros(2)
    call = compiled.bind(x)
    for _ in range(2):
        result = call(y)
        assert list(result) == ["given", 3, None] and isinstance(result["given"], list)
        assert result["given"][0] is y and result["given"][1] is x and result[None] is None
        assert th.equal(result[3][0], th.ones(2)) and result[3][1] == ()


@pytest.mark.usefixtures("form")
def test_a_binding_notices_a_new_form_made_for_another():
    compiled = Compiled(lambda x, y: x.sum() * y, "a product", strict=True)
    short, y = compiled.bind(th.ones(3)), th.ones(2)
    for call, total in ((short, 3), (compiled.bind(th.ones(5)), 5), (short, 3)):
        assert th.equal(call(y), total * y) and compiled._run is not None


def test_arguments_without_storage_run_uncompiled():
    compiled = Compiled(lambda table, x: th.sparse.mm(table, x), "a product")
    table, x = th.eye(3).to_sparse(), th.ones(3, 2)
    with pytest.warns(RuntimeWarning, match="a product runs uncompiled"):
        assert th.equal(compiled.bind(table)(x), x)
    assert th.equal(compiled.bind(table)(x), x)


@pytest.mark.usefixtures("form")
def test_mutable_arguments_with_odd_layouts_run_uncompiled():
    compiled = Compiled(lambda table: table.add_(1.0), "a table")
    part = th.zeros(10, 100)[:, :3]
    with pytest.warns(RuntimeWarning, match="a table runs uncompiled.*another layout"):
        compiled.bind(part)()
    assert compiled._run is None and th.equal(part, th.ones(10, 3))


@pytest.mark.parametrize(
    "other", [th.zeros(1), th.zeros(3, dtype=th.int64), th.zeros(6)[::2]], ids=["shape", "dtype", "layout"]
)
def test_other_inputs_run_the_function_itself(compiled, other, monkeypatch):
    calls = []
    monkeypatch.setattr(compiled, "function", lambda *args: calls.append(args))
    state, _ = arguments()
    compiled.bind(state)({"x": other})
    assert len(calls) == 1
    compiled.bind(state)({"x": th.zeros(3)})
    assert len(calls) == 1


def test_agrees_notices_a_changed_function_and_has_no_effects(compiled, monkeypatch):
    state, inputs = arguments()
    generator = th.get_rng_state()
    assert compiled.agrees(state, inputs)
    monkeypatch.setattr(compiled, "function", lambda state, inputs: step(state, {"x": 2 * inputs["x"]}))
    assert not compiled.agrees(state, inputs)
    assert state["total"] == 0.0
    assert th.equal(th.get_rng_state(), generator)


def test_nothing_is_asked_of_a_gpu(compiled, monkeypatch):
    """Which would start CUDA in a process that trains on the CPU."""
    asked = []
    monkeypatch.setattr(th.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(th.cuda, "get_rng_state", lambda *args: asked.append(args) or th.zeros(0))
    monkeypatch.setattr(th.cuda, "set_rng_state", lambda *args: None)
    assert compiled.agrees(*arguments()) and not asked


def reads_a_value(x):
    return x + 1 if x.sum() > 0 else x


def test_what_cannot_be_traced_runs_as_it_is_with_one_warning():
    compiled = Compiled(reads_a_value, "a function that reads a value")
    call = compiled.bind()
    with pytest.warns(RuntimeWarning, match="a function that reads a value runs uncompiled"):
        assert call(th.ones(2)).tolist() == [2.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(-th.ones(2)).tolist() == [-1.0, -1.0]


def test_what_keeps_something_from_call_to_call_runs_as_it_is():
    calls = []

    def counted(x):
        calls.append(1)
        return len(calls) * x

    compiled = Compiled(counted, "counting", reads=Reads(objects={"calls": calls}))
    with pytest.warns(RuntimeWarning, match=r"counting runs uncompiled.*it keeps something from call to call \(calls"):
        first = compiled.bind()(th.ones(1))
    assert compiled.bind()(th.ones(1)) == first + 1


def test_what_makes_something_once_is_compiled():
    tables = {}

    def shifted(x):
        table = tables.setdefault(len(x), th.arange(float(len(x))))
        return x + table

    call = Compiled(shifted, "a table", reads=Reads(objects={"tables": tables}), strict=True).bind()
    assert call(th.zeros(3)).tolist() == [0.0, 1.0, 2.0] and tables[3].numpy().sum() == 3.0


def test_what_is_kept_of_a_call_is_no_tensor_of_a_trace():
    kept = []

    def keeping(x):
        kept[:] = [2 * x]
        return kept[0]

    compiled = Compiled(keeping, "keeping", reads=Reads(objects={"kept": kept}))
    with pytest.warns(RuntimeWarning, match="it keeps something from call to call"):
        compiled.bind()(th.ones(1))
    assert kept[0].numpy() == 2.0


def wrong(graph, tensors):
    return lambda given: [given[0] + 1e-2]


def test_a_form_that_computes_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr("ppo_plus.compiling.compiled.compile_graph", wrong)
    with pytest.warns(RuntimeWarning, match="does not reproduce"):
        assert Compiled(lambda x: x * 1, "identity").bind()(th.ones(1)).item() == 1.0


@pytest.mark.usefixtures("form")
def test_arguments_that_were_one_tensor_may_be_two_later():
    call = Compiled(lambda x, y: x + 2 * y, "a sum", strict=True).bind()
    once = th.ones(3)
    assert call(once, once).tolist() == [3.0] * 3
    assert call(once, th.zeros(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_results_are_compared_to_their_very_end(size):
    a = th.arange(size, dtype=th.float32)
    assert _close(a, a.clone())
    if size:
        different = a.clone()
        different[-1] += 1 + 0.01 * size
        assert not _close(a, different)
    assert not _close(a, th.zeros(size + 1))


def test_an_alias_of_an_argument_raises_an_error():
    """As a constant, it would stay what it was, or be changed beside the argument."""
    buffer = th.ones(3)
    alias = [buffer]
    compiled = Compiled(lambda given, x: given[0] + alias[0] * x, "it", strict=True)
    with pytest.raises(CompileError, match=r"reads a buffer or frozen weight of shape \(3,\) not from its module"):
        compiled.bind([buffer])(th.ones(3))


# --- whether training is compiled: nothing is compiled here, since a form compiles when it is first called ---------


@pytest.fixture
def get():
    """The compiled form of a function that reads an attribute of an object, and the object."""
    compilation, owner = Compilation(), SimpleNamespace(scale=2.0)
    compilation.decision = CompileStatus(True, "compile=True")

    def scaled(x):
        return owner.scale * x

    def current():
        return compilation.compiled("scaled", scaled, Reads(objects={"reads": scaled}))

    return current, owner


def test_a_form_is_kept_while_what_it_reads_is_the_same(get):
    current, owner = get
    form = current()
    assert current() is form
    owner.scale = 1.0 + 1.0
    assert current() is form


def test_a_new_form_is_made_after_a_constant_has_changed(get):
    current, owner = get
    form = current()
    owner.scale = 3.0
    assert current() is not form
    # Also threads, which kernels are made for.
    form, n_threads = current(), th.get_num_threads()
    th.set_num_threads(n_threads + 1)
    try:
        assert current() is not form
    finally:
        th.set_num_threads(n_threads)


def test_constants_that_keep_changing_run_uncompiled(get):
    current, owner = get
    for i in range(MAX_TRACES + 1):
        owner.scale = float(i)
        form = current()
        form.n_traces += form.failure is None
    assert "reads changed" in form.failure and "customizing.md" in form.failure


def test_what_is_not_compiled_is_said_and_copies_start_again(get):
    compilation = Compilation()
    assert compilation.compiled("scaled", abs, Reads()) is None
    compilation.decision = CompileStatus(True, "compile=True")
    assert compilation.compiled("scaled", abs, Reads(), "it is old") is None
    assert not compilation.status() and "it is old" in str(compilation.status())
    assert compilation.compiled("scaled", abs, Reads()) is not None and compilation.status()
    assert copy.deepcopy(compilation).functions == {} and len(compilation.functions) == 1
    assert "Mine.train is a custom method" in str(compilation.status("Mine.train"))


@pytest.fixture
def obstacle(monkeypatch):
    """Sets why nothing can be compiled on this machine."""
    return lambda reason: monkeypatch.setattr("ppo_plus.compiling.compiled.obstacle", lambda device: reason)


def test_auto_compiles_where_it_saves_time(obstacle):
    obstacle(None)
    compilation = Compilation()
    compilation.plan("auto", WORTH_COMPILING - 1, CPU)
    assert not compilation.decision and f"compiling starts at {WORTH_COMPILING:,}" in str(compilation.decision)
    compilation.plan("auto", 1, CPU)
    assert compilation.decision and compilation.n_planned == WORTH_COMPILING and compilation.notice
    compilation.plan("auto", WORTH_COMPILING, th.device("cuda"))
    assert not compilation.decision and "on cuda, only compile=True compiles" in compilation.notice
    compilation.plan(True, 1, th.device("cuda"))
    assert compilation.decision
    with pytest.raises(CompileError, match="compile=True, but nothing is compiled on mps"):
        compilation.plan(True, WORTH_COMPILING, th.device("mps"))
    compilation.plan(False, WORTH_COMPILING, CPU)
    assert not compilation.decision and compilation.notice is None


def test_without_a_compiler_auto_warns_once_and_true_raises(obstacle):
    obstacle("no compiler")
    compilation = Compilation()
    with pytest.warns(RuntimeWarning, match=r"training runs uncompiled, and slower: nothing .*\(no compiler\)"):
        compilation.plan("auto", WORTH_COMPILING, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compilation.plan("auto", WORTH_COMPILING, CPU)
    with pytest.raises(CompileError, match=r"nothing can be compiled here \(no compiler\): use compile=False"):
        compilation.plan(True, 1, CPU)
    assert compilation.n_planned == 2 * WORTH_COMPILING


def test_a_policy_that_cannot_be_compiled_is_run_or_raises(obstacle):
    obstacle(None)
    compilation = Compilation()
    compilation.plan("auto", WORTH_COMPILING, CPU, unsupported="it overrides methods")
    assert str(compilation.decision) == "no: it overrides methods"
    with pytest.raises(CompileError, match="it overrides methods"):
        compilation.plan(True, 1, CPU, unsupported="it overrides methods")


def test_the_status_is_right_after_an_error(obstacle):
    obstacle("no compiler")
    compilation = Compilation()
    compilation.decision = CompileStatus(True, "compile=True")
    with pytest.raises(CompileError):
        compilation.plan(True, 1, CPU)
    assert not compilation.status() and "no compiler" in str(compilation.status())


def test_a_function_that_failed_raises_again_and_is_said():
    compilation = Compilation()
    compilation.decision, compilation.strict = CompileStatus(True, "compile=True"), True
    with pytest.raises(CompileError, match="it is odd"):
        compilation.compiled("odd", abs, Reads()).fail("it is odd")
    assert not compilation.status() and "odd runs uncompiled (it is odd)" in str(compilation.status())
    with pytest.raises(CompileError, match="it is odd"):
        compilation.compiled("odd", abs, Reads())


def test_a_compiler_that_ctrl_c_ends_interrupts(monkeypatch):
    """A terminal sends it to all processes; that of the update waits for the end of the minibatch."""

    def compile_graph(*_):
        try:
            subprocess.run(["sh", "-c", "kill -INT $$"], check=True)
        except subprocess.CalledProcessError as error:
            raise RuntimeError("C++ compile error") from error

    monkeypatch.setattr("ppo_plus.compiling.compiled.compile_graph", compile_graph)
    compiled = Compiled(th.add, "the sum")
    with pytest.raises(KeyboardInterrupt), warnings.catch_warnings(action="error"):
        compiled.bind(th.ones(2))(th.ones(2))
    assert compiled.failure is None and not compiled._run
