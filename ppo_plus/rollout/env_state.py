"""Environments that go on, in another process, exactly where they stood.

:func:`get_state` takes the state of vectorized environments as plain values, :func:`set_state` puts it into freshly
made ones, at any step, also in the middle of an episode. Simulators cannot be copied from outside, but they can be
*replayed*: :class:`Resumable`, outermost around each single environment, remembers what the present episode is made of
(the state of the generator ``np_random`` before its reset, the arguments of the reset, and the actions since). Reset
and stepped likewise, a new environment stands where the old one stood, with all the wrappers in between. What the
replay gives last is compared with what was last, bit by bit.

What is replayed:

- environments of ``gymnasium.envs``: classic control, toy text, Box2D and MuJoCo;
- wrappers listed in ``WRAPPERS``, with what they keep beyond an episode;
- classes that say ``replayable = True`` in their body: with the same ``np_random``, arguments of ``reset`` and actions,
  an episode of theirs is always the same, whatever was before it.

Any other environment or wrapper has two methods instead, and with them it speaks for itself and for all that it wraps:

- ``get_state()`` returns its state: ``None``, numbers, strings, bytes, NumPy arrays, and lists, tuples, sets, deques
  and dicts of them. ``np_random`` need not be in it.
- ``set_state(state)`` puts it back. The environment has been reset before, with the arguments of its last reset.

Where one has neither, :func:`get_state` says so, and :func:`set_state` puts back what there is: generators, and what
wrappers keep beyond an episode.
"""

import copy
import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd as GymRunningMeanStd
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from ppo_plus.rollout.supervised import SupervisedVecEnv

#: What steps single environments.
VEC_ENVS = (DummyVecEnv, SubprocVecEnv, SupervisedVecEnv)

#: Plain values, which a file can hold.
State = dict[str, Any]

#: Names of attributes, and for points in time the clock they were read from.
Clocks = dict[str, Callable[[], float] | None]


@dataclass(frozen=True)
class Kept:
    """The attributes that change while a wrapper runs, all of them.

    :param lasting: those that outlast an episode, and change what comes out
    :param record: those that outlast an episode, and are only looked at
    :param episode: those that each reset sets anew
    :param clocks: those that are points in time, and the clock they were read from
    """

    lasting: tuple[str, ...] = ()
    record: tuple[str, ...] = ()
    episode: tuple[str, ...] = ()
    clocks: Mapping[str, Callable[[], float]] = field(default_factory=dict)


_GYM, _SB3, _CONTRIB = "gymnasium.wrappers.", "stable_baselines3.common.", "sb3_contrib.common.wrappers."
_NORMALIZED = ("_update_running_mean",)

#: Wrappers of single environments, by the names of their classes. A subclass may keep more, and is not among them.
WRAPPERS: dict[str, Kept] = {
    **{
        f"{_GYM}{name}": Kept()
        for name in (
            "common.OrderEnforcing",
            "common.PassiveEnvChecker",
            "stateful_action.RepeatAction",
            "transform_action.ClipAction",
            "transform_action.DiscretizeAction",
            "transform_action.RescaleAction",
            "transform_action.TransformAction",
            "transform_observation.AddRenderObservation",
            "transform_observation.DiscretizeObservation",
            "transform_observation.DtypeObservation",
            "transform_observation.FilterObservation",
            "transform_observation.FlattenObservation",
            "transform_observation.GrayscaleObservation",
            "transform_observation.RescaleObservation",
            "transform_observation.ReshapeObservation",
            "transform_observation.ResizeObservation",
            "transform_observation.TransformObservation",
            "transform_reward.ClipReward",
            "transform_reward.TransformReward",
        )
    },
    f"{_GYM}common.TimeLimit": Kept(episode=("_elapsed_steps",)),
    f"{_GYM}common.RecordEpisodeStatistics": Kept(
        record=("episode_count", "time_queue", "return_queue", "length_queue"),
        episode=("episode_returns", "episode_lengths"),
        clocks={"episode_start_time": time.perf_counter},
    ),
    f"{_GYM}stateful_action.StickyAction": Kept(
        episode=("last_action", "is_sticky_actions", "num_repeats", "repeats_taken")
    ),
    f"{_GYM}stateful_observation.DelayObservation": Kept(episode=("observation_queue",)),
    f"{_GYM}stateful_observation.FrameStackObservation": Kept(episode=("obs_queue", "padding_value")),
    # An episode that ends within the first skipped frames shows frames of the one before.
    f"{_GYM}stateful_observation.MaxAndSkipObservation": Kept(lasting=("_obs_buffer",)),
    f"{_GYM}stateful_observation.NormalizeObservation": Kept(lasting=("obs_rms", *_NORMALIZED)),
    f"{_GYM}stateful_observation.TimeAwareObservation": Kept(episode=("timesteps",)),
    f"{_GYM}stateful_reward.NormalizeReward": Kept(lasting=("return_rms", "discounted_reward", *_NORMALIZED)),
    f"{_SB3}atari_wrappers.ClipRewardEnv": Kept(),
    f"{_SB3}atari_wrappers.MaxAndSkipEnv": Kept(lasting=("_obs_buffer",)),
    f"{_SB3}atari_wrappers.StickyActionEnv": Kept(episode=("_sticky_action",)),
    f"{_SB3}atari_wrappers.WarpFrame": Kept(),
    f"{_SB3}monitor.Monitor": Kept(
        record=("episode_returns", "episode_lengths", "episode_times", "total_steps"),
        episode=("rewards", "needs_reset", "current_reset_info"),
        clocks={"t_start": time.time},
    ),
    f"{__name__}.Resumable": Kept(),
    f"{_CONTRIB}action_masker.ActionMasker": Kept(),
    f"{_CONTRIB}time_feature.TimeFeatureWrapper": Kept(episode=("_current_step",)),
}

#: Likewise, of vectorized environments.
VEC_WRAPPERS: dict[str, Kept] = {
    f"{_SB3}vec_env.{name}": kept
    for name, kept in {
        "vec_check_nan.VecCheckNan": Kept(record=("_user_warned",)),
        "vec_extract_dict_obs.VecExtractDictObs": Kept(),
        "vec_frame_stack.VecFrameStack": Kept(lasting=("stacked_obs",)),
        "vec_monitor.VecMonitor": Kept(
            record=("episode_count", "episode_returns", "episode_lengths"), clocks={"t_start": time.time}
        ),
        "vec_normalize.VecNormalize": Kept(
            lasting=("obs_rms", "ret_rms", "returns", "old_obs", "old_reward", "training", "norm_reward")
        ),
        "vec_transpose.VecTransposeImage": Kept(),
        # A film that is being taken when training stops is lost.
        "vec_video_recorder.VecVideoRecorder": Kept(record=("step_id",)),
    }.items()
}

#: Packages of environments whose episodes depend on nothing but generator, arguments of the reset and actions, ...
REPLAYABLE = tuple(f"gymnasium.envs.{name}." for name in ("classic_control", "toy_text", "box2d", "mujoco"))
_BOX2D = "gymnasium.envs.box2d."
#: ... but for these attributes, which outlast an episode (colors: ``reset(options={"randomize": False})``), ...
LASTING = {f"{_BOX2D}car_racing.CarRacing": ("road_color", "bg_color", "grass_color")}
#: ... and for these worlds: what was in them before decides in which order Box2D sums up forces. They get a new one at
#: each reset, as ``LunarLander`` gives itself.
WORLDS = (f"{_BOX2D}bipedal_walker.BipedalWalker", f"{_BOX2D}car_racing.CarRacing")
#: Attributes drawn when the environment was made, which the new one must have too.
MADE = {"gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv": ("desc",)}

#: Longer episodes are not remembered, for the sake of memory and of the time it would take to replay them.
MAX_STEPS = 100_000

#: Objects among the attributes, and which of theirs change.
_PARTS = {
    GymRunningMeanStd: ("mean", "var", "count"),
    RunningMeanStd: ("mean", "var", "count"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
}
_IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None), *np.sctypeDict.values()} - {np.void, np.object_})


class NotResumableError(RuntimeError):
    """The reason why an environment cannot go on where it stood."""


# --- vectorized environments -----------------------------------------------------------------------------------------


def get_state(vec_env: VecEnv) -> State:
    """The state of environments, between two steps.

    :param vec_env: a ``DummyVecEnv``, ``SubprocVecEnv`` or ``SupervisedVecEnv`` of :class:`Resumable` environments, in
        vector wrappers or not
    :return: plain values, of which nothing changes later. Under ``"reason"``: ``None``, or why the episodes that the
        environments are in cannot be gone on with
    """
    state: State = {"layers": [], "kept": [], "envs": None, "n_envs": vec_env.num_envs, "reason": None}
    state["action_space"] = [_generator(space) for space in _spaces(vec_env.action_space)]
    reasons: list[str | None] = []
    for layer in _vec_layers(vec_env):
        state["layers"].append(_title(layer))
        kept: State = {}
        try:
            if _speaks(layer):
                kept = {"spoken": _spoken(layer)}
            elif type(layer) in VEC_ENVS:
                kept = {"seeds": _plain(layer._seeds), "options": _plain(layer._options)}
                _require_wrapped(layer)
                state["envs"] = _call(layer, "get_episode_state", [()] * layer.num_envs)
                reasons += [env["reason"] for env in state["envs"]]
                if isinstance(layer, SupervisedVecEnv):
                    # After the call, in which environments may be replaced.
                    kept["supervision"] = _plain(layer.get_supervision())
            elif _name(layer) in VEC_WRAPPERS:
                kept = _taken(layer, _all(VEC_WRAPPERS[_name(layer)]))
            else:
                raise NotResumableError(_mute([layer]))
        except NotResumableError as error:
            reasons.append(str(error))
        state["kept"].append(kept)
    state["reason"] = next((reason for reason in reasons if reason is not None), None)
    return state


def set_state(vec_env: VecEnv, state: State) -> str | None:
    """Put environments where others stood. They need not have been reset.

    :param vec_env: environments of the same kind, number and wrappers
    :param state: what :func:`get_state` returned
    :return: ``None``: they go on exactly as the others would have. Else the reason why they do not: reset them, their
        episodes begin anew. Generators, and what wrappers keep beyond an episode, are put back all the same
    :raises ValueError: other wrappers, or another number of environments; nothing has changed then
    :raises NotResumableError: the other environments were in a :class:`Resumable`, and these are not
    """
    layers = list(_vec_layers(vec_env))
    found = [_title(layer) for layer in layers]
    if found != state["layers"] or vec_env.num_envs != state["n_envs"]:
        raise ValueError(
            f"env={vec_env!r} is {vec_env.num_envs} environments in {' of '.join(found)}, but the state is of "
            f"{state['n_envs']} in {' of '.join(state['layers'])}: make them as they were made before"
        )
    reasons: list[str | None] = [state["reason"]]
    for space, generator in zip(_spaces(vec_env.action_space), state["action_space"], strict=True):
        _set_generator(space, generator)
    # From the inside out, so that the single environments come first.
    for layer, kept in zip(reversed(layers), reversed(state["kept"]), strict=True):
        if "spoken" in kept:
            _apply(layer, kept["spoken"])
        elif type(layer) in VEC_ENVS:
            if kept:
                layer._seeds, layer._options = copy.deepcopy((kept["seeds"], kept["options"]))
            if "supervision" in kept and isinstance(layer, SupervisedVecEnv):
                layer.set_supervision(kept["supervision"])
            if state["envs"] is not None:
                _require_wrapped(layer)
                reasons += _call(layer, "set_episode_state", [(env,) for env in state["envs"]])
        elif _name(layer) in VEC_WRAPPERS:
            _put(layer, _all(VEC_WRAPPERS[_name(layer)]), kept)
    return next((reason for reason in reasons if reason is not None), None)


def _vec_layers(vec_env: VecEnv) -> Iterator[Any]:
    """The wrappers from the outermost on, and what they wrap; those behind one that speaks for them are left out."""
    layer: Any = vec_env
    while True:
        yield layer
        if _speaks(layer) or not isinstance(layer, VecEnvWrapper):
            return
        layer = layer.venv


def _title(layer: VecEnv) -> str:
    """What two of a kind have in common."""
    return "DummyVecEnv or SubprocVecEnv" if type(layer) in VEC_ENVS else type(layer).__name__


def _require_wrapped(vec_env: Any) -> None:
    """:raises NotResumableError: the outermost wrapper of each environment is not a :class:`Resumable`"""
    # Asked first, since an environment without such a name would end its process.
    if not vec_env.has_attr("get_episode_state") or set(vec_env.env_method("class_name")) != {Resumable.__name__}:
        raise NotResumableError(
            "the single environments are not in a ppo_plus.Resumable, outermost: "
            "make_vec_env(..., wrapper_class=ppo_plus.Resumable)"
        )


def _call(vec_env: Any, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Call a method of every environment, of each with its own arguments, in all processes at once."""
    if isinstance(vec_env, DummyVecEnv):
        return [getattr(env, method)(*each) for env, each in zip(vec_env.envs, arguments, strict=True)]
    if isinstance(vec_env, SupervisedVecEnv):
        # A replay takes as long as it takes.
        return vec_env.call({i: ("env_method", method, each, {}) for i, each in enumerate(arguments)}, math.inf)
    # `env_method` would hand the same arguments to all.
    for remote, each in zip(vec_env.remotes, arguments, strict=True):
        remote.send(("env_method", (method, each, {})))
    return [remote.recv() for remote in vec_env.remotes]


# --- single environments ---------------------------------------------------------------------------------------------


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
    """Lets an environment go on, in another process, where it stood: see :mod:`ppo_plus.rollout.env_state`.

    ``PPO_Plus`` and ``ppo-plus`` put it around the single environments that they make or are given. In a vectorized
    environment of your own, put it outermost: ``make_vec_env(..., wrapper_class=ppo_plus.Resumable)``. Everything else
    is the environment's; an attribute that is set is set there.

    ``BipedalWalker`` is given a new Box2D world at each reset: its later episodes then differ from those without this
    wrapper by rounding.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._layers = _Layers(env)
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
                episode.arguments = _plain(kwargs)
            except NotResumableError as error:
                episode.reason = f"{self.env} was reset with {error}"
        if self._replays:
            # Without a generator the reset would make one, from a seed that nobody knows.
            self._layers.base.np_random  # noqa: B018
            if self._layers.has_world:
                _renew_world(self._layers.base)
            episode.generator = _generator(self._layers.base)
            episode.lasting = [_taken(*each) for each in self._layers.lasting]
        # The attribute is this object's own, and not the environment's.
        vars(self)["_episode"] = episode
        result = self.env.reset(**kwargs)
        episode.last = result
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        # In a few bytecodes: small environments take a step in a few microseconds.
        episode = self._episode
        # Copied, since callers use arrays again.
        episode.actions.append(action if type(action) in _IMMUTABLE else _copied(action))
        episode.last = result = self.env.step(action)
        return result

    # --- what `get_state` and `set_state` call, also in other processes: an error would end these -------------------

    def get_episode_state(self) -> State:
        """What :func:`get_state` keeps of this environment.

        :return: plain values; ``"reason"`` is as there
        """
        layers = self._layers
        state: State = {
            "layers": layers.names,
            "generator": _generator(layers.base),
            "kept": [{}] * len(layers.kept),
            "episode": None,
            "reason": None,
        }

        def take() -> None:
            state["kept"] = [_taken(*each) for each in layers.kept]
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
            return {**state, "spoken": _spoken(self._layers.speaker)}
        if self._touched:
            raise NotResumableError(f"attribute {self._touched[0]!r} of {self.env} was set from outside")
        if len(episode.actions) > MAX_STEPS:
            raise NotResumableError(f"{self.env} is in an episode of more than {MAX_STEPS} steps")
        return {
            **state,
            "generator": episode.generator,
            "lasting": episode.lasting,
            "made": _taken(self._layers.base, self._layers.made),
            "n_steps": len(episode.actions),
            "actions": _plain(_stacked(list(episode.actions))) if episode.actions else None,
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

        def put() -> None:
            _set_generator(layers.base, state["generator"])
            _put_all(layers.kept, state["kept"])

        reason = state["reason"]
        if reason is None and state["episode"] is not None:
            with layers.silent():
                reason = self._tried(lambda: self._go_to(state["episode"], state["generator"]))
        # Also where there is a reason: the environment can still be reset.
        return self._tried(put) or reason

    def _go_to(self, episode: State, generator: State | None) -> None:
        """:raises NotResumableError: this is not possible"""
        layers = self._layers
        if layers.speaker is not None:
            self.reset(**episode["arguments"])
            _set_generator(layers.base, generator)
            _apply(layers.speaker, episode["spoken"])
            return
        if _fingerprint(_taken(layers.base, layers.made)) != _fingerprint(episode["made"]):
            raise NotResumableError(f"{self.env} was made with another map: pass desc or map_name")
        layers.base.np_random  # noqa: B018
        _set_generator(layers.base, episode["generator"])
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
        return _fingerprint([last, _generator(self._layers.base)])


class _Layers:
    """What an environment is made of.

    :param env: the environment, in its wrappers
    """

    def __init__(self, env: gym.Env):
        layers = list(_layers(env))
        self.names = [type(layer).__name__ for layer in layers]
        self.base: Any = layers[-1].unwrapped
        speakers = [i for i, layer in enumerate(layers) if _speaks(layer)]
        #: The outermost one that speaks for itself and all that it wraps, or ``None``: the episode is replayed.
        self.speaker = layers[speakers[0]] if speakers else None
        #: The wrappers around it, or all of them.
        outer = layers[: speakers[0]] if speakers else layers[:-1]
        self.made: Clocks = dict.fromkeys(MADE.get(_name(self.base), ()))
        self.has_world = _name(self.base) in WORLDS
        self.wrappers = [(layer, WRAPPERS.get(_name(layer), Kept())) for layer in outer]
        unknown = [layer for layer in outer if _name(layer) not in WRAPPERS]
        if self.speaker is None:
            if not _name(self.base).startswith(REPLAYABLE):
                unknown.append(self.base)
            unknown = [layer for layer in unknown if not vars(type(layer)).get("replayable", False)]
        #: Why it can be neither replayed nor asked; ``None``: it can.
        self.mute = _mute(unknown) if unknown else None

        base = (self.base, dict.fromkeys(LASTING.get(_name(self.base), ()) if self.speaker is None else ()))
        #: Whose attributes a replay must find, with their names.
        self.lasting = [(layer, dict.fromkeys(kept.lasting)) for layer, kept in self.wrappers if kept.lasting]
        self.lasting += [base] if base[1] else []
        #: Those to be put back where a replay is over, and where there is none; then all.
        self.kept = [*((layer, _all(kept, episode=speakers != [])) for layer, kept in self.wrappers), base]

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


def _layers(env: gym.Env) -> Iterator[gym.Env]:
    """The wrappers from the outermost on, and the environment."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _name(owner: Any) -> str:
    return f"{type(owner).__module__}.{type(owner).__qualname__}"


def _mute(layers: list[Any]) -> str:
    """Why these cannot go on."""
    names = [type(layer).__name__ for layer in layers]
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} no get_state and set_state"


def _speaks(owner: Any) -> bool:
    """Whether it has the two methods itself; wrappers pass on what they do not have."""
    return all(callable(getattr(type(owner), name, None)) for name in ("get_state", "set_state"))


def _spoken(owner: Any) -> Any:
    """:raises NotResumableError: it cannot tell, or not in plain values"""
    try:
        return _plain(owner.get_state())
    except NotResumableError as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() returned {error}") from None
    except Exception as error:
        raise NotResumableError(f"{type(owner).__name__}.get_state() raised {error!r}") from error


def _apply(owner: Any, state: Any) -> None:
    owner.set_state(copy.deepcopy(state))


def _renew_world(base: Any) -> None:
    """Give an environment of :data:`WORLDS` a new one, before its reset."""
    gravity = base.world.gravity
    # Its bodies go with the world they are in.
    base._destroy()
    base.world = type(base.world)(gravity=gravity)


# --- generators ------------------------------------------------------------------------------------------------------


def _generator(owner: Any) -> State | None:
    """The generator of an environment or a space; ``None``: it has made none."""
    generator = owner._np_random
    if generator is None:
        return None
    return {"seed": getattr(owner, "_np_random_seed", None), "state": generator.bit_generator.state}


def _set_generator(owner: Any, state: State | None) -> None:
    if state is None:
        owner._np_random = None
        return
    kind = getattr(np.random, state["state"]["bit_generator"], None)
    if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
        raise ValueError(f"bit_generator={state['state']['bit_generator']!r} is none of NumPy's")
    if owner._np_random is None or type(owner._np_random.bit_generator) is not kind:
        owner._np_random = np.random.Generator(kind())
    owner._np_random.bit_generator.state = state["state"]
    if hasattr(owner, "_np_random_seed"):
        owner._np_random_seed = state["seed"]


def _spaces(space: spaces.Space) -> Iterator[spaces.Space]:
    """A space and its parts, each of which has a generator."""
    yield space
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in space.values() if isinstance(space, spaces.Dict) else space:
            yield from _spaces(sub)


# --- plain values ----------------------------------------------------------------------------------------------------


def _all(kept: Kept, episode: bool = True) -> Clocks:
    """The names of what is kept, and for points in time their clock."""
    names = (*kept.lasting, *kept.record, *(kept.episode if episode else ()))
    return {**dict.fromkeys(names), **kept.clocks}


def _taken(owner: Any, clocks: Clocks) -> State:
    """Attributes that an object has, as plain values; points in time as the seconds since."""
    held = vars(owner)
    return {
        name: _packed(held[name]) if clock is None else clock() - held[name]
        for name, clock in clocks.items()
        if name in held
    }


def _put_all(owners: list[tuple[Any, Clocks]], states: list[State]) -> None:
    for (owner, clocks), state in zip(owners, states, strict=True):
        _put(owner, clocks, state)


def _put(owner: Any, clocks: Clocks, state: State) -> None:
    """Put back what :func:`_taken` returned."""
    for name, clock in clocks.items():
        if name in state:
            old = vars(owner).get(name)
            setattr(owner, name, _restored(old, state[name]) if clock is None else clock() - state[name])


def _packed(value: Any) -> Any:
    """As :func:`_plain`; long lists of numbers, which ``Monitor`` keeps, as an array."""
    if type(value) is list and set(map(type, value)) in ({int}, {float}):
        return np.array(value)
    return _plain(value)


def _restored(old: Any, value: Any) -> Any:
    """What :func:`_packed` made of an attribute, again of the kind of its present value ``old``."""
    if type(old) in _PARTS:
        new = copy.copy(old)
        for name, part in value.items():
            setattr(new, name, _restored(getattr(old, name), part))
        return new
    if isinstance(old, dict) and isinstance(value, dict):
        return {key: _restored(old.get(key), each) for key, each in value.items()}
    if isinstance(old, list) and isinstance(value, np.ndarray):
        return value.tolist()
    return copy.deepcopy(value)


def _plain(value: Any) -> Any:
    """A copy that is made of plain values.

    :raises NotResumableError: something else is in it
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    # Vectorized environments return observations as the latter.
    if kind in (dict, OrderedDict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if kind in (list, tuple, set):
        return kind(_plain(each) for each in value)
    if kind is deque:
        return deque(map(_plain, value), value.maxlen)
    if kind in _PARTS:
        return {name: _plain(getattr(value, name)) for name in _PARTS[kind] if hasattr(value, name)}
    raise NotResumableError(f"{value!r:.80}, a {kind.__name__}, which is no plain value")


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


def _fingerprint(value: Any) -> str:
    """Equal for values that are equal bit by bit, NaN included."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        digest.update(f"{type(part).__name__}(".encode())
        if isinstance(part, dict):
            for key, each in part.items():
                add(key)
                add(each)
        elif isinstance(part, (list, tuple)):
            for each in part:
                add(each)
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode() + part.tobytes())
        else:
            digest.update(repr(part).encode())
        digest.update(b")")

    add(value)
    return digest.hexdigest()
