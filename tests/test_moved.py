"""Modules of version 0.1 are found under their old names."""

import importlib
import pickle
import subprocess
import sys

import pytest

from ppo_plus import PPO_Plus
from ppo_plus.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_a_former_module_is_its_successor_with_a_deprecation(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {MOVED[old][0]}"):
        module = importlib.import_module(old)
    for source in MOVED[old]:
        successor = importlib.import_module(source)
        names = [name for name in vars(successor) if not name.startswith("__")]
        assert names and all(getattr(module, name) is getattr(successor, name) for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_what_was_pickled_under_an_old_name_is_found():
    assert pickle.loads(b"cppo_plus.losses\nCoefficients\n.").__module__ == "ppo_plus.formulas.losses"


def test_new_names_give_no_deprecation():
    code = "import warnings; warnings.simplefilter('error'); import ppo_plus; ppo_plus.PPO_Plus; ppo_plus.RolloutBuffer"
    assert PPO_Plus and subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120).returncode == 0
