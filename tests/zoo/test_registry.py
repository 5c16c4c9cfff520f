"""Environments by their id."""

import sys

import gymnasium as gym
import pytest

from ppo_plus.zoo.registry import find_env, is_atari


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
