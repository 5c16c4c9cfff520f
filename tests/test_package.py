"""The names at the top of the package."""

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ppo_plus


def test_type_checkers_and_python_see_the_same_names():
    tree = ast.parse(Path(ppo_plus.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    exported = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    # Type checkers export only what is imported under a name.
    assert len(exported) > 40 and all(alias.asname == alias.name for alias in exported)
    assert [alias.name for alias in exported] == ppo_plus.__all__


def test_each_name_is_that_of_its_module():
    for name, module in ppo_plus.MODULES.items():
        assert getattr(ppo_plus, name) is getattr(import_module(module), name)
        assert name in dir(ppo_plus) and name in ppo_plus.__all__
        # As pickles refer to it.
        assert pickle.loads(f"cppo_plus\n{name}\n.".encode()) is getattr(ppo_plus, name)


def test_there_is_no_other_name():
    with pytest.raises(AttributeError, match="module 'ppo_plus' has no attribute 'PPO'"):
        ppo_plus.PPO  # noqa: B018


def test_the_package_loads_torch_only_when_it_is_used():
    code = "import ppo_plus, sys; ppo_plus.__version__, dir(ppo_plus)\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
