"""Printed commands work when they are pasted into a shell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ppo_plus import __version__
from ppo_plus.zoo import commands

HERE = Path(sys.executable).parent


@pytest.mark.parametrize("path", ["/usr/bin:/bin", f"{HERE}:/usr/bin:/bin"])
@pytest.mark.parametrize("folder", ["inside", "outside"])
def test_pasted_commands_work_whatever_the_path(monkeypatch, tmp_path, path, folder):
    monkeypatch.setenv("PATH", path)
    monkeypatch.chdir(HERE.parents[1] if folder == "inside" else tmp_path)
    command = commands.command("--version")
    if str(HERE) in path:
        assert command == "ppo-plus --version"
    done = subprocess.run(command, shell=True, text=True, capture_output=True, timeout=300)
    assert done.stdout == f"ppo-plus {__version__}\n"
    help = subprocess.run(f"{commands.pip_install('x')} --help", shell=True, text=True, capture_output=True)
    assert "install" in help.stdout


def test_extras_are_installed_by_the_names_of_their_packages():
    line = commands.pip_install(extra="zoo")
    assert " install " in line and "optuna" in line and "scipy" in line and "furo" not in line


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("postgresql+psycopg://me:secret@server/studies", "postgresql+psycopg://me:***@server/studies"),
        ("--storage=postgresql://me@server/x?user=a&password=secret", "--storage=postgresql://me@server/x?user=a&password=***"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("gamma:0.99", "gamma:0.99"),
    ],
)  # fmt: skip
def test_passwords_are_not_printed(word, shown):
    assert commands.without_password(word) == shown


def test_the_command_is_the_one_that_was_given(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/ppo-plus", "tune", "--study-name", "my study"])
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).with_name(name)))
    assert commands.this_command() == "ppo-plus tune --study-name 'my study'"
    monkeypatch.setattr(sys, "argv", ["scripts/tune.py", "--env", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "scripts/tune.py", "--env", "x"])
    assert commands.this_command() == "python3 scripts/tune.py --env x"
