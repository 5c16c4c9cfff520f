"""What a wheel contains, and that it works where there is no checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy, because a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("ppo_plus", "hyperparams"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=copy, check=True, timeout=300)
    (path,) = (copy / "dist").glob("*.whl")
    return path


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ppo_plus").rglob("*.py")}
    data = {"ppo_plus/py.typed", "ppo_plus/hyperparams/ppo_plus.yml", "ppo_plus/hyperparams/search_space.yml"}
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


def test_settings_are_found_outside_a_checkout(wheel, tmp_path):
    installed = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(installed)
    code = "from ppo_plus.zoo import hyperparams as h; print(h.builtin_file(), h.resolve('CartPole-v1').n_envs)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed / "ppo_plus" / "hyperparams" / "ppo_plus.yml"), "8"]


def test_a_checkout_uses_the_folder_at_its_top():
    from ppo_plus.zoo.hyperparams import builtin_file

    assert builtin_file() == ROOT / "hyperparams" / "ppo_plus.yml"
