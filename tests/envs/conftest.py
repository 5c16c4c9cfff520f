"""What tests of environments in processes share."""

import multiprocessing

import pytest


@pytest.fixture
def no_process_stays():
    """Forked processes wait for each other."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
