"""Environments by their Gymnasium id."""

from contextlib import suppress
from importlib.util import find_spec

import gymnasium as gym

from ppo_plus.zoo.imports import import_packages


def find_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """How Gymnasium makes an environment. Handed to worker processes as it is, so that they need no registration.

    :param env_id: Gymnasium environment id; ``module:id`` imports the module first
    :raises gymnasium.error.Error: there is no such environment, or its package is not installed
    :raises ImportError: there is no such module
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_packages([module])
    atari = is_atari(name)  # registers ALE's environments where they can be
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        if atari and find_spec("ale_py") is None:
            raise type(error)(f"{env_id} needs pip install ale-py opencv-python") from None
        versions = [spec for spec in gym.registry.values() if spec.id.rpartition("-v")[0] == name]
        if versions:
            latest = max(versions, key=lambda spec: spec.version or 0)
            raise type(error)(f"{env_id!r} has no version: use {latest.id}") from None
        raise


def is_atari(env_id: str) -> bool:
    """Whether an environment is one of the Arcade Learning Environment (of ``ale-py``, where that is installed)."""
    if env_id not in gym.registry:
        with suppress(ImportError):
            import ale_py

            gym.register_envs(ale_py)
    spec = gym.registry.get(env_id)
    return env_id.startswith("ALE/") or (spec is not None and "AtariEnv" in str(spec.entry_point))
