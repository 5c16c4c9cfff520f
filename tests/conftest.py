"""Settings of all tests."""

import importlib
import multiprocessing
import signal

import pytest
import torch as th
from compiled import by_operation

# Torch notes for each kind of device that is not there where it was seeded, which takes a hundred times longer.
for device in (th.cuda, th.mtia, th.xpu):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None

# Networks are tiny here: one thread is fastest, and sums then always have the same order.
th.set_num_threads(1)

# Processes of environments are forked from one that has imported all this, as those of a script are that imports it.
# Imported here as well, its bytecode is there when several processes of pytest start: without it that takes 20 s each.
PRELOADED = ["ppo_plus.zoo.train", "torch._dynamo"]
for name in PRELOADED:
    importlib.import_module(name)
multiprocessing.set_forkserver_preload(PRELOADED)

# In the background, a shell has the tests ignore Ctrl-C, and so would the processes that they start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """An exhaustive test is a slow one. The zoo's tests take longest: they come first, so that no process of `make
    check` waits for them at the end."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")
    items.sort(key=lambda item: "zoo" not in item.path.parts)


@pytest.fixture
def traced(monkeypatch):
    """Traced is compiled: ``compiled.by_operation`` stands for Inductor."""
    monkeypatch.setattr("ppo_plus.compiling.compiled.compile_graph", by_operation)
