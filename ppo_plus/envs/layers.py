"""The layers of an environment: wrappers and vector environments, as far as they are in this process."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper


class Adapter:
    """The base of our classes that adapt another environment, their attribute ``env``."""


def layers(env: Any) -> Iterator[Any]:
    """The environment and all that it wraps, from the outermost on, each object once."""
    waiting, seen = [env], set[int]()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            waiting += [holder[key] for holder, key in reversed(places(layer))]


def places(layer: Any) -> list[tuple[Any, Any]]:
    """Where a layer has what it wraps: dicts or lists, with the key. Attributes of other classes are their own matter,
    whatever their names."""
    if isinstance(layer, (DummyVecEnv, SyncVectorEnv)):
        return [(layer.envs, i) for i in range(len(layer.envs))]
    if not isinstance(layer, (gym.Wrapper, VectorWrapper, VecEnvWrapper, Adapter)):
        return []
    name = "venv" if isinstance(layer, VecEnvWrapper) else "env"
    attributes = vars(layer)
    # A class may compute it.
    return [(attributes if name in attributes else {name: getattr(layer, name)}, name)]
