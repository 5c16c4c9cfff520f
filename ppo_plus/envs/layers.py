"""The layers of an environment: wrappers and vector environments, as far as they are in this process.

Other attributes named ``env``, ``envs`` or ``venv`` belong to the environments that have them.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper


class Adapter:
    """The base of our classes that adapt another environment."""

    env: Any


#: An environment of any kind.
Layer = gym.Env | VectorEnv | VecEnv | Adapter


def layers(env: Layer | None) -> Iterator[Layer]:
    """The environment and all that it wraps, from the outermost on, each object once."""
    waiting, seen = [] if env is None else [env], set[int]()
    while waiting:
        layer = waiting.pop()
        if id(layer) not in seen:
            seen.add(id(layer))
            yield layer
            waiting += reversed(wrapped_by(layer))


def share_layers(one: Layer, other: Layer) -> bool:
    """Whether two environments wrap the same one, or one of them wraps the other."""
    return not {*map(id, layers(one))}.isdisjoint(map(id, layers(other)))


def wrapped_by(layer: Layer) -> list[Layer]:
    """What a layer wraps."""
    # Not by `vars`: once an object's dict has been asked for, its attributes take longer to read.
    if isinstance(layer, (DummyVecEnv, SyncVectorEnv)):
        return list(layer.envs)
    if isinstance(layer, VecEnvWrapper):
        return [layer.venv]
    return [layer.env] if isinstance(layer, (gym.Wrapper, VectorWrapper, Adapter)) else []


def layer_with(method: str, env: VectorEnv) -> Any:
    """The outermost of a vector environment and those in its wrappers that has a method; ``None``: none has."""
    vectors = (layer for layer in layers(env) if isinstance(layer, VectorEnv))
    return next((layer for layer in vectors if callable(getattr(layer, method, None))), None)
