"""Comparisons of compiled with eager training, and a stand-in for the compiler that is fast."""

import shutil

import numpy as np
import pytest
import torch as th

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler")


def by_operation(graph, tensors):
    """What Inductor compiles, run operation by operation.

    Numbers and tensors that a trace has kept are as stale here. Where code is written for one layout, or operations are
    put together, a test needs Inductor, which takes most of the time.
    """

    def run(given):
        results = list(graph(*given))
        given.clear()
        return results

    return run


def parameters(model):
    return th.nn.utils.parameters_to_vector(model.policy.parameters())


def assert_trained_alike(eager, compiled):
    """Two models after two updates: all of one is compiled, and it has become the other."""
    assert len(compiled.compilation.functions) == 2 and all(
        each._run for each in compiled.compilation.functions.values()
    )
    assert np.allclose(eager.rollout_buffer.actions, compiled.rollout_buffer.actions, atol=1e-4)
    # Two updates: rounding of another order of summation, grown by the second rollout.
    assert th.allclose(parameters(eager), parameters(compiled), atol=2e-5)
    assert eager._n_updates == compiled._n_updates
    for key in ("train/loss", "train/approx_kl", "train/kl", "train/grad_norm"):
        assert compiled.logger.name_to_value[key] == pytest.approx(eager.logger.name_to_value[key], rel=1e-3, abs=1e-5)
