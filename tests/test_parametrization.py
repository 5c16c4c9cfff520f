"""The fast products of cases hold every pair, and all of them every triple."""

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st
from parametrization import all_pairs, covering

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


def test_the_rest_is_exhaustive():
    parameters = all_pairs("abc", range(4), "xy", "uvw")
    every = list(product("abc", range(4), "xy", "uvw"))
    chosen = [each.values for each in parameters]
    fast = [each.values for each in parameters if not each.marks]
    assert len(fast) < 24 < len(chosen) < len(every)
    assert chosen == [values for values in every if values in chosen]
    assert together(fast, 2) == together(every, 2) and together(chosen, 3) == together(every, 3)
