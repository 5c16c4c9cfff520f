"""Products of test cases: every pair of values is tried by the fast tests, every combination by the slow ones."""

from itertools import combinations, product

import pytest


def pairs_of(combination):
    """All pairs of positions with their values in one combination."""
    return {((i, combination[i]), (j, combination[j])) for i, j in combinations(range(len(combination)), 2)}


def covering(*axes):
    """A small set of combinations in which every pair of values of two axes occurs (greedily: near the smallest).

    :param axes: the values of each axis
    """
    every = list(product(*map(list, axes)))
    missing = set().union(*map(pairs_of, every)) if len(axes) > 1 else set()
    chosen = []
    while missing:
        best = max(every, key=lambda combination: len(pairs_of(combination) & missing))
        chosen.append(best)
        missing -= pairs_of(best)
    return chosen


def all_pairs(*axes):
    """The whole product as parameters of a test; all but a covering set of it are slow.

    :param axes: the values of each axis
    """
    fast = set(covering(*axes))
    return [
        pytest.param(*combination, marks=() if combination in fast else pytest.mark.slow)
        for combination in product(*map(list, axes))
    ]


def sample(cases, n=1):
    """Parameters of which only every ``n``-th is fast.

    :param cases: the values
    """
    return [pytest.param(case, marks=() if i % n == 0 else pytest.mark.slow) for i, case in enumerate(cases)]
