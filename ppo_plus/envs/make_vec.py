"""Which vector environment trains fastest with all cores of a machine, where that changes nothing of the task.

:func:`ppo_plus.make_vec` makes it, and ``ppo-plus train --vec-env auto`` does. The rule, the first line that holds:

1. One environment: ``dummy``. There is nothing to share.
2. The task is in :data:`TOGETHER` and installed, with so many environments that one call for all is faster:
   ``gymnasium`` or ``envpool``, which step all at once. A test steps each of these tasks beside Gymnasium's, from the
   same state with the same actions, and compares observations, rewards, terminations and time limits. Random numbers
   are others, so one seed gives other episodes of the same task, and an interrupted run begins its episodes anew.
3. ``subproc`` where a step of one environment, which is measured, takes so long that the messages to another process
   are the smaller part; else ``dummy``. Both return the same to the bit, so this choice changes nothing but time.

Lines 1 and 2 depend on what is installed and on nothing that is measured: the same command gives the same episodes.
"""

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
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from ppo_plus.envs.resumable.wrapper import Resumable
from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv
from ppo_plus.envs.vec_env import as_vec_env
from ppo_plus.require import require_int

#: Tasks that are the same where all environments are stepped at once: the kind of vector environment, and from how many
#: environments on it is faster than one after another. What is not here was not shown to be the same: ``Ant`` and
#: ``Humanoid`` (contact forces), Box2D (its terrain is drawn at random), Atari (other frames at the start of a life).
TOGETHER: dict[str, tuple[str, int]] = {
    "CartPole-v1": ("gymnasium", 5),
    "Acrobot-v1": ("envpool", 2),
    "MountainCar-v0": ("envpool", 4),
    "MountainCarContinuous-v0": ("envpool", 12),
    "Pendulum-v1": ("envpool", 4),
    "HalfCheetah-v5": ("envpool", 4),
    "Hopper-v5": ("envpool", 4),
    "InvertedDoublePendulum-v5": ("envpool", 4),
    "InvertedPendulum-v5": ("envpool", 4),
    "Reacher-v5": ("envpool", 4),
    "Swimmer-v5": ("envpool", 4),
    "Walker2d-v5": ("envpool", 4),
}
#: The version of EnvPool whose tasks were compared.
ENVPOOL = "1.2."
#: Seconds that it costs to have one environment in a process step and answer, all cores being busy.
MESSAGES = 100e-6
#: A step is measured for so many seconds, and this many times at least.
MEASURED_SECONDS, MEASURED_STEPS = 0.1, 10


class Pick(NamedTuple):
    """A kind of vector environment.

    :param kind: ``"dummy"``, ``"subproc"``, ``"gymnasium"`` or ``"envpool"``
    :param why: the reason, as a part of a sentence
    """

    kind: str
    why: str


def pick(env_id: str, n_envs: int, make: Callable[[], gym.Env], single: str = "", cores: int | None = None) -> Pick:
    """The kind of vector environment that is fastest: see :mod:`ppo_plus.envs.make_vec`.

    :param env_id: Gymnasium environment id
    :param n_envs: how many environments, at least 1
    :param make: makes one of them as it would be trained on, in its wrappers; called where steps are to be measured
    :param single: what needs single environments, if anything does
    :param cores: how many cores there are for them; ``None``: those that this process may use
    """
    if n_envs == 1:
        return Pick("dummy", "one environment has nothing to share")
    kind, enough = TOGETHER.get(env_id, ("", 0))
    why = single or (f"{env_id} has no other form that was shown to be the same" if not kind else "")
    if not why and n_envs < enough:
        why = f"{n_envs} environments are too few to gain from {kind}"
    if not why and not _is_gymnasiums(env_id):
        why = f"{env_id} was registered anew"
    if not why and kind == "envpool":
        why = _missing_envpool()
    if not why:
        return Pick(kind, f"it steps all {n_envs} at once, and its {env_id} was shown to be the same task")
    cores = cores or usable_cores()
    seconds = step_seconds(make)
    if seconds == float("inf"):
        return Pick("subproc", f"a step has failed, which in a process of its own harms no other; {why}")
    together = seconds / min(cores, n_envs) + MESSAGES
    step = f"a step takes {seconds * 1e6:,.0f} µs on one of {cores} cores"
    return Pick("subproc" if together < seconds else "dummy", f"{step}; {why}")


def _is_gymnasiums(env_id: str) -> bool:
    """Whether an environment is what Gymnasium registers under its name, but for its time limit."""
    spec = gym.spec(env_id)
    return str(spec.entry_point).startswith("gymnasium.envs.") and not spec.kwargs and not spec.additional_wrappers


def _missing_envpool() -> str:
    """Why EnvPool is not to be used, if so."""
    if find_spec("envpool") is None:
        return "EnvPool is not installed"
    version = str(import_module("envpool").__version__)
    return "" if version.startswith(ENVPOOL) else f"EnvPool's version {version} was not compared, but {ENVPOOL}x"


def usable_cores() -> int:
    """Cores that this process may use; of several processes that torchrun has started here, each has its part."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def step_seconds(make: Callable[[], gym.Env]) -> float:
    """What a step of one environment takes, in seconds: the median over random actions, resets included.

    :param make: makes the environment, which is closed again
    :return: infinite where a step fails, so that it fails in a process of its own
    """
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
        return float("inf")
    finally:
        env.close()
    return median(times)


def make_vec(env_id: str, n_envs: int = 1, seed: int | None = None, **env_kwargs: Any) -> VecEnv:
    """Environments that train as fast as this machine's cores allow::

        env = make_vec("HalfCheetah-v5", n_envs=8, seed=0)

    As SB3's ``make_vec_env``, with the vector environment chosen by the rule in :mod:`ppo_plus.envs.make_vec`.

    :param env_id: Gymnasium environment id
    :param n_envs: how many, at least 1
    :param seed: of the first one, the others follow, 0 to 2**32 - 1; ``None``: drawn at random
    :param env_kwargs: arguments of each environment; with any, only single environments are considered
    :return: the environments. Those that are stepped all at once are for ``PPO_Plus``, and for normalization
        :class:`~ppo_plus.VecNormalizeTransitions`: other algorithms, and ``VecNormalize``, would count the steps in
        which they only reset
    :raises ValueError: bad number of environments
    :raises gymnasium.error.Error: there is no such environment
    """
    require_int("n_envs", n_envs, 1)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    make = partial(gym.make, gym.spec(env_id), **env_kwargs)
    kind, _ = pick(env_id, n_envs, make, "env_kwargs are of single environments" if env_kwargs else "")
    if kind in BATCHED:
        return BATCHED[kind](env_id, n_envs, seed, {})
    vec_env_cls: Any = SupervisedVecEnv if kind == "subproc" else DummyVecEnv
    return make_vec_env(make, n_envs, seed=seed, wrapper_class=Resumable, vec_env_cls=vec_env_cls)


def make_gymnasium(env_id: Any, n_envs: int, seed: int, kwargs: dict[str, Any]) -> VecEnv:
    """The environment's own vector form, if it has one; else its copies one after another.

    :param env_id: Gymnasium environment id, or its specification
    :param n_envs: how many
    :param seed: of the first one
    :param kwargs: arguments of the environment
    """
    env: VecEnv = as_vec_env(gym.make_vec(env_id, n_envs, **kwargs))
    env.seed(seed)
    return env


def make_envpool(env_id: str, n_envs: int, seed: int, kwargs: dict[str, Any]) -> VecEnv:
    """EnvPool's environments, with a thread for each core; arguments as for :func:`make_gymnasium`.

    :raises ImportError: it is not installed
    :raises ValueError: it has no such environment
    """
    try:
        envpool = import_module("envpool")
    except ImportError:
        raise ImportError(
            "vec_env='envpool' needs EnvPool (Linux only): pip install '.[envpool]' in a checkout"
        ) from None
    if env_id not in envpool.list_all_envs():
        raise ValueError(f"EnvPool has no environment {env_id!r}: use another vec_env")
    if env_id in TOGETHER:
        # Gymnasium's may have been registered with another.
        kwargs = {"max_episode_steps": gym.spec(env_id).max_episode_steps, **kwargs}
    # It takes 31 bits.
    env: VecEnv = as_vec_env(envpool.make_gymnasium(env_id, num_envs=n_envs, seed=seed % 2**31, **kwargs))
    space = env.action_space
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        # Gymnasium's are in single precision, and a model that was trained here is to act there.
        env.action_space = spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32))
    return env


#: Kinds of vector environments that step all environments at once, and how they are made.
BATCHED = {"gymnasium": make_gymnasium, "envpool": make_envpool}
