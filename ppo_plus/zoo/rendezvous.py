"""How processes that a launcher has started find each other, also after it has restarted them."""

import json
import time
from datetime import timedelta
from uuid import uuid4

from torch import distributed as dist

#: How long a process may wait for the others: one of them may be evaluating.
PATIENCE = timedelta(hours=2)
#: Seconds between two looks at what the others say.
PAUSE = 0.02


def join_group(backend: str) -> None:
    """Make the process group of those that were started together (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …).

    :param backend: of ``torch.distributed``
    """
    store, rank, size = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(backend, store=fresh(store, rank, size), rank=rank, world_size=size, timeout=PATIENCE)


def fresh(store: dist.Store, rank: int, size: int, patience: timedelta = timedelta(minutes=5)) -> dist.Store:
    """A part of a store that nobody has written to before.

    torchrun hands the same store to processes that it has restarted, where they would find the addresses of the killed
    ones and wait for them; the count of restarts that it tells differs between machines. So each process says hello by
    a new name, and the first one calls an attempt of all that say hello, until all of them have answered.

    :param store: of all processes, perhaps with what earlier ones have left in it
    :param rank: this process's number
    :param size: how many there are
    :param patience: how long to wait for the others
    :raises TimeoutError: some did not come
    """
    name, until = uuid4().hex, time.monotonic() + patience.total_seconds()
    store.set_timeout(patience)
    store.set(f"hello/{rank}", name)
    attempt, called = "", [""] * size
    while time.monotonic() < until:
        if rank == 0:
            present = [store.get(f"hello/{i}").decode() for i in range(size)]
            if present != called:
                attempt, called = uuid4().hex, present
                store.set("attempt", json.dumps([attempt, called]))
        else:
            attempt, called = json.loads(store.get("attempt"))
        if called[rank : rank + 1] == [name]:
            store.set(f"{attempt}/{rank}", "here")
            # All answer before anybody goes: one of those called may be of before.
            if store.check([f"{attempt}/{i}" for i in range(size)]):
                return dist.PrefixStore(attempt, store)
        time.sleep(PAUSE)
    raise TimeoutError(f"of {size} processes that train together, some have not come for {patience}")
