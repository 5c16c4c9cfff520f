"""``ppo-plus enjoy``, ``ppo-plus record`` and ``ppo-plus export``."""

import sys

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from ppo_plus.zoo.cli import main


def test_an_environment_that_cannot_draw(folder, check_one_line_error, monkeypatch, capsys):
    """Most find out when they are to draw, not when they are made."""
    # Another test of this process may have imported it; then it would need a screen.
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)

    class Undrawable(CartPoleEnv):
        def render(self):
            raise gym.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[toy]"`')

    gym.register("Undrawable-v0", Undrawable, max_episode_steps=5)
    try:
        options = ["--env", "Undrawable-v0", "--device", "cpu"]
        main(["train", *options, "-n", "64", "-params", "n_steps:64", "--no-progress"])
        capsys.readouterr()
        for command in ("record", "enjoy"):
            check_one_line_error([command, *options], "pygame is not installed")
    finally:
        gym.registry.pop("Undrawable-v0")


@pytest.mark.parametrize("name", ["x.xyz", "x", "x.png", ".gif"])
def test_recordings_that_are_not_possible(folder, check_one_line_error, name):
    arguments = ["record", "--env", "CartPole-v1", "--exp-id", "-1", "-o", name]
    check_one_line_error(arguments, f"-o {name}: the name must end in .gif or .mp4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["enjoy", "--env", "CartPole-v1"], "there is no run of CartPole-v1 in logs"),
        (["enjoy", "--env", "CartPole-v1", "--exp-id", "-1", "-f", "."], "there is no model CartPole-v1.zip"),
        (["record", "--env", "CartPole-v1", "--exp-id", "3"], "there is no run of CartPole-v1"),
        ("enjoy --env CartPole-v1 --norm-reward".split(), "--norm-reward"),
        (["export", "."], "RUN .: not the folder of a run"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(folder, check_one_line_error, arguments, message):
    check_one_line_error(arguments, message)
