"""The compiled form of a function does what the function does, or is not used."""

import sys
import time
import warnings

import pytest
import torch as th

from ppo_plus.compiling.compiled import Compiled, CompileError, _close
from ppo_plus.compiling.constants import Reads

#: Compiling takes seconds: everything that can be said of one compiled function is said of this one.


def step(state, inputs):
    """Changes its first argument in place, draws random numbers, and returns a nesting."""
    noise = th.randn(3)
    state["total"].add_(inputs["x"].sum())
    return {"noisy": inputs["x"] + noise, "parts": (inputs["x"] * state["total"], None)}


def arguments(n=3):
    return {"total": th.zeros(())}, {"x": th.arange(float(n))}


@pytest.fixture(scope="module")
def compiled():
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


@pytest.fixture(params=["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def form(request):
    """What is checked of tracing alone is checked with Inductor, too, which takes seconds for each function."""
    if request.param == "traced":
        request.getfixturevalue("traced")


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
def test_constants_among_the_results_stay_what_they_are():
    names = ("a", "b")
    compiled = Compiled(lambda x: (x + 1, {"names": names, "n": 3, "none": None}), "a nesting", strict=True)
    for value in (1.0, 2.0):
        made, constants = compiled.bind()(th.tensor(value))
        assert made == value + 1 and constants == {"names": names, "n": 3, "none": None}


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


def test_strict_raises_instead():
    with pytest.raises(CompileError, match="compile=True, but a function could not be compiled"):
        Compiled(reads_a_value, "a function", strict=True).bind()(th.ones(2))


def test_what_keeps_something_from_call_to_call_runs_as_it_is():
    calls = []

    def counted(x):
        calls.append(1)
        return len(calls) * x

    compiled = Compiled(counted, "counting", reads=Reads(objects={"calls": calls}))
    with pytest.warns(RuntimeWarning, match=r"counting runs uncompiled.*it keeps something from call to call \(calls"):
        first = compiled.bind()(th.ones(1))
    assert compiled.bind()(th.ones(1)) == first + 1


def test_a_large_graph_is_not_compiled(monkeypatch):
    monkeypatch.setattr("ppo_plus.compiling.compiled.MAX_OPERATIONS", 2)
    with pytest.warns(RuntimeWarning, match="operations, more than 2"):
        assert Compiled(lambda x: x + 1 - 2 + 3, "adding").bind()(th.ones(1)).item() == 3.0


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


@pytest.mark.usefixtures("form")
def test_inputs_of_another_dtype_or_layout_run_uncompiled():
    compiled = Compiled(lambda x: x.float() * 2 + 1, "an affine map", strict=True)
    call = compiled.bind()
    assert call(th.ones(2, 3)).tolist() == [[3.0] * 3] * 2
    assert call(th.ones(2, 3, dtype=th.int64)).tolist() == [[3.0] * 3] * 2
    transposed = th.arange(6.0).reshape(3, 2).T
    assert th.equal(call(transposed), transposed * 2 + 1)


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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_silence_on_a_terminal_is_explained(monkeypatch, capsys, is_terminal):
    monkeypatch.setattr("ppo_plus.compiling.compiled.PATIENCE", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    compiled = Compiled(step, "a step")
    for seconds in (0.0, 0.3):
        with compiled._timed():
            time.sleep(seconds)
    message = "compiling a step: some 20 s the first time on a machine\n"
    assert capsys.readouterr().err == (message if is_terminal else "")
    assert 0.3 <= compiled.seconds < 1
