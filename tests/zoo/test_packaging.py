"""What a wheel contains, and that it works where there is no checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("ppo_plus", "returns", "search_space")


pytestmark = pytest.mark.slow


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
    written = archive.read(names["entry_points.txt"]).decode()
    assert written.split() == ["[console_scripts]", "ppo-plus", "=", "ppo_plus.zoo.cli:main"]
    assert any(name.endswith("LICENSE") for name in names)


def test_settings_are_found_outside_a_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-m", "ppo_plus", "zoo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Acrobot-v1 " in done.stdout
