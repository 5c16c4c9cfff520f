"""The layers of an environment, its wrappers and itself: which of them are known, and which return their own state."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor

from ppo_plus.envs.resumable.attributes import NotResumableError, plain
from ppo_plus.envs.resumable.known_envs import BEFORE_RESET, LASTING, MADE, REPLAYABLE, WORLDS, WRAPPERS, class_name


class Layers:
    """What an environment consists of.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        layers = list(layers_of(env))
        self.names = [type(layer).__name__ for layer in layers]
        self.base: Any = layers[-1].unwrapped
        base_class = class_name(self.base)
        self.made = MADE.get(base_class, ())
        self.has_world = base_class in WORLDS

        with_state = [i for i, layer in enumerate(layers) if has_state(layer)]
        #: The outermost one that returns its own state and that of all it wraps; ``None``: the episode is replayed.
        self.stateful = layers[with_state[0]] if with_state else None
        #: The wrappers around it, or all of them.
        outer = layers[: with_state[0]] if with_state else layers[:-1]
        unknown = [layer for layer in outer if class_name(layer) not in WRAPPERS]
        if self.stateful is None:
            if not base_class.startswith(REPLAYABLE):
                unknown.append(self.base)
            unknown = [layer for layer in unknown if not vars(type(layer)).get("replayable", False)]
        #: Why it can neither be replayed nor return its state; ``None``: it can.
        self.reason = reason_of(unknown) if unknown else None

        #: Objects with the names of their attributes that change, ...
        self.changing = [(layer, WRAPPERS.get(class_name(layer), ())) for layer in outer]
        if self.stateful is None:
            self.changing.append((self.base, LASTING.get(base_class, ())))
        #: ... and with those that a replay needs before its reset.
        found = [(layer, [name for name in names if name in BEFORE_RESET]) for layer, names in self.changing]
        self.before_reset = [(layer, names) for layer, names in found if names]

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Monitors do not write to files meanwhile."""
        monitors = [layer for layer, _ in self.changing if isinstance(layer, Monitor)]
        writers = [monitor.results_writer for monitor in monitors]
        for monitor in monitors:
            monitor.results_writer = None
        try:
            yield
        finally:
            for monitor, writer in zip(monitors, writers, strict=True):
                monitor.results_writer = writer


def layers_of(env: gym.Env) -> Iterator[gym.Env]:
    """The wrappers from the outermost on, and the environment."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def reason_of(layers: list[Any]) -> str:
    """Why these cannot resume."""
    names = [type(layer).__name__ for layer in layers]
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} no get_state and set_state"


def has_state(owner: Any) -> bool:
    """Whether its class has ``get_state`` and ``set_state``; a wrapper also passes on those of what it wraps."""
    return all(callable(getattr(type(owner), name, None)) for name in ("get_state", "set_state"))


def own_state(owner: Any) -> Any:
    """What ``get_state`` returns.

    :raises NotResumableError: it raises an error, or returns something else than plain values
    """
    try:
        return plain(owner.get_state())
    except NotResumableError as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() returned {error}") from None
    except Exception as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() raised {error!r}") from error


def set_own_state(owner: Any, state: Any) -> None:
    """Put back what :func:`own_state` returned."""
    owner.set_state(copy.deepcopy(state))
