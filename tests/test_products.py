"""The fast products of cases hold every pair."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from products import all_pairs, covering, pairs_of

axes = st.lists(st.integers(1, 5).map(range), min_size=2, max_size=4)


@given(axes)
@settings(deadline=None)
def test_every_pair_occurs(axes):
    chosen, every = covering(*axes), list(product(*axes))
    assert set(chosen) <= set(every)
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, every))


def test_the_rest_is_slow_and_nothing_is_left_out():
    parameters = all_pairs("abc", range(4), "xy")
    assert [each.values for each in parameters] == list(product("abc", range(4), "xy"))
    fast = [each.values for each in parameters if not each.marks]
    assert len(fast) < 24 and fast == [values for values in product("abc", range(4), "xy") if values in fast]
    assert set().union(*map(pairs_of, fast)) == set().union(*map(pairs_of, product("abc", range(4), "xy")))
