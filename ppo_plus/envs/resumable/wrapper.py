"""An environment that resumes in another process within its episode, which is replayed."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from ppo_plus.envs.resumable.attributes import (
    IMMUTABLE,
    NotResumableError,
    State,
    fingerprint,
    get_attributes,
    plain,
    set_attributes,
)
from ppo_plus.envs.resumable.layers import Layers, own_state, set_own_state
from ppo_plus.envs.resumable.np_random import generator_of, set_generator
from ppo_plus.trees import tree_map

#: Longer episodes are not recorded, because of the memory and of the time that a replay would take.
MAX_STEPS = 100_000


@dataclass(slots=True)
class _Episode:
    """What a replay of the present episode needs.

    :param arguments: of its reset
    :param generator: that of the environment, before the reset
    :param before_reset: attributes of wrappers and environment that earlier episodes have set, before the reset
    :param actions: those taken since; one more than :data:`MAX_STEPS` at most
    :param last: what the reset or the last step returned; ``None``: neither was called
    :param reason: why the episode cannot be replayed, or ``None``
    """

    arguments: State = field(default_factory=dict)
    generator: State | None = None
    before_reset: list[State] = field(default_factory=list)
    actions: deque[Any] = field(default_factory=lambda: deque(maxlen=MAX_STEPS + 1))
    last: Any = None
    reason: str | None = None


class Resumable(gym.Wrapper):
    """A wrapper that lets an environment resume in another process: see :mod:`ppo_plus.envs.resumable.state`.

    ``PPO_Plus`` and ``ppo-plus`` put it around the single environments that they make or are given. In your own
    vectorized environment, make it the outermost wrapper: ``make_vec_env(..., wrapper_class=ppo_plus.Resumable)``.
    Everything else is the environment's; an attribute that is set is set there.

    ``BipedalWalker`` gets a new Box2D world at each reset: its later episodes then differ by rounding from those
    without this wrapper.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._layers = Layers(env)
        self._replays = self._layers.stateful is None and self._layers.reason is None
        self._episode = _Episode(reason=f"{env} was stepped before its Resumable was reset")
        #: Names of attributes that were set from outside.
        self._set_from_outside: list[str] = []

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self.env.spec

    def __setattr__(self, name: str, value: Any) -> None:
        if "_set_from_outside" not in vars(self):
            return super().__setattr__(name, value)
        # The generator is a part of the state.
        if name != "np_random":
            self._set_from_outside.append(name)
        setattr(self.env, name, value)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        self._set_from_outside.append(name)
        return self.env.set_wrapper_attr(name, value, force=force)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """As the environment's.

        :param kwargs: its arguments, ``seed`` and ``options``
        """
        episode = _Episode()
        try:
            episode.arguments = plain(kwargs)
        except NotResumableError as error:
            episode.reason = f"{self.env} was reset with {error}"
        if self._replays:
            # Without a generator the reset would make one, from an unknown seed.
            self._layers.base.np_random  # noqa: B018
            if self._layers.has_world:
                _renew_world(self._layers.base)
            episode.generator = generator_of(self._layers.base)
            episode.before_reset = _get_all(self._layers.before_reset)
        # An attribute of this object, and not of the environment.
        vars(self)["_episode"] = episode
        result = self.env.reset(**kwargs)
        episode.last = result
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # In a few bytecodes: small environments take a step in a few microseconds.
        episode = self._episode
        # Copied, since callers may reuse their arrays.
        episode.actions.append(action if type(action) in IMMUTABLE else _copied(action))
        episode.last = result = self.env.step(action)
        return result

    # --- what `get_state` and `set_state` call, also in other processes, which an error would end --------------------

    def get_episode_state(self) -> State:
        """What :func:`~ppo_plus.envs.resumable.state.get_state` needs of this environment.

        :return: plain values; ``"reason"`` is as there
        """
        layers = self._layers
        state: State = {
            "layers": layers.names,
            "generator": generator_of(layers.base),
            "changing": [{}] * len(layers.changing),
            "episode": None,
            "reason": None,
        }

        def get() -> None:
            state["changing"] = _get_all(layers.changing)
            if layers.reason is not None:
                raise NotResumableError(layers.reason)
            if self._episode.last is not None:
                state["episode"] = self._episode_state(self._episode)

        state["reason"] = self._reason_of(get)
        return state

    def _reason_of(self, function: Callable[[], None]) -> str | None:
        """Why a function failed; ``None``: it did not."""
        try:
            function()
        except NotResumableError as error:
            return str(error)
        except Exception as error:
            return f"{self.env} raised {error!r}"
        return None

    def _episode_state(self, episode: _Episode) -> State:
        """:raises NotResumableError: the episode cannot be replayed"""
        if episode.reason is not None:
            raise NotResumableError(episode.reason)
        state: State = {"arguments": episode.arguments}
        if self._layers.stateful is not None:
            return {**state, "own": own_state(self._layers.stateful)}
        if self._set_from_outside:
            raise NotResumableError(f"attribute {self._set_from_outside[0]!r} of {self.env} was set from outside")
        if len(episode.actions) > MAX_STEPS:
            raise NotResumableError(f"{self.env} is in an episode of more than {MAX_STEPS} steps")
        return {
            **state,
            "generator": episode.generator,
            "before_reset": episode.before_reset,
            "made": get_attributes(self._layers.base, self._layers.made),
            "n_steps": len(episode.actions),
            "actions": plain(tree_map(lambda *parts: np.stack(parts), *episode.actions)) if episode.actions else None,
            "fingerprint": self._fingerprint(),
        }

    def set_episode_state(self, state: State) -> str | None:
        """Put the environment where another one was.

        :param state: what that one's :meth:`get_episode_state` returned
        :return: ``None``, or why this is not possible
        """
        layers = self._layers
        if layers.names != state["layers"]:
            return f"{self.env} is {' of '.join(layers.names)}, but the state is of {' of '.join(state['layers'])}"

        def put_back() -> None:
            set_generator(layers.base, state["generator"])
            _set_all(layers.changing, state["changing"])

        reason = state["reason"]
        if reason is None and state["episode"] is not None:
            with layers.silent():
                reason = self._reason_of(lambda: self._go_to(state["episode"], state["generator"]))
        # Also if there is a reason: the environment can still be reset.
        return self._reason_of(put_back) or reason

    def _go_to(self, episode: State, generator: State | None) -> None:
        """:raises NotResumableError: this is not possible"""
        layers = self._layers
        if layers.stateful is not None:
            self.reset(**episode["arguments"])
            set_generator(layers.base, generator)
            set_own_state(layers.stateful, episode["own"])
            return
        if fingerprint(get_attributes(layers.base, layers.made)) != fingerprint(episode["made"]):
            raise NotResumableError(f"{self.env} was made with another map: pass desc or map_name")
        layers.base.np_random  # noqa: B018
        set_generator(layers.base, episode["generator"])
        _set_all(layers.before_reset, episode["before_reset"])
        self.reset(**episode["arguments"])
        for i in range(episode["n_steps"]):
            self.step(tree_map(lambda rows: rows[i].copy(), episode["actions"]))  # noqa: B023
        if self._fingerprint() != episode["fingerprint"]:
            raise NotResumableError(
                f"the same actions led {self.env} to another state: it depends on more than its seed, or was made with "
                "other arguments"
            )

    def _fingerprint(self) -> str:
        """The fingerprint of what the environment returned last, without the info, and of its generator."""
        last = self._episode.last[: 4 if self._episode.actions else 1]
        return fingerprint([last, generator_of(self._layers.base)])


def _renew_world(base: Any) -> None:
    """Give an environment of :data:`~ppo_plus.envs.resumable.known_envs.WORLDS` a new one, before its reset."""
    gravity = base.world.gravity
    # Its bodies go with the world they are in.
    base._destroy()
    base.world = type(base.world)(gravity=gravity)


def _get_all(owners: Sequence[tuple[Any, Iterable[str]]]) -> list[State]:
    return [get_attributes(*each) for each in owners]


def _set_all(owners: Sequence[tuple[Any, Iterable[str]]], states: list[State]) -> None:
    for (owner, names), state in zip(owners, states, strict=True):
        set_attributes(owner, names, state)


def _copied(action: Any) -> Any:
    """A copy of an action, which may be structured."""
    return action.copy() if type(action) is np.ndarray else copy.deepcopy(action)
