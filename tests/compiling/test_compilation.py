"""When a compiled form is made again. Nothing is compiled here: a form compiles when it is first called."""

from types import SimpleNamespace

import pytest
import torch as th

from ppo_plus.compiling.compilation import Compilation, CompileStatus
from ppo_plus.compiling.compiled import MAX_TRACES


@pytest.fixture
def get():
    """The compiled form of a function that reads an attribute of an object, and the object."""
    compilation, owner = Compilation(), SimpleNamespace(scale=2.0)
    compilation.decision = CompileStatus(True, "compile=True")

    def scaled(x):
        return owner.scale * x

    def current():
        return compilation.compiled("scaled", scaled, reads=scaled)

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
    assert "changed" in form.failure and "scale" in form.failure
