"""What the tests of several commands need."""

import re

import pytest

from ppo_plus.zoo.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def check_one_line_error(capsys):
    """A function: some arguments end in one line that contains a message, and exit code 2."""

    def check(arguments, message):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        error = capsys.readouterr().err.removesuffix("\n")
        assert "\n" not in error
        assert re.match(r"ppo-plus( \w+)?: error: .", error)
        assert message in error

    return check
