"""What a wheel contains, and that it works where there is no checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("ppo_plus", "returns", "search_space")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy, because a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("ppo_plus", "hyperparams"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=copy, check=True, timeout=600)
    (path,) = (copy / "dist").glob("*.whl")
    return path


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ppo_plus").rglob("*.py")}
    data = {f"ppo_plus/{name}" for name in ("py.typed", "__init__.pyi", *(f"hyperparams/{name}.yml" for name in FILES))}
    assert {name for name in names if ".dist-info/" not in name} == modules | data


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    names = {name.split(".dist-info/")[1]: name for name in archive.namelist() if ".dist-info/" in name}
    assert archive.read(names["entry_points.txt"]).decode().split() == [
        "[console_scripts]",
        "ppo-plus",
        "=",
        "ppo_plus.zoo.cli:main",
    ]
    assert any(name.endswith("LICENSE") for name in names)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Run code or the command line with the wheel's contents, outside the checkout."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}

    def run(*arguments, cwd):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)

    run.site = site
    return run


def test_settings_are_found_outside_a_checkout(installed, tmp_path):
    code = "from ppo_plus.zoo.hyperparams import builtin_file; print(builtin_file(), builtin_file().exists())"
    done = installed("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed.site / "ppo_plus" / "hyperparams" / "ppo_plus.yml"), "True"]


@pytest.mark.slow
def test_the_command_line_works_outside_a_checkout(installed, tmp_path):
    # One process for all: importing torch takes longest.
    code = """
from ppo_plus.zoo.cli import main
main("train --env CartPole-v1 -n 512 --eval-freq 256 --save-freq 256 -params normalize:true".split())
main("enjoy --env CartPole-v1 --no-render -n 300 --load-last-checkpoint".split())
main("record --env CartPole-v1 -n 3".split())
main("plot -e CartPole-v1".split())
"""
    done = installed("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "logs" / "ppo_plus" / "CartPole-v1_1"
    for path in (run / "CartPole-v1.zip", run / "best_model_vecnormalize.zip", run / "CartPole-v1.gif"):
        assert path.is_file()
    assert (tmp_path / "curves.png").is_file()
