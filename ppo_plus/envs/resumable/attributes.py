"""The parts of an environment that a file can contain: attributes and random generators as plain values, and back.

Environments and wrappers are known by the names of their classes: which of them can be replayed, and which of their
attributes change while they run. A subclass may have other attributes that change, so it is not known.
"""

import copy
import hashlib
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd as GymRunningMeanStd
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from ppo_plus.envs.checks import IMMUTABLE
from ppo_plus.envs.layers import Layer
from ppo_plus.generators import make_bit_generator

_GYM, _SB3, _CONTRIB = "gymnasium.wrappers.", "stable_baselines3.common.", "sb3_contrib.common.wrappers."

#: Modules of wrappers of single environments whose attributes do not change.
STATELESS = tuple(f"{_GYM}transform_{name}." for name in ("action", "observation", "reward"))
#: Other wrappers of single environments, and the attributes that change while they run.
WRAPPERS: dict[str, tuple[str, ...]] = {
    f"{_GYM}common.OrderEnforcing": (),
    f"{_GYM}common.PassiveEnvChecker": ("checked_render",),
    f"{_GYM}common.TimeLimit": ("_elapsed_steps",),
    f"{_GYM}common.RecordEpisodeStatistics": (
        *("episode_count", "time_queue", "return_queue", "length_queue", "episode_returns", "episode_lengths"),
        "episode_start_time",
    ),
    f"{_GYM}stateful_action.RepeatAction": (),
    f"{_GYM}stateful_action.StickyAction": ("last_action", "is_sticky_actions", "num_repeats", "repeats_taken"),
    f"{_GYM}stateful_observation.DelayObservation": ("observation_queue",),
    f"{_GYM}stateful_observation.FrameStackObservation": ("obs_queue", "padding_value"),
    f"{_GYM}stateful_observation.MaxAndSkipObservation": ("_obs_buffer",),
    f"{_GYM}stateful_observation.NormalizeObservation": ("obs_rms", "_update_running_mean"),
    f"{_GYM}stateful_observation.TimeAwareObservation": ("timesteps",),
    f"{_GYM}stateful_reward.NormalizeReward": ("return_rms", "discounted_reward", "_update_running_mean"),
    f"{_SB3}atari_wrappers.ClipRewardEnv": (),
    f"{_SB3}atari_wrappers.MaxAndSkipEnv": ("_obs_buffer",),
    f"{_SB3}atari_wrappers.StickyActionEnv": ("_sticky_action",),
    f"{_SB3}atari_wrappers.WarpFrame": (),
    f"{_SB3}monitor.Monitor": (
        *("episode_returns", "episode_lengths", "episode_times", "total_steps"),
        *("rewards", "needs_reset", "current_reset_info", "t_start"),
    ),
    f"{_CONTRIB}action_masker.ActionMasker": (),
    f"{_CONTRIB}time_feature.TimeFeatureWrapper": ("_current_step",),
    # rl_zoo3 replaces Gymnasium's TimeLimit when it is imported.
    "rl_zoo3.gym_patches.PatchedTimeLimit": ("_elapsed_steps",),
    "rl_zoo3.wrappers.MaskVelocityWrapper": (),
}
#: The attributes that a reset does not set and that change what the environment returns. An episode that ends within
#: the first skipped frames shows frames of the one before.
BEFORE_RESET = ("_obs_buffer", "obs_rms", "return_rms", "discounted_reward", "_update_running_mean")

_PENDING = ("_seeds", "_options")
_SUPERVISED = ("n_restarts", "n_steps", "env_seeds", "last_obs", "_replaced")
#: Vectorized environments of single ones, likewise.
VEC_ENVS: dict[str, tuple[str, ...]] = {
    f"{_SB3}vec_env.dummy_vec_env.DummyVecEnv": _PENDING,
    f"{_SB3}vec_env.subproc_vec_env.SubprocVecEnv": _PENDING,
    "ppo_plus.envs.lean_vec_env.LeanVecEnv": _PENDING,
    "ppo_plus.envs.supervised.vec_env.SupervisedVecEnv": (*_PENDING, *_SUPERVISED),
}
_NORMALIZED = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward", "training", "norm_reward", "gamma")
#: Wrappers of vectorized environments, and the attributes that change while they run.
VEC_WRAPPERS: dict[str, tuple[str, ...]] = {
    "ppo_plus.envs.make_vec.TupleAsDict": (),
    "ppo_plus.envs.agents.AgentsVecEnv": ("observed", "last_seen", "returns", "lengths", "last_returns"),
    f"{_SB3}vec_env.vec_check_nan.VecCheckNan": ("_user_warned",),
    f"{_SB3}vec_env.vec_extract_dict_obs.VecExtractDictObs": (),
    f"{_SB3}vec_env.vec_frame_stack.VecFrameStack": ("stacked_obs",),
    f"{_SB3}vec_env.vec_monitor.VecMonitor": ("episode_count", "episode_returns", "episode_lengths", "t_start"),
    f"{_SB3}vec_env.vec_normalize.VecNormalize": _NORMALIZED,
    f"{_SB3}vec_env.vec_transpose.VecTransposeImage": (),
    # A video that is being recorded when training stops is lost.
    f"{_SB3}vec_env.vec_video_recorder.VecVideoRecorder": ("step_id",),
}

_CHANGING = WRAPPERS | VEC_ENVS | VEC_WRAPPERS
#: Packages of environments whose episodes depend only on the generator, the arguments of the reset and the actions.
REPLAYABLE = tuple(f"gymnasium.envs.{name}." for name in ("classic_control", "toy_text", "box2d", "mujoco"))
#: Their worlds need to be new at each reset: what was in them before decides in which order Box2D sums up forces.
WORLDS = ("gymnasium.envs.box2d.bipedal_walker.BipedalWalker", "gymnasium.envs.box2d.car_racing.CarRacing")

#: What a file can contain.
Plain = None | bool | float | str | bytes | np.generic | np.ndarray | Collection[Any]
State = dict[str, Any]
#: Attributes with the start time of a monitor or an episode, and their clocks; states have the time since then.
CLOCKS: dict[str, Callable[[], float]] = {"t_start": time.time, "episode_start_time": time.perf_counter}
#: Attributes that are objects, and which attributes of these change.
_PARTS = {
    GymRunningMeanStd: ("mean", "var", "count"),
    RunningMeanStd: ("mean", "var", "count"),
    StackedObservations: ("stacked_obs", "sub_stacked_observations"),
}


def class_name(owner: Layer) -> str:
    """The name of an object's class, as in the tables."""
    return f"{type(owner).__module__}.{type(owner).__qualname__}"


def changing(layer: Layer) -> tuple[str, ...] | None:
    """The attributes of a wrapper or vector environment that change while it runs; ``None``: it is not known."""
    name = class_name(layer)
    return () if name.startswith(STATELESS) else _CHANGING.get(name)


class NotResumableError(RuntimeError):
    """The reason why an environment cannot resume within its episode."""


def plain(value: Any) -> Plain:
    """A copy that consists of plain values; raises :class:`NotResumableError` if it contains something else."""
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    # Vectorized environments return observations as the latter.
    if kind in (dict, OrderedDict):
        return {plain(key): plain(part) for key, part in value.items()}
    if kind in (list, tuple, set):
        return kind(map(plain, value))
    if kind is deque:
        return deque(map(plain, value), value.maxlen)
    if kind in _PARTS:
        return {name: plain(getattr(value, name)) for name in _PARTS[kind] if hasattr(value, name)}
    raise NotResumableError(f"{value!r:.80}, a {kind.__name__}, which is not a plain value")


def get_attributes(layer: Layer, only: Collection[str] | None = None) -> State:
    """The attributes of a layer that change, or ``only`` these of them, as plain values."""
    state: State = {}
    for name in changing(layer) or ():
        if name not in vars(layer) or (only is not None and name not in only):
            continue
        value = vars(layer)[name]
        if name in CLOCKS:
            state[name] = CLOCKS[name]() - value
        elif type(value) is list and set(map(type, value)) in ({int}, {float}):
            # The long lists of a `Monitor`.
            state[name] = np.array(value)
        else:
            state[name] = plain(value)
    return state


def set_attributes(layer: Layer, state: State) -> None:
    """Put back what :func:`get_attributes` returned."""
    for name in changing(layer) or ():
        if name in state:
            old, value = vars(layer).get(name), state[name]
            setattr(layer, name, CLOCKS[name]() - value if name in CLOCKS else _restored(old, value))


def changed_numbers(old: State, new: State) -> State:
    """The numbers and texts among the attributes ``new`` that differ from those in ``old``."""
    return {name: value for name, value in new.items() if type(value) in IMMUTABLE and differ(old.get(name), value)}


def set_numbers(layer: Layer, numbers: State) -> None:
    """Put back numbers and texts that the layer has, too."""
    for name in numbers.keys() & changed_numbers({}, vars(layer)).keys():
        setattr(layer, name, _restored(vars(layer)[name], numbers[name]))


def visible(layer: Layer) -> dict[str, str]:
    """Digests of a layer's attributes: plain values, and dataclasses of them; of a known wrapper, only the numbers and
    texts that :func:`get_attributes` does not return."""
    listed, found = changing(layer), {}
    for name, value in vars(layer).items():
        if listed is None or (name not in listed and type(value) in IMMUTABLE):
            with suppress(NotResumableError, TypeError):  # of keys that JSON does not have
                found[name] = digest(plain(vars(value) if is_dataclass(value) else value))
    return found


def digest(value: Plain) -> str:
    """Equal for nested lists and tuples of values that are equal bit by bit; NaN is equal to itself."""
    return hashlib.sha256(json.dumps(value, default=_bits).encode()).hexdigest()[:32]


def differ(a: Plain, b: Plain) -> bool:
    """Whether two plain values differ in any bit."""
    return a is not b and digest(a) != digest(b)


def _bits(value: Any) -> Any:
    if isinstance(value, set):
        return sorted(map(repr, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.shape, value.tobytes().hex()
    return repr(value)


def _restored(old: Any, value: Any) -> Any:
    """A plain value as the type of an attribute's present value ``old``."""
    if type(old) in _PARTS:
        new = copy.copy(old)
        for name, part in value.items():
            setattr(new, name, _restored(getattr(old, name), part))
        return new
    if isinstance(old, dict) and isinstance(value, dict):
        return {key: _restored(old.get(key), part) for key, part in value.items()}
    if isinstance(old, list) and isinstance(value, np.ndarray):
        return value.tolist()
    if not same_kind(old, value):
        raise TypeError(f"{value!r:.80} instead of {old!r:.80}")
    return copy.deepcopy(value)


def same_kind(old: Plain, new: Plain) -> bool:
    """Whether one plain value may stand for another: ``None`` and any value may, and else those of the same kind."""
    kinds: tuple[Any, ...] = (SupportsFloat, str, dict, (list, tuple, set, deque, np.ndarray), type(old))
    return old is None or new is None or any(isinstance(old, kind) and isinstance(new, kind) for kind in kinds)


def get_generator(env: gym.Env) -> State | None:
    """The generator ``np_random`` of an environment; ``None``: it has none that can be restored."""
    generator = env._np_random
    if not isinstance(generator, np.random.Generator):
        return None
    return {"seed": env._np_random_seed, "state": generator.bit_generator.state}


def set_generator(env: gym.Env, state: State | None) -> None:
    """Put back what :func:`get_generator` returned; raises as :func:`~ppo_plus.generators.make_bit_generator`."""
    if state is None:
        if isinstance(env._np_random, np.random.Generator):
            env._np_random = None
        return
    bits, generator = make_bit_generator(state["state"]), env._np_random
    if generator is not None and type(generator.bit_generator) is type(bits):
        # The same object, which others may have, too.
        generator.bit_generator.state = state["state"]
    else:
        env._np_random = np.random.Generator(bits)
    env._np_random_seed = state["seed"]


def has_state(owner: Layer) -> bool:
    """Whether its class has ``get_state`` and ``set_state``; a wrapper also passes on those of what it wraps."""
    return all(callable(getattr(type(owner), name, None)) for name in ("get_state", "set_state"))


def lacks_state(owners: Sequence[Layer]) -> str:
    """The reason why these cannot resume."""
    names = [type(owner).__name__ for owner in owners]
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} no get_state and set_state"
