"""MinAtar's games (``pip install minatar``), which Gymnasium makes by their ids once this module is imported."""

from minatar.gym import register_envs

register_envs()
