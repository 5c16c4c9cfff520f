"""Processes find each other, whatever earlier ones have left behind. Real stores; threads stand for processes."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed as dist

from ppo_plus.zoo.rendezvous import fresh


@pytest.fixture
def connect():
    """Connects to one and the same store."""
    server = dist.TCPStore("localhost", 0, is_master=True)
    return lambda: dist.TCPStore("localhost", server.port, is_master=False)


def meet(connect, size, order=None):
    with ThreadPoolExecutor(size) as threads:
        each = [threads.submit(fresh, connect(), rank, size) for rank in order or range(size)]
        return [future.result(60) for future in each]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_all_have_a_part_of_their_own_in_each_attempt(connect, order):
    """As torchrun restarts processes: the store is that of before."""
    for attempt in range(3):
        stores = meet(connect, 3, order)
        # Nothing of an earlier attempt is there, and all see the same.
        assert not any(store.check(["key"]) for store in stores)
        stores[0].set("key", str(attempt))
        assert [store.get("key") for store in stores] == [str(attempt).encode()] * 3


def test_what_the_killed_have_left_is_not_answered(connect):
    """A process said hello, was called by the first one of its attempt, and both were killed."""
    store = connect()
    store.set("hello/0", "gone")
    store.set("hello/1", "gone too")
    store.set("attempt", json.dumps(["old", ["gone", "gone too"]]))
    store.set("old/0", "here")
    stores = meet(connect, 2)
    stores[1].set("key", "new")
    assert stores[0].get("key") == b"new"
    assert not dist.PrefixStore("old", store).check(["key"])


def test_fewer_come_back(connect):
    meet(connect, 3)
    stores = meet(connect, 2)
    stores[0].set("key", "two")
    assert stores[1].get("key") == b"two"


def test_who_does_not_come_is_not_waited_for_for_ever(connect):
    store = connect()
    store.set("hello/1", "gone")
    with pytest.raises(TimeoutError, match="of 2 processes that train together, some have not come"):
        fresh(connect(), 0, 2, patience=timedelta(seconds=0.3))
