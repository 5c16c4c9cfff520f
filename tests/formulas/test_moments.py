"""Moments put together and taken apart again."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from ppo_plus.formulas.moments import Moments, total


def parts_of(seed, sizes):
    rng = np.random.default_rng(seed)
    return [th.from_numpy(rng.normal(i, 1 + i, (n, 2))) for i, n in enumerate(sizes)]


rows = st.builds(parts_of, st.integers(0, 2**32 - 1), st.lists(st.integers(0, 9), min_size=1, max_size=5))


def assert_same(found, expected):
    assert found.n == expected.n
    assert th.allclose(found.mean, expected.mean, rtol=0, atol=1e-12)
    assert th.allclose(found.m2, expected.m2, rtol=1e-9, atol=1e-9)


@given(rows)
def test_parts_make_the_whole(parts):
    assert_same(total(map(Moments.of, parts)), Moments.of(th.cat(parts)))


@given(rows)
def test_what_is_taken_away_leaves_the_rest(parts):
    first, *others = parts
    whole = total(map(Moments.of, parts))
    assert_same(whole.minus(total(map(Moments.of, [first[:0], *others]))), Moments.of(first))


def test_they_are_what_numpy_computes():
    numbers = np.random.default_rng(0).normal(3, 2, 50)
    found = Moments.of(th.from_numpy(numbers))
    assert (found.n, found.mean) == (50, pytest.approx(numbers.mean()))
    assert found.var == pytest.approx(numbers.var()) and found.std == pytest.approx(numbers.std(ddof=1))


def test_a_number_of_each_column():
    """Columns that have different numbers of rows."""
    n, mean, m2 = (th.tensor(each) for each in ([2.0, 0.0], [1.0, 0.0], [2.0, 0.0]))
    whole = Moments(n, mean, m2).plus(Moments(n.flip(0), mean.flip(0), m2.flip(0)))
    assert (whole.n == 2).all() and (whole.mean == 1).all() and (whole.m2 == 2).all()
    assert (Moments(n, mean, m2).plus(Moments(0 * n, 0 * n, 0 * n)).mean == mean).all()
