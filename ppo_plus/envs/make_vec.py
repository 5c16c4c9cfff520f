"""The fastest vector environment for a task, among those that do not change the task.

:func:`ppo_plus.make_vec` makes it, and ``ppo-plus train --vec-env auto`` does. The first line that fits decides:

1. One environment: ``dummy``.
2. The task is in :data:`VERIFIED`, its library is installed, and there are at least :data:`ENOUGH` environments:
   ``gymnasium`` or ``envpool``, which step all environments in one call. Random numbers differ, so a seed gives other
   episodes of the same task, and an interrupted run starts new episodes.
3. ``subproc`` if a step of one environment, which is measured, takes longer than messages between processes; otherwise
   ``dummy``. Both return the same bits.
"""

import math
import os
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus.envs.errors import check_spaces
from ppo_plus.envs.lean_vec_env import LeanVecEnv
from ppo_plus.envs.resumable.wrapper import Resumable
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.envs.vec_env import as_vec_env
from ppo_plus.require import require_int

#: Tasks that are verified to be the same when all environments are stepped at once, and the kind that does it. Not
#: verified: ``Ant`` and ``Humanoid`` (contact forces), Box2D (random terrain), Atari (other first frames of a life).
VERIFIED = {"CartPole-v1": "gymnasium"} | dict.fromkeys(
    "Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 HalfCheetah-v5 Hopper-v5 "
    "InvertedDoublePendulum-v5 InvertedPendulum-v5 Reacher-v5 Swimmer-v5 Walker2d-v5".split(),
    "envpool",
)
#: With fewer environments, one call for all of them is not faster.
ENOUGH = 4
#: The version of EnvPool whose tasks are verified.
ENVPOOL = "1.2."
#: Seconds that the messages to a process and back take in each step, while all cores are busy.
MESSAGES = 100e-6
#: Steps are measured for this many seconds, and at least this many of them.
MEASURED_SECONDS, MEASURED_STEPS = 0.1, 10


class Pick(NamedTuple):
    """A kind of vector environment (``"dummy"``, ``"subproc"``, ``"gymnasium"`` or ``"envpool"``), and the reason."""

    kind: str
    why: str


def pick(env_id: str, n_envs: int, make: Callable[[], gym.Env], single: str = "", cores: int | None = None) -> Pick:
    """The kind of vector environment that is fastest, by the rule above.

    :param make: makes one of them as it would be trained on, in its wrappers; called to measure its steps
    :param single: why single environments are needed; empty: they are not
    :param cores: how many cores there are for them; ``None``: those that this process may use
    """
    if n_envs == 1:
        return Pick("dummy", "one environment has nothing to share")
    why_not = single or _why_not_batched(env_id, n_envs)
    if not why_not:
        why = f"it steps all {n_envs} at once, and its {env_id} is verified to be the same task"
        return Pick(VERIFIED[env_id], why)
    seconds = step_seconds(make)
    if seconds == math.inf:
        return Pick("subproc", f"a step failed, which in a separate process harms no other environment; {why_not}")
    cores = cores or usable_cores()
    pays_off = seconds / min(cores, n_envs) + MESSAGES < seconds
    why = f"a step takes {seconds * 1e6:,.0f} µs on one of {cores} cores; {why_not}"
    return Pick("subproc" if pays_off else "dummy", why)


def _why_not_batched(env_id: str, n_envs: int) -> str:
    """Why the environments cannot be stepped all at once; empty: they can."""
    kind = VERIFIED.get(env_id)
    if kind is None:
        return f"no other backend is verified to match {env_id}"
    if n_envs < ENOUGH:
        return f"{n_envs} environments are too few to gain from {kind}"
    spec = gym.spec(env_id)
    # Only the time limit may have been changed.
    if not str(spec.entry_point).startswith("gymnasium.envs.") or spec.kwargs or spec.additional_wrappers:
        return f"another environment is registered as {env_id}"
    if kind == "envpool" and find_spec("envpool") is None:
        return "EnvPool is not installed"
    if kind == "envpool" and not (version := str(import_module("envpool").__version__)).startswith(ENVPOOL):
        return f"EnvPool {version} is not verified, but {ENVPOOL}x is"
    return ""


def usable_cores() -> int:
    """Cores that this process may use; the processes that torchrun starts on a machine share its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def step_seconds(make: Callable[[], gym.Env]) -> float:
    """The median of the seconds that a random step of one environment takes, resets included; infinite if it fails."""
    env = make()
    env.action_space.seed(0)
    times: list[float] = []
    deadline = time.perf_counter() + MEASURED_SECONDS
    try:
        env.reset(seed=0)
        while len(times) < MEASURED_STEPS or time.perf_counter() < deadline:
            action = env.action_space.sample()
            start = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
            times.append(time.perf_counter() - start)
    except Exception:
        return math.inf
    finally:
        env.close()
    return median(times)


def make_vec(
    env_id: str, n_envs: int = 1, seed: int | None = None, env_kwargs: dict[str, Any] | None = None, **more: Any
) -> VecEnv:
    """Make environments with the backend that is fastest on this machine::

        env = make_vec("HalfCheetah-v5", n_envs=8, seed=0)

    Like SB3's ``make_vec_env``, with the vector environment chosen by the rule in :mod:`ppo_plus.envs.make_vec`.

    :param env_id: Gymnasium environment id
    :param n_envs: how many, at least 1
    :param seed: of the first one, the others follow, 0 to 2**32 - 1; ``None``: drawn at random
    :param env_kwargs: arguments of each environment; with any, only single environments are considered
    :param more: further ones, by keyword
    :return: the environments. Use those that are stepped all at once with ``PPO_Plus`` and
        :class:`~ppo_plus.VecNormalizeTransitions`: other algorithms, and ``VecNormalize``, would count the steps in
        which they only reset
    :raises ValueError: bad number of environments, or their spaces are not supported
    :raises gymnasium.error.Error: there is no such environment
    """
    require_int("n_envs", n_envs, 1)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    env_kwargs = {**(env_kwargs or {}), **more}
    make = partial(_make_one, gym.spec(env_id), **env_kwargs)
    kind, _ = pick(env_id, n_envs, make, "env_kwargs need single environments" if env_kwargs else "")
    if kind in BATCHED:
        return BATCHED[kind](env_id, n_envs, seed, {})
    vec_env_cls: Any = SupervisedVecEnv if kind == "subproc" else LeanVecEnv
    return make_vec_env(make, n_envs, seed=seed, wrapper_class=Resumable, vec_env_cls=vec_env_cls)


def _make_one(spec: gym.envs.registration.EnvSpec, **env_kwargs: Any) -> gym.Env:
    env = gym.make(spec, **env_kwargs)
    # Vector environments would raise errors that do not say what is wrong.
    check_spaces(env)
    return env


def make_gymnasium(env_id: Any, n_envs: int, seed: int, kwargs: dict[str, Any]) -> VecEnv:
    """Gymnasium's vector environment: the environment's own vector form, or its copies one after another."""
    env: VecEnv = as_vec_env(gym.make_vec(env_id, n_envs, **kwargs))
    env.seed(seed)
    return env


def make_envpool(env_id: str, n_envs: int, seed: int, kwargs: dict[str, Any]) -> VecEnv:
    """EnvPool's environments, with a thread for each core."""
    try:
        envpool = import_module("envpool")
    except ImportError:
        raise ImportError("vec_env='envpool' needs EnvPool (Linux only): pip install '.[envpool]'") from None
    if env_id not in envpool.list_all_envs():
        raise ValueError(f"EnvPool has no environment {env_id!r}: use another vec_env")
    if env_id in VERIFIED:
        # Gymnasium's may be registered with another limit.
        kwargs = {"max_episode_steps": gym.spec(env_id).max_episode_steps, **kwargs}
    # It takes 31 bits.
    env: VecEnv = as_vec_env(envpool.make_gymnasium(env_id, num_envs=n_envs, seed=seed % 2**31, **kwargs))
    space = env.action_space
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        # Gymnasium's are in single precision, and a model that was trained here has to act there.
        env.action_space = spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32))
    return env


#: Kinds of vector environments that step all environments at once, and the functions that make them.
BATCHED = {"gymnasium": make_gymnasium, "envpool": make_envpool}
