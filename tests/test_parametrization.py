"""The fast products of cases hold every pair, and all of them every triple."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parametrization import all_pairs, covering, in_turn, part, sample

axes = st.lists(st.integers(1, 5).map(range), min_size=2, max_size=4)


def together(chosen, strength):
    """All values of ``strength`` axes that occur together."""
    return {tuple((i, each[i]) for i in axes) for each in chosen for axes in combinations(range(len(each)), strength)}


@given(axes, st.sampled_from([2, 3]))
@settings(deadline=None)
def test_all_values_occur_together(axes, strength):
    chosen, every = covering(*axes, strength=strength), list(product(*axes))
    assert len(set(chosen)) == len(chosen) and set(chosen) <= set(every)
    strength = min(strength, len(axes))
    assert together(chosen, strength) == together(every, strength)


def names(parameters):
    """The mark of each, if it has one."""
    return [next((mark.name for mark in each.marks), "") for each in parameters]


def test_what_is_left_out():
    assert names(sample("abcde", 2)) == ["", "exhaustive", "", "exhaustive", ""]
    assert names(sample("abc", 2, pytest.mark.slow)) == ["", "slow", ""]
    assert names(part("abc", "b")) == ["exhaustive", "", "exhaustive"]


@pytest.mark.exhaustive
def test_what_is_exhaustive_is_slow(request):
    assert request.node.get_closest_marker("slow")


def test_the_rest_is_exhaustive():
    parameters = all_pairs("abc", range(4), "xy", "uvw")
    every = list(product("abc", range(4), "xy", "uvw"))
    chosen = [each.values for each in parameters]
    fast = [each.values for each in parameters if not each.marks]
    assert len(fast) < 24 < len(chosen) < len(every)
    assert chosen == [values for values in every if values in chosen]
    assert together(fast, 2) == together(every, 2) and together(chosen, 3) == together(every, 3)


def test_every_value_has_its_turn():
    assert in_turn("abcde", [1, 2]) == [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 1)]
