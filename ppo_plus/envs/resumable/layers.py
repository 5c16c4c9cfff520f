"""The layers of an environment, its wrappers and itself: which of them are known, and which speak for themselves."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from stable_baselines3.common.monitor import Monitor

from ppo_plus.envs.resumable.known_envs import LASTING, MADE, REPLAYABLE, WORLDS, WRAPPERS, Kept, listed_as
from ppo_plus.envs.resumable.plain_values import Clocks, NotResumableError, plain


class Layers:
    """What an environment is made of.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        layers = list(layers_of(env))
        self.names = [type(layer).__name__ for layer in layers]
        self.base: Any = layers[-1].unwrapped
        speakers = [i for i, layer in enumerate(layers) if speaks(layer)]
        #: The outermost one that speaks for itself and all that it wraps, or ``None``: the episode is replayed.
        self.speaker = layers[speakers[0]] if speakers else None
        #: The wrappers around it, or all of them.
        outer = layers[: speakers[0]] if speakers else layers[:-1]
        self.made: Clocks = dict.fromkeys(MADE.get(listed_as(self.base), ()))
        self.has_world = listed_as(self.base) in WORLDS
        self.wrappers = [(layer, WRAPPERS.get(listed_as(layer), Kept())) for layer in outer]
        unknown = [layer for layer in outer if listed_as(layer) not in WRAPPERS]
        if self.speaker is None:
            if not listed_as(self.base).startswith(REPLAYABLE):
                unknown.append(self.base)
            unknown = [layer for layer in unknown if not vars(type(layer)).get("replayable", False)]
        #: Why it can be neither replayed nor asked; ``None``: it can.
        self.mute = mute_reason(unknown) if unknown else None

        base = (self.base, dict.fromkeys(LASTING.get(listed_as(self.base), ()) if self.speaker is None else ()))
        #: Whose attributes a replay must find, with their names.
        self.lasting = [(layer, dict.fromkeys(kept.lasting)) for layer, kept in self.wrappers if kept.lasting]
        self.lasting += [base] if base[1] else []
        #: Those to be put back where a replay is over, and where there is none; then all.
        self.kept = [*((layer, kept.names(episode=speakers != [])) for layer, kept in self.wrappers), base]

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing is written to files meanwhile."""
        writers = [(wrapper, wrapper.results_writer) for wrapper, _ in self.wrappers if isinstance(wrapper, Monitor)]
        for monitor, _ in writers:
            monitor.results_writer = None
        try:
            yield
        finally:
            for monitor, writer in writers:
                monitor.results_writer = writer


def layers_of(env: gym.Env) -> Iterator[gym.Env]:
    """The wrappers from the outermost on, and the environment."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def mute_reason(layers: list[Any]) -> str:
    """Why these cannot go on."""
    names = [type(layer).__name__ for layer in layers]
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} no get_state and set_state"


def speaks(owner: Any) -> bool:
    """Whether it has the two methods itself; wrappers pass on what they do not have."""
    return all(callable(getattr(type(owner), name, None)) for name in ("get_state", "set_state"))


def spoken(owner: Any) -> Any:
    """:raises NotResumableError: it cannot tell, or not in plain values"""
    try:
        return plain(owner.get_state())
    except NotResumableError as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() returned {error}") from None
    except Exception as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() raised {error!r}") from error


def put_spoken(owner: Any, state: Any) -> None:
    owner.set_state(copy.deepcopy(state))
