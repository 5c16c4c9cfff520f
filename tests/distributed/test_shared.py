"""Processes that train one model together learn what one process does: real ones, by torchrun."""

import pytest
import rank_training
import torch as th
from compiled import needs_compiler
from rank_training import CASES, learned_by_one
from torchrun import torchrun

N_RANKS = 2


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """For each case, what each process wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(N_RANKS, rank_training.__file__, folder)
    assert done.returncode == 0, done.stderr[-5000:]

    def read(case):
        names = [f"{list(CASES).index(case)}-{rank}.pt" for rank in range(N_RANKS)]
        return [th.load(folder / name, weights_only=False) for name in names]

    return read


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_several_processes_learn_what_one_does(parts, case):
    told = parts(case)
    by_one = learned_by_one(case, told)
    first, second = told
    assert not th.equal(first["rollout"].actions, second["rollout"].actions)
    moved = 0.0
    for name, weights in first["weights"].items():
        assert th.equal(first["before"][name], second["before"][name])
        assert th.equal(weights, second["weights"][name]), name
        assert th.allclose(weights, by_one["weights"][name], atol=1e-5), name
        moved = max(moved, float((weights - first["before"][name]).abs().max()))
    assert moved > 1e-4
    assert first["n_updates"] == by_one["n_updates"]
    for name, value in by_one["logged"].items():
        for part in told:
            assert part["logged"][name] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), name
