"""Whether training is compiled, and when a compiled form is made again.

Nothing is compiled here: a form compiles when it is first called.
"""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch as th

from ppo_plus.compiling.compilation import WORTH_COMPILING, Compilation, CompileStatus
from ppo_plus.compiling.compiled import MAX_TRACES, CompileError
from ppo_plus.compiling.constants import Reads

CPU = th.device("cpu")


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


def test_a_new_form_is_made_for_another_precision(get, monkeypatch):
    current, _ = get
    forms = [current()]
    for device in ("cpu", "cuda"):
        for dtype in (th.bfloat16, th.float16):
            monkeypatch.setattr(th, "is_autocast_enabled", lambda asked, device=device: asked == device)
            monkeypatch.setattr(th, "get_autocast_dtype", lambda asked, dtype=dtype: dtype)
            forms.append(current())
            assert current() is forms[-1]
    monkeypatch.undo()
    before = th.get_float32_matmul_precision()
    th.set_float32_matmul_precision("high" if before == "highest" else "highest")
    try:
        forms.append(current())
    finally:
        th.set_float32_matmul_precision(before)
    assert len({*map(id, forms)}) == 6


def test_constants_that_keep_changing_run_uncompiled(get):
    current, owner = get
    for i in range(MAX_TRACES + 1):
        owner.scale = float(i)
        form = current()
        form.n_traces += form.failure is None
    assert (
        "scale changed" in form.failure and "buffer of the policy" in form.failure and "customizing.md" in form.failure
    )


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
    return lambda reason: monkeypatch.setattr("ppo_plus.compiling.compilation.obstacle", lambda device: reason)


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


def test_a_run_that_was_compiled_stays_compiled(obstacle):
    obstacle(None)
    compilation = Compilation()
    compilation.decision = CompileStatus(True, "compile=True")
    compilation.plan("auto", 1, CPU)
    assert compilation.decision


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
