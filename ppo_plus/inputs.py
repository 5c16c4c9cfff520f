"""Checks of what :class:`~ppo_plus.PPO_Plus` is given besides its settings: names, environments, devices, callbacks."""

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import gymnasium as gym
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.policy.arguments import accepted_names
from ppo_plus.policy.distributions import make_distribution
from ppo_plus.policy.observations import canonical_space
from ppo_plus.policy.recurrent import MlpLstmPolicy
from ppo_plus.require import nearest

P = ParamSpec("P")


def known_names_only(init: Callable[P, None]) -> Callable[P, None]:
    """A constructor of ``PPO_Plus`` that answers an argument it does not know with the nearest name that it knows."""
    own = inspect.signature(init).parameters

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        unknown = next((name for name in kwargs if name not in own), None)
        if unknown is None:
            return init(*args, **kwargs)
        of_policy = accepted_names(MlpLstmPolicy) or set()
        likely = nearest("learning_rate" if "lr" in unknown.split("_") else unknown, [*own, *of_policy])
        if likely is not None and likely not in own:
            likely = f"policy_kwargs=dict({likely}=...)"
        remedy = "see help(PPO_Plus) for its arguments" if likely is None else f"did you mean {likely}?"
        raise TypeError(f"{unknown}={kwargs[unknown]!r} is no argument of PPO_Plus: {remedy}")

    return checked


def check_env(env: Any) -> None:
    """:raises TypeError: no environment. :raises ValueError: its spaces are not supported"""
    if isinstance(env, type):
        raise TypeError(f"env={env!r} is a class: pass an environment, {env.__name__}()")
    if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
        raise TypeError(f"env={env!r} must be a Gymnasium environment, a VecEnv, or the id of an environment")
    if not isinstance(env, (gym.Env, VecEnv)):
        raise TypeError(
            f"env={env!r} must be derived from gymnasium.Env; one of the old gym can be converted: pip install shimmy, "
            "then shimmy.GymV21CompatibilityV0(env=env), or GymV26CompatibilityV0 where reset() takes a seed"
        )
    canonical_space(env.observation_space)
    make_distribution(env.action_space)


def check_device(device: th.device | str) -> None:
    """Warns where, as SB3 has it, "cuda" without a GPU means the CPU.

    :raises ValueError: torch does not know the device
    """
    try:
        found = get_device(device)
        th.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'device={device!r} cannot be used ({reason}): use "cpu", "cuda" or "auto"') from None
    if device != "auto" and found.type != th.device(device).type:
        warnings.warn(
            f"device={str(device)!r}: torch finds no GPU here, so training runs on the CPU. Install a torch that "
            'supports the GPU, or use device="auto", which takes one where there is one',
            stacklevel=4,
        )


def check_callback(callback: Any) -> None:
    """:raises TypeError: nothing that :meth:`PPO_Plus.learn` can call"""
    if isinstance(callback, list):
        wrong = [each for each in callback if not isinstance(each, BaseCallback)]
        if wrong:
            raise TypeError(f"callback={callback!r} must be a list of callback objects, which {wrong[0]!r} is not")
    elif isinstance(callback, type):
        raise TypeError(f"callback={callback!r} is a class: pass a callback, {callback.__name__}(...)")
    elif callback is not None and not isinstance(callback, BaseCallback) and not callable(callback):
        raise TypeError(
            f"callback={callback!r} must be a callback such as EvalCallback(eval_env), a list of callbacks, or a "
            "function of locals and globals"
        )
