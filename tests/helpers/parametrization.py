"""Products of test cases: the fast tests try every pair of values, and `make test-all` every triple."""

from heapq import heapify, heappop, heapreplace
from itertools import combinations, cycle, product

import pytest

#: The marks of cases that only `make test-all` runs, and of those that `make check` runs, too.
EXHAUSTIVE, SLOW = pytest.mark.exhaustive, pytest.mark.slow


def parts_of(combination, strength=2):
    """All sets of ``strength`` positions, with their values, of one combination."""
    return set(combinations(enumerate(combination), min(strength, len(combination))))


def covering(*axes, strength=2, first=()):
    """A small set of combinations in which all values of any ``strength`` axes occur together (greedily).

    :param axes: the values of each axis
    :param strength: 2 for all pairs, 3 for all triples
    :param first: combinations that are chosen already
    """
    every = [(combination, parts_of(combination, strength)) for combination in product(*map(list, axes))]
    covered = set().union(*(parts_of(combination, strength) for combination in first))
    chosen = list(first)
    # What a combination adds can only become less: the one that is on top after it was counted anew adds most.
    heap = [(-len(parts), index) for index, (_, parts) in enumerate(every)]
    heapify(heap)
    while heap:
        gain, index = heap[0]
        combination, parts = every[index]
        now = -len(parts - covered)
        if now == 0:
            heappop(heap)
        elif now == gain:
            chosen.append(combination)
            covered |= parts
        else:
            heapreplace(heap, (now, index))
    return chosen


def all_pairs(*axes):
    """Parameters of a test: all pairs of values of the axes for the fast tests, all triples for `make test-all`.

    :param axes: the values of each axis
    """
    axes = [list(axis) for axis in axes]
    fast = covering(*axes)
    chosen = set(covering(*axes, strength=3, first=fast))
    return [
        pytest.param(*combination, marks=() if combination in fast else EXHAUSTIVE)
        for combination in product(*axes)
        if combination in chosen
    ]


def in_turn(cases, others):
    """Each case with one of the others, which take turns: for two axes that have nothing to do with each other.

    :param cases: the values of the longer axis
    :param others: the values of the shorter one
    """
    assert len(cases) >= len(others), "some of the others would be left out"
    return list(zip(cases, cycle(others)))


def sample(cases, n=1, others=EXHAUSTIVE):
    """Parameters of which only every ``n``-th is fast: of a product, ``n`` is best prime to the lengths of its axes.

    :param cases: the values; for several arguments, tuples of them
    :param others: the mark of the others
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if i % n == 0 else others)
        for i, case in enumerate(cases)
    ]


def part(cases, chosen, others=EXHAUSTIVE):
    """Parameters of which ``make test`` runs only the chosen ones.

    :param cases: the values
    :param chosen: those that are fast
    :param others: the mark of the others: only ``make test-all`` runs them, or, with ``slow``, ``make check``, too
    """
    return [pytest.param(case, marks=() if case in chosen else others) for case in cases]
