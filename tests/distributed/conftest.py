"""What tests of several processes share."""

import pytest
from processes import Processes


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Two processes that train together: see :func:`processes.in_each`."""
    two = Processes(tmp_path_factory.mktemp("processes"))
    yield two
    two.end()
