"""Environments that go on, in another process, exactly where they stood.

:func:`get_state` takes the state of vectorized environments as plain values, :func:`set_state` puts it into freshly
made ones, at any step, also in the middle of an episode. Simulators cannot be copied from outside, but they can be
*replayed*: :class:`~ppo_plus.Resumable`, outermost around each single environment, remembers what the present episode
is made of (the state of the generator ``np_random`` before its reset, the arguments of the reset, and the actions
since). Reset and stepped likewise, a new environment stands where the old one stood, with all the wrappers in between.
What the replay gives last is compared with what was last, bit by bit.

What is replayed:

- environments of ``gymnasium.envs``: classic control, toy text, Box2D and MuJoCo;
- wrappers listed in ``ppo_plus.envs.resumable.known_envs``, with what they keep beyond an episode;
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
import math
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from ppo_plus.envs.normalization import MOMENTS
from ppo_plus.envs.resumable.known_envs import VEC_WRAPPERS, listed_as
from ppo_plus.envs.resumable.layers import mute_reason, put_spoken, speaks, spoken
from ppo_plus.envs.resumable.np_random import generator_of, set_generator, with_parts
from ppo_plus.envs.resumable.plain_values import NotResumableError, State, plain, put, taken
from ppo_plus.envs.resumable.wrapper import Resumable
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv

#: What steps single environments.
VEC_ENVS = (DummyVecEnv, SubprocVecEnv, SupervisedVecEnv)


def get_state(vec_env: VecEnv) -> State:
    """The state of environments, between two steps.

    :param vec_env: a ``DummyVecEnv``, ``SubprocVecEnv`` or ``SupervisedVecEnv`` of :class:`~ppo_plus.Resumable`
        environments, in vector wrappers or not
    :return: plain values, of which nothing changes later. Under ``"reason"``: ``None``, or why the episodes that the
        environments are in cannot be gone on with
    """
    state: State = {"layers": [], "kept": [], "envs": None, "n_envs": vec_env.num_envs, "reason": None}
    state["action_space"] = [generator_of(space) for space in with_parts(vec_env.action_space)]
    reasons: list[str | None] = []
    for layer in _vec_layers(vec_env):
        state["layers"].append(_title(layer))
        kept: State = {}
        try:
            if speaks(layer):
                kept = {"spoken": spoken(layer)}
            elif type(layer) in VEC_ENVS:
                kept = {"seeds": plain(layer._seeds), "options": plain(layer._options)}
                _require_wrapped(layer)
                state["envs"] = _call(layer, "get_episode_state", [()] * layer.num_envs)
                reasons += [env["reason"] for env in state["envs"]]
                if isinstance(layer, SupervisedVecEnv):
                    # After the call, in which environments may be replaced.
                    kept["supervision"] = plain(layer.get_supervision())
            elif listed_as(layer) in VEC_WRAPPERS:
                kept = taken(layer, VEC_WRAPPERS[listed_as(layer)].names())
            else:
                raise NotResumableError(mute_reason([layer]))
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
    :raises NotResumableError: the other environments were in a :class:`~ppo_plus.Resumable`, and these are not
    """
    layers = list(_vec_layers(vec_env))
    found = [_title(layer) for layer in layers]
    if found != state["layers"] or vec_env.num_envs != state["n_envs"]:
        raise ValueError(
            f"env has {vec_env.num_envs} environments in {' of '.join(found)}, but the state is of "
            f"{state['n_envs']} in {' of '.join(state['layers'])}: make env as it was made before"
        )
    reasons: list[str | None] = [state["reason"]]
    for space, generator in zip(with_parts(vec_env.action_space), state["action_space"], strict=True):
        set_generator(space, generator)
    # From the inside out, so that the single environments come first.
    for layer, kept in zip(reversed(layers), reversed(state["kept"]), strict=True):
        if "spoken" in kept:
            put_spoken(layer, kept["spoken"])
        elif type(layer) in VEC_ENVS:
            if kept:
                layer._seeds, layer._options = copy.deepcopy((kept["seeds"], kept["options"]))
            if "supervision" in kept and isinstance(layer, SupervisedVecEnv):
                layer.set_supervision(kept["supervision"])
            if state["envs"] is not None:
                _require_wrapped(layer)
                reasons += _call(layer, "set_episode_state", [(env,) for env in state["envs"]])
        elif listed_as(layer) in VEC_WRAPPERS:
            put(layer, VEC_WRAPPERS[listed_as(layer)].names(), kept)
    return next((reason for reason in reasons if reason is not None), None)


def set_statistics(vec_env: VecEnv, state: State) -> None:
    """Put back what does not depend on how many environments there are: what a ``VecNormalize`` normalizes by.

    :param vec_env: environments of the same kind
    :param state: what :func:`get_state` returned, of any number
    """
    for layer, title, kept in zip(_vec_layers(vec_env), state["layers"], state["kept"], strict=False):
        if isinstance(layer, VecNormalize) and _title(layer) == title:
            put(layer, dict.fromkeys(MOMENTS), kept)


def _vec_layers(vec_env: VecEnv) -> Iterator[Any]:
    """The wrappers from the outermost on, and what they wrap; those behind one that speaks for them are left out."""
    layer: Any = vec_env
    while True:
        yield layer
        if speaks(layer) or not isinstance(layer, VecEnvWrapper):
            return
        layer = layer.venv


def _title(layer: VecEnv) -> str:
    """What two of a kind have in common."""
    return "DummyVecEnv or SubprocVecEnv" if type(layer) in VEC_ENVS else type(layer).__name__


def _require_wrapped(vec_env: Any) -> None:
    """:raises NotResumableError: the outermost wrapper of each environment is not a :class:`~ppo_plus.Resumable`"""
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
