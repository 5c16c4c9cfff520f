"""The state of vectorized environments, with which others resume in another process exactly where these are.

:func:`get_state` returns the state as plain values, :func:`set_state` puts it into newly made environments, at any
step, also in the middle of an episode. :class:`~ppo_plus.Resumable`, outermost around each single environment, records
what a *replay* of the present episode needs: the generator ``np_random`` before its reset, the arguments of the reset,
and the actions since. What the replay returns last is compared with what the old environment returned last, bit by bit.
What is replayed:

- environments of ``gymnasium.envs``: classic control, toy text, Box2D and MuJoCo;
- wrappers listed in ``ppo_plus.envs.resumable.known_envs``, with the attributes that outlast an episode;
- classes with ``replayable = True`` in their body, which says: with the same ``np_random``, arguments of ``reset`` and
  actions, an episode is always the same, whatever came before it.

Any other environment or wrapper needs two methods. They are responsible for all that it wraps, too:

- ``get_state()`` returns its state: ``None``, numbers, strings, bytes, NumPy arrays, and lists, tuples, sets, deques
  and dicts of them. It need not contain ``np_random``.
- ``set_state(state)`` puts it back. The environment has been reset before, with the arguments of its last reset.

If one has neither, :func:`get_state` says so, and :func:`set_state` puts back what there is.
"""

import copy
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from ppo_plus.envs.resumable.known_envs import VEC_ENVS, VEC_WRAPPERS, class_name
from ppo_plus.envs.resumable.plain_values import (
    NotResumableError,
    State,
    get_attributes,
    has_state,
    lacks_state,
    own_state,
    set_attributes,
)
from ppo_plus.envs.resumable.wrapper import Resumable

#: The attributes of vectorized environments and of their wrappers that change.
CHANGING = VEC_ENVS | VEC_WRAPPERS


def get_state(vec_env: VecEnv) -> State:
    """The state of environments, between two steps.

    :param vec_env: a ``DummyVecEnv``, ``SubprocVecEnv`` or ``SupervisedVecEnv`` of :class:`~ppo_plus.Resumable`
        environments, in vector wrappers or not
    :return: plain values, which do not change later. ``"reason"`` is ``None``, or says why others cannot resume within
        the present episodes
    """
    layers = _vec_layers(vec_env)
    titles = [_title(layer) for layer in layers]
    state: State = {"layers": titles, "vec_layers": [], "envs": None, "n_envs": vec_env.num_envs, "reason": None}
    reasons: list[str | None] = []
    for layer in layers:
        kept: State = {}
        try:
            if has_state(layer):
                kept = {"own": own_state(layer)}
            elif class_name(layer) not in CHANGING:
                raise NotResumableError(lacks_state([layer]))
            else:
                if class_name(layer) in VEC_ENVS:
                    _require_wrapped(layer)
                    # First, since environments that fail in the call are replaced.
                    state["envs"] = layer.env_method("get_episode_state")
                    reasons += [env["reason"] for env in state["envs"]]
                kept = get_attributes(layer, CHANGING[class_name(layer)])
        except NotResumableError as error:
            reasons.append(str(error))
        state["vec_layers"].append(kept)
    state["reason"] = next((reason for reason in reasons if reason is not None), None)
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
    layers = _vec_layers(vec_env)
    found = [_title(layer) for layer in layers]
    if found != state["layers"] or vec_env.num_envs != state["n_envs"]:
        raise ValueError(
            f"env has {vec_env.num_envs} environments in {' of '.join(found)}, but the state is of "
            f"{state['n_envs']} in {' of '.join(state['layers'])}: make env as it was made before"
        )
    reasons: list[str | None] = [state["reason"]]
    # The single environments first, then the wrappers around them.
    for layer, kept in zip(reversed(layers), reversed(state["vec_layers"]), strict=True):
        if "own" in kept:
            layer.set_state(copy.deepcopy(kept["own"]))
            continue
        set_attributes(layer, CHANGING.get(class_name(layer), ()), kept)
        if class_name(layer) in VEC_ENVS and state["envs"] is not None:
            _require_wrapped(layer)
            for i, env in enumerate(state["envs"]):
                reasons += layer.env_method("set_episode_state", env, indices=i)
    return next((reason for reason in reasons if reason is not None), None)


def _vec_layers(vec_env: VecEnv) -> list[Any]:
    """The wrappers from the outermost on, and what they wrap, up to the first that returns its own state."""
    layers: list[Any] = [vec_env]
    while isinstance(layers[-1], VecEnvWrapper) and not has_state(layers[-1]):
        layers.append(layers[-1].venv)
    return layers


def _title(layer: VecEnv) -> str:
    """The same for classes that can take each other's state."""
    return "DummyVecEnv or SubprocVecEnv" if class_name(layer) in VEC_ENVS else type(layer).__name__


def _require_wrapped(vec_env: Any) -> None:
    """:raises NotResumableError: the outermost wrapper of each environment is not a :class:`~ppo_plus.Resumable`"""
    # First, since calling a method that an environment lacks would end its process.
    if not vec_env.has_attr("get_episode_state") or set(vec_env.env_method("class_name")) != {Resumable.__name__}:
        raise NotResumableError(
            "the single environments are not in a ppo_plus.Resumable, outermost: "
            "make_vec_env(..., wrapper_class=ppo_plus.Resumable)"
        )
