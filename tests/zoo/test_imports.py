"""Classes by name, and from where."""

import sys

import gymnasium as gym
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper

from ppo_plus.zoo.imports import import_class, import_packages

NAME = "stable_baselines3.common.atari_wrappers.AtariWrapper"


def test_imports():
    assert import_class(NAME, gym.Wrapper) is AtariWrapper
    assert import_class(NAME, "gymnasium.Wrapper") is AtariWrapper


def test_modules_in_the_current_folder_are_found_but_hide_nothing(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("value = 5")
    (tmp_path / "gymnasium.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with monkeypatch.context() as modules:
        modules.setattr(sys, "modules", dict(sys.modules))
        import_packages(["only_here", "gymnasium"])
        assert sys.modules["only_here"].value == 5
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "builtins.exec", "gymnasium_evil.X", "Wrapper", ""])
def test_other_packages_are_refused_without_being_imported(name):
    before = set(sys.modules)
    with pytest.raises(ValueError, match="in none of the packages .* --trust-config"):
        import_class(name, gym.Wrapper)
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["gymnasium.core.TypeVar", "gymnasium.wrappers.common.deepcopy", "gymnasium.make"])
def test_what_is_no_such_class_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' is no subclass of gymnasium.core.Wrapper"):
        import_class(name, gym.Wrapper)


def test_what_an_allowed_module_imported_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match="comes from ppo_plus.ppo, which settings may not import from"):
        import_class("ppo_plus.zoo.models.PPO_Plus", object, ["ppo_plus.zoo"])


@pytest.mark.parametrize("name", ["gymnasium.nope.X", "gymnasium.wrappers.Nope", "minigrid_is_not_here.X"])
def test_missing(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be imported .* installed"):
        import_class(name, gym.Wrapper, None)
