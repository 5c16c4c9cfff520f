"""What several tests of the zoo need."""

import pytest


@pytest.fixture
def settings(tmp_path):
    """Write a settings file and return its path."""

    def write(text):
        path = tmp_path / "settings.yml"
        path.write_text(text)
        return path

    return write
