"""An environment that goes on, in another process, where it stood: its episode is replayed."""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from ppo_plus.envs.resumable.layers import Layers, put_spoken, spoken
from ppo_plus.envs.resumable.np_random import generator_of, set_generator
from ppo_plus.envs.resumable.plain_values import (
    IMMUTABLE,
    Clocks,
    NotResumableError,
    State,
    fingerprint,
    plain,
    put,
    taken,
)

#: Longer episodes are not remembered, for the sake of memory and of the time it would take to replay them.
MAX_STEPS = 100_000


@dataclass(slots=True)
class _Episode:
    """What the present episode is made of.

    :param arguments: of its reset
    :param generator: that of the environment, before the reset
    :param lasting: what wrappers and environment had from earlier episodes, before the reset
    :param actions: those taken since; one more than :data:`MAX_STEPS` at most
    :param last: what the reset or the last step returned; ``None``: neither has been
    :param reason: why it cannot be kept, or ``None``
    """

    arguments: State = field(default_factory=dict)
    generator: State | None = None
    lasting: list[State] = field(default_factory=list)
    actions: deque[Any] = field(default_factory=lambda: deque(maxlen=MAX_STEPS + 1))
    last: Any = None
    reason: str | None = None


class Resumable(gym.Wrapper):
    """Lets an environment go on, in another process, where it stood: see :mod:`ppo_plus.envs.resumable.state`.

    ``PPO_Plus`` and ``ppo-plus`` put it around the single environments that they make or are given. In a vectorized
    environment of your own, put it outermost: ``make_vec_env(..., wrapper_class=ppo_plus.Resumable)``. Everything else
    is the environment's; an attribute that is set is set there.

    ``BipedalWalker`` is given a new Box2D world at each reset: its later episodes then differ from those without this
    wrapper by rounding.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._layers = Layers(env)
        self._replays = self._layers.speaker is None and self._layers.mute is None
        self._episode = _Episode(reason=f"{env} was stepped before its Resumable was reset")
        #: Names of attributes that were set from outside.
        self._touched: list[str] = []

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self.env.spec

    def __setattr__(self, name: str, value: Any) -> None:
        if "_touched" not in vars(self):
            return super().__setattr__(name, value)
        # The generator is kept.
        if name != "np_random":
            self._touched.append(name)
        setattr(self.env, name, value)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        self._touched.append(name)
        return self.env.set_wrapper_attr(name, value, force=force)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """As the environment's.

        :param kwargs: its arguments, ``seed`` and ``options``
        """
        episode = _Episode()
        if kwargs:
            try:
                episode.arguments = plain(kwargs)
            except NotResumableError as error:
                episode.reason = f"{self.env} was reset with {error}"
        if self._replays:
            # Without a generator the reset would make one, from a seed that nobody knows.
            self._layers.base.np_random  # noqa: B018
            if self._layers.has_world:
                _renew_world(self._layers.base)
            episode.generator = generator_of(self._layers.base)
            episode.lasting = [taken(*each) for each in self._layers.lasting]
        # The attribute is this object's own, and not the environment's.
        vars(self)["_episode"] = episode
        result = self.env.reset(**kwargs)
        episode.last = result
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # In a few bytecodes: small environments take a step in a few microseconds.
        episode = self._episode
        # Copied, since callers use arrays again.
        episode.actions.append(action if type(action) in IMMUTABLE else _copied(action))
        episode.last = result = self.env.step(action)
        return result

    # --- what `get_state` and `set_state` call, also in other processes: an error would end these -------------------

    def get_episode_state(self) -> State:
        """What :func:`~ppo_plus.envs.resumable.state.get_state` keeps of this environment.

        :return: plain values; ``"reason"`` is as there
        """
        layers = self._layers
        state: State = {
            "layers": layers.names,
            "generator": generator_of(layers.base),
            "kept": [{}] * len(layers.kept),
            "episode": None,
            "reason": None,
        }

        def take() -> None:
            state["kept"] = [taken(*each) for each in layers.kept]
            if layers.mute is not None:
                raise NotResumableError(layers.mute)
            if self._episode.last is not None:
                state["episode"] = self._episode_state(self._episode)

        state["reason"] = self._tried(take)
        return state

    def _tried(self, function: Callable[[], None]) -> str | None:
        """Why a function failed; ``None``: it did not."""
        try:
            function()
        except NotResumableError as error:
            return str(error)
        except Exception as error:
            return f"{self.env} raised {error!r}"
        return None

    def _episode_state(self, episode: _Episode) -> State:
        """:raises NotResumableError: there is something that cannot be kept"""
        if episode.reason is not None:
            raise NotResumableError(episode.reason)
        state: State = {"arguments": episode.arguments}
        if self._layers.speaker is not None:
            return {**state, "spoken": spoken(self._layers.speaker)}
        if self._touched:
            raise NotResumableError(f"attribute {self._touched[0]!r} of {self.env} was set from outside")
        if len(episode.actions) > MAX_STEPS:
            raise NotResumableError(f"{self.env} is in an episode of more than {MAX_STEPS} steps")
        return {
            **state,
            "generator": episode.generator,
            "lasting": episode.lasting,
            "made": taken(self._layers.base, self._layers.made),
            "n_steps": len(episode.actions),
            "actions": plain(_stacked(list(episode.actions))) if episode.actions else None,
            "fingerprint": self._fingerprint(),
        }

    def set_episode_state(self, state: State) -> str | None:
        """Put the environment where another one stood.

        :param state: what that one's :meth:`get_episode_state` returned
        :return: ``None``, or why it does not stand there
        """
        layers = self._layers
        if layers.names != state["layers"]:
            return f"{self.env} is {' of '.join(layers.names)}, but the state is of {' of '.join(state['layers'])}"

        def put_back() -> None:
            set_generator(layers.base, state["generator"])
            _put_all(layers.kept, state["kept"])

        reason = state["reason"]
        if reason is None and state["episode"] is not None:
            with layers.silent():
                reason = self._tried(lambda: self._go_to(state["episode"], state["generator"]))
        # Also where there is a reason: the environment can still be reset.
        return self._tried(put_back) or reason

    def _go_to(self, episode: State, generator: State | None) -> None:
        """:raises NotResumableError: this is not possible"""
        layers = self._layers
        if layers.speaker is not None:
            self.reset(**episode["arguments"])
            set_generator(layers.base, generator)
            put_spoken(layers.speaker, episode["spoken"])
            return
        if fingerprint(taken(layers.base, layers.made)) != fingerprint(episode["made"]):
            raise NotResumableError(f"{self.env} was made with another map: pass desc or map_name")
        layers.base.np_random  # noqa: B018
        set_generator(layers.base, episode["generator"])
        _put_all(layers.lasting, episode["lasting"])
        self.reset(**episode["arguments"])
        for i in range(episode["n_steps"]):
            self.step(_row(episode["actions"], i))
        if self._fingerprint() != episode["fingerprint"]:
            raise NotResumableError(
                f"the same actions led {self.env} elsewhere: it depends on more than its seed, or was made otherwise"
            )

    def _fingerprint(self) -> str:
        """Of what the environment returned last, but for the info, and of its generator."""
        last = self._episode.last[: 4 if self._episode.actions else 1]
        return fingerprint([last, generator_of(self._layers.base)])


def _renew_world(base: Any) -> None:
    """Give an environment of :data:`~ppo_plus.envs.resumable.known_envs.WORLDS` a new one, before its reset."""
    gravity = base.world.gravity
    # Its bodies go with the world they are in.
    base._destroy()
    base.world = type(base.world)(gravity=gravity)


def _put_all(owners: list[tuple[Any, Clocks]], states: list[State]) -> None:
    for (owner, clocks), state in zip(owners, states, strict=True):
        put(owner, clocks, state)


def _copied(action: Any) -> Any:
    """A copy of an action, which may be a structure."""
    return action.copy() if type(action) is np.ndarray else copy.deepcopy(action)


def _stacked(actions: list[Any]) -> Any:
    """Actions as one structure of arrays, with a row for each."""
    first = actions[0]
    if isinstance(first, dict):
        return {key: _stacked([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(list(parts)) for parts in zip(*actions, strict=True))
    return np.stack(actions)


def _row(stacked: Any, i: int) -> Any:
    """Action ``i`` of what :func:`_stacked` made."""
    if isinstance(stacked, dict):
        return {key: _row(part, i) for key, part in stacked.items()}
    if isinstance(stacked, tuple):
        return tuple(_row(part, i) for part in stacked)
    return stacked[i].copy()
