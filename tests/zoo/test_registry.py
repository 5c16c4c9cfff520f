"""Environments by their id."""

import sys

import gymnasium as gym
import pytest
from stable_baselines3.common.atari_wrappers import AtariWrapper

from ppo_plus.zoo.registry import find_env, import_class, import_packages, is_atari


def test_finds():
    assert find_env("CartPole-v1").id == "CartPole-v1"


def test_imports_the_module_in_front(tmp_path, monkeypatch):
    (tmp_path / "registers.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert find_env("registers:Mine-v0").id == "Mine-v0"
    finally:
        gym.registry.pop("Mine-v0", None)
        sys.modules.pop("registers", None)


def test_missing():
    with pytest.raises(gym.error.Error, match="Did you mean"):
        find_env("CartPol-v1")
    with pytest.raises(ImportError, match="no_such_module"):
        find_env("no_such_module:Foo-v0")


def test_old_names_of_atari_games():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    assert is_atari("PongNoFrameskip-v4")
    assert not is_atari("CartPole-v1")


NAME = "stable_baselines3.common.atari_wrappers.AtariWrapper"


def test_imports():
    assert import_class(NAME, gym.Wrapper) is AtariWrapper


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
    with pytest.raises(ValueError, match=f"'{name}' is not a subclass of gymnasium.core.Wrapper"):
        import_class(name, gym.Wrapper)


def test_what_an_allowed_module_imported_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match="comes from ppo_plus.ppo, which settings may not import from"):
        import_class("ppo_plus.zoo.models.PPO_Plus", object, ["ppo_plus.zoo"])


@pytest.mark.parametrize("name", ["gymnasium.nope.X", "gymnasium.wrappers.Nope", "minigrid_is_not_here.X"])
def test_a_class_that_is_missing(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be imported .* installed"):
        import_class(name, gym.Wrapper, None)
