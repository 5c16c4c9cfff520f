"""Tests on a GPU, or on one that is simulated: ``make test-gpu``, in a separate process."""

import pytest
import simulated_device

KIND = simulated_device.install()


def pytest_report_header():
    return f"tests run on a GPU: {KIND}"


@pytest.fixture
def is_simulated():
    """Whether the GPU computes the same numbers as the CPU, from the same random ones."""
    return KIND == "simulated"
