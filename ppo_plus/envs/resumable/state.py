"""The state of vectorized environments, with which others resume in another process exactly where these are.

:func:`get_state` returns the state as plain values, :func:`set_state` puts it into newly made environments, at any
step, also in the middle of an episode. :class:`~ppo_plus.Resumable`, around each single environment, records what a
*replay* of the present episode needs: the generator ``np_random`` before its reset, the arguments of the reset,
and the actions since. What is replayed:

- environments of ``gymnasium.envs``: classic control, toy text, Box2D and MuJoCo;
- wrappers listed in ``ppo_plus.envs.resumable.attributes``, with the attributes that outlast an episode;
- classes with ``replayable = True``, which subclasses inherit. It says: with the same ``np_random``, arguments of
  ``reset`` and actions, an episode is always the same, whatever came before it.

Any other environment or wrapper needs two methods. They are responsible for all that it wraps, too:

- ``get_state()`` returns its state: ``None``, numbers, strings, bytes, NumPy arrays, and lists, tuples, sets, deques
  and dicts of them. It need not contain ``np_random``.
- ``set_state(state)`` puts it back. The environment has been reset before, with the arguments of its last reset.

If one has neither, :func:`get_state` says so, and :func:`set_state` puts back what there is.
"""

import copy
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from ppo_plus.envs.checks import IMMUTABLE, Info, copied
from ppo_plus.envs.layers import layers
from ppo_plus.envs.resumable.attributes import (
    BEFORE_RESET,
    REPLAYABLE,
    VEC_ENVS,
    WORLDS,
    NotResumableError,
    State,
    changed_numbers,
    changing,
    class_name,
    digest,
    get_attributes,
    get_generator,
    has_state,
    lacks_state,
    plain,
    set_attributes,
    set_generator,
    set_numbers,
    visible,
)
from ppo_plus.process import assigned
from ppo_plus.trees import tree_map

#: Longer episodes are not recorded, because of the memory and of the time that a replay would take.
MAX_STEPS = 100_000


def get_state(vec_env: VecEnv) -> State:
    """The state of environments, between two steps.

    :param vec_env: a ``DummyVecEnv``, ``SubprocVecEnv`` or ``SupervisedVecEnv`` of :class:`~ppo_plus.Resumable`
        environments, in vector wrappers or not
    :return: plain values, which do not change later. ``"reason"`` is ``None``, or says why they cannot resume
    """
    vec_layers = _vec_layers(vec_env)
    titles = [_title(layer) for layer in vec_layers]
    state: State = {"layers": titles, "vec_layers": [], "envs": None, "n_envs": vec_env.num_envs, "reason": None}
    reasons: list[str | None] = []
    for layer in vec_layers:
        kept: State = {}
        try:
            if has_state(layer):
                kept = {"own": plain(layer.get_state())}
            elif changing(layer) is None:
                raise NotResumableError(lacks_state([layer]))
            else:
                if class_name(layer) in VEC_ENVS:
                    # First, since environments that fail in the call are replaced.
                    state["envs"] = _method_of_recorders(layer)("get_episode_state")
                    reasons += [env["reason"] for env in state["envs"]]
                kept = get_attributes(layer)
        except NotResumableError as error:
            reasons.append(str(error))
        state["vec_layers"].append(kept)
    state["reason"] = next(filter(None, reasons), None)
    return state


def set_state(vec_env: VecEnv, state: State) -> str | None:
    """Put environments where others were. They need not have been reset.

    :param vec_env: environments of the same kind, number and wrappers
    :param state: what :func:`get_state` returned
    :return: ``None``: they resume exactly where the others were. Otherwise the reason why they do not: reset them, so
        that new episodes start. Generators, and attributes that outlast an episode, are put back in any case
    :raises ValueError: other wrappers, or another number of environments; nothing is changed then
    :raises NotResumableError: the other environments were in a :class:`~ppo_plus.Resumable`, and these are not
    """
    vec_layers = _vec_layers(vec_env)
    titles = [_title(layer) for layer in vec_layers]
    if titles != state["layers"] or vec_env.num_envs != state["n_envs"]:
        raise ValueError(
            f"env has {vec_env.num_envs} environments in {' of '.join(titles)}, but the state is of "
            f"{state['n_envs']} in {' of '.join(state['layers'])}: make env as it was made before"
        )
    reasons: list[str | None] = [state["reason"]]
    # The single environments first, then the wrappers around them.
    for layer, kept in zip(reversed(vec_layers), reversed(state["vec_layers"]), strict=True):
        if "own" in kept:
            layer.set_state(copy.deepcopy(kept["own"]))
            continue
        set_attributes(layer, kept)
        if class_name(layer) in VEC_ENVS and state["envs"] is not None:
            call = _method_of_recorders(layer)
            for i, env in enumerate(state["envs"]):
                if "env_seeds" not in kept and hasattr(layer, "env_seeds"):
                    layer.env_seeds[i] = (env["generator"] or {}).get("seed")
                reasons += call("set_episode_state", env, indices=i)
    return next(filter(None, reasons), None)


def _vec_layers(vec_env: VecEnv) -> list[Any]:
    """The wrappers from the outermost on, and what they wrap, up to the first that returns its own state."""
    vec_layers = []
    for layer in layers(vec_env):
        vec_layers.append(layer)
        if has_state(layer) or not isinstance(layer, VecEnvWrapper):
            break
    return vec_layers


def _title(layer: VecEnv) -> str:
    """The same for classes that can take each other's state."""
    return "DummyVecEnv or SubprocVecEnv" if class_name(layer) in VEC_ENVS else type(layer).__name__


def _method_of_recorders(vec_env: VecEnv) -> Callable[..., list[Any]]:
    """A function that calls a method of the :class:`Resumable` of each environment.

    :raises NotResumableError: a vector environment of SB3 has none as the outermost wrapper of each environment
    """
    if hasattr(vec_env, "resumable_method"):
        return vec_env.resumable_method  # type: ignore[no-any-return]
    # First, since calling a method that an environment lacks would end its process.
    if not vec_env.has_attr("get_episode_state") or set(vec_env.env_method("class_name")) != {Resumable.__name__}:
        raise NotResumableError(
            "the single environments are not in a ppo_plus.Resumable, outermost: "
            "make_vec_env(..., wrapper_class=ppo_plus.Resumable)"
        )
    return vec_env.env_method  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Episode:
    """What a replay of the present episode needs."""

    #: The arguments of its reset, and the states of the generator and of wrappers before it.
    start: State = field(default_factory=dict)
    #: The attributes of each layer before the reset, not copied.
    attributes: list[State] = field(default_factory=list)
    actions: deque[Any] = field(default_factory=lambda: deque(maxlen=MAX_STEPS + 1))
    #: What the reset or the last step returned; empty: neither was called.
    last: tuple[Any, ...] = ()
    #: Why the episode cannot be replayed, or ``None``.
    reason: str | None = None


class Resumable(gym.Wrapper):
    """A wrapper that lets an environment resume in another process: see :mod:`ppo_plus.envs.resumable.state`.

    The vector environments that ``PPO_Plus``, ``ppo-plus`` and :func:`~ppo_plus.make_vec` make record by themselves. In
    SB3's, make it the outermost wrapper: ``make_vec_env(..., wrapper_class=ppo_plus.Resumable)``. Everything else is
    the environment's; an attribute that is set is set in the layer that has it.

    ``BipedalWalker`` and ``CarRacing`` get a new world at each reset: later episodes may be rounded differently.

    :param env: the environment, in its wrappers
    """

    #: Whether attributes are set in the environment, and not here.
    _is_made = False

    def __init__(self, env: gym.Env):
        super().__init__(env)
        inside: list[Any] = [layer for layer in layers(env) if not isinstance(layer, Resumable)]
        self._names = [type(layer).__name__ for layer in inside]
        self._base: Any = inside[-1].unwrapped
        with_state = [i for i, layer in enumerate(inside) if has_state(layer)]
        #: The outermost one that returns its own state and that of all it wraps; ``None``: the episode is replayed.
        self._stateful: Any = inside[with_state[0]] if with_state else None
        #: The wrappers around it, or all of them.
        self._wrappers = inside[: with_state[0]] if with_state else inside[:-1]
        unknown = [layer for layer in self._wrappers if changing(layer) is None]
        if self._stateful is None:
            if not class_name(self._base).startswith(REPLAYABLE):
                unknown.append(self._base)
            unknown = [layer for layer in unknown if not getattr(layer, "replayable", False)]
        #: Why it can neither be replayed nor return its state; ``None``: it can.
        self._reason = lacks_state(unknown) if unknown else None
        self._replays = self._stateful is None and self._reason is None
        self._episode = _Episode(reason=f"{env} was stepped before its Resumable was reset")
        #: The layers whose attributes a replay must reproduce, and what these are now.
        self._replayed = [*self._wrappers, self._base] if self._replays else []
        self._made = [dict(vars(layer)) for layer in self._replayed]
        #: The wrappers that remember something beyond a reset.
        self._lasting = [layer for layer in self._wrappers if not {*BEFORE_RESET}.isdisjoint(changing(layer) or ())]
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        # What Gymnasium and this class keep is not the environment's.
        if self._is_made and name not in ("_cached_spec", "_episode"):
            self.env.set_wrapper_attr(name, value)
        else:
            super().__setattr__(name, value)

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:  # type: ignore[override]
        episode = _Episode()
        try:
            episode.start["arguments"] = plain(kwargs)
        except NotResumableError as error:
            episode.reason = f"{self.env} was reset with {error}"
        if self._replays:
            # Without a generator the reset would make one, from an unknown seed.
            self._base.np_random  # noqa: B018
            if class_name(self._base) in WORLDS:
                # Its bodies go with the world they are in.
                self._base._destroy()
                self._base.world = type(self._base.world)(gravity=self._base.world.gravity)
            episode.start["generator"] = get_generator(self._base)
            episode.start["before_reset"] = [get_attributes(layer, BEFORE_RESET) for layer in self._lasting]
            episode.attributes = [dict(vars(layer)) for layer in self._replayed]
        self._episode = episode
        episode.last = result = self.env.reset(**kwargs)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        # In a few bytecodes: small environments take a step in a few microseconds.
        episode = self._episode
        if self._replays:
            # Copied, since callers may reuse their arrays.
            episode.actions.append(action if type(action) in IMMUTABLE else copy.deepcopy(action))
        episode.last = result = obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            # The reset may write into them before others have read them.
            obs, info = copied(obs, self.observation_space), copy.deepcopy(info)
            episode.last = result = obs, reward, terminated, truncated, info
        return result

    # --- what `get_state` and `set_state` call, also in other processes, which an error would end --------------------

    def get_episode_state(self) -> State:
        """What :func:`~ppo_plus.envs.resumable.state.get_state` needs of this environment, as plain values."""
        state: State = {
            "layers": self._names,
            "generator": get_generator(self._base),
            "wrappers": [{}] * len(self._wrappers),
            "episode": None,
            "reason": self._reason,
        }
        try:
            state["wrappers"] = [*map(get_attributes, self._wrappers)]
            if self._reason is None and self._episode.last:
                state["episode"] = self._episode_state(self._episode)
        except Exception as error:
            state["reason"] = self._reason_of(error)
        return state

    def _reason_of(self, error: Exception) -> str:
        return str(error) if isinstance(error, NotResumableError) else f"{self.env} raised {error!r}"

    def _episode_state(self, episode: _Episode) -> State:
        """:raises NotResumableError: the episode cannot be replayed"""
        if episode.reason is not None:
            raise NotResumableError(episode.reason)
        if self._stateful is not None:
            return episode.start | {"own": plain(self._stateful.get_state())}
        if len(episode.actions) > MAX_STEPS:
            raise NotResumableError(f"{self.env} is in an episode of more than {MAX_STEPS} steps")
        return episode.start | {
            # Not all, so that environments may be made with other arguments: then a replay ends elsewhere.
            "numbers": [*map(changed_numbers, self._made, episode.attributes)],
            "attributes": [*map(visible, self._replayed)],
            "n_steps": len(episode.actions),
            "actions": plain(tree_map(lambda *parts: np.stack(parts), *episode.actions)) if episode.actions else None,
            "fingerprint": self._fingerprint(),
        }

    def set_episode_state(self, state: State) -> str | None:
        """Put the environment where another one was; returns ``None``, or why this is not possible."""
        if self._names != state["layers"]:
            return f"{self.env} is {' of '.join(self._names)}, but the state is of {' of '.join(state['layers'])}"
        reason: str | None = state["reason"]
        try:
            if reason is None and state["episode"] is not None:
                with ExitStack() as silent:
                    for layer in self._wrappers:
                        if isinstance(layer, Monitor):  # which does not write to its file meanwhile
                            silent.enter_context(assigned(layer, results_writer=None))
                    self._go_to(state["episode"], state["generator"])
        except Exception as error:
            reason = self._reason_of(error)
        try:
            # Also if there is a reason: the environment can still be reset.
            set_generator(self._base, state["generator"])
            for layer, attributes in zip(self._wrappers, state["wrappers"], strict=True):
                set_attributes(layer, attributes)
        except Exception as error:
            reason = self._reason_of(error)
        return reason

    def _go_to(self, episode: State, generator: State | None) -> None:
        if self._stateful is not None:
            self.reset(**episode["arguments"])
            set_generator(self._base, generator)
            self._stateful.set_state(copy.deepcopy(episode["own"]))
            return
        set_generator(self._base, episode["generator"])
        for layer, attributes in zip(self._lasting, episode["before_reset"], strict=True):
            set_attributes(layer, attributes)
        for layer, numbers in zip(self._replayed, episode["numbers"], strict=True):
            set_numbers(layer, numbers)
        self.reset(**episode["arguments"])
        for i in range(episode["n_steps"]):
            self.step(tree_map(lambda rows: rows[i].copy(), episode["actions"]))  # noqa: B023
        if self._fingerprint() != episode["fingerprint"]:
            raise NotResumableError(
                f"the same actions led {self.env} elsewhere: it depends on more than its seed, or has other arguments"
            )
        for layer, attributes in zip(self._replayed, episode["attributes"], strict=True):
            for name, _ in attributes.items() - visible(layer).items():
                what = f"attribute {name!r} of {type(layer).__name__} in {self.env}"
                raise NotResumableError(f"{what} was set within the episode, or depends on more than its seed")

    def _fingerprint(self) -> str:
        """Equal if what the environment returned last, without the info, and its generator are equal bit by bit."""
        last = self._episode.last[: 4 if self._episode.actions else 1]
        return digest([last, get_generator(self._base)])


def as_resumable(env: gym.Env) -> Resumable:
    """The environment if it is a :class:`Resumable`, or else in one."""
    return env if isinstance(env, Resumable) else Resumable(env)
