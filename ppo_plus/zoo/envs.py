"""The environments of an experiment, for training and for evaluation."""

import re
import sys
import time
from copy import deepcopy
from functools import partial, reduce
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from tqdm import tqdm

from ppo_plus import PPO_Plus, Resumable, SupervisedVecEnv
from ppo_plus.envs.make_vec import BATCHED, pick
from ppo_plus.envs.normalization import VecNormalizeTransitions
from ppo_plus.zoo.experiment import Experiment, Part
from ppo_plus.zoo.mujoco import warnings_once
from ppo_plus.zoo.registry import find_env, is_atari

#: Kinds of vector environments that step single environments.
VEC_ENVS = ("dummy", "subproc")

#: Evaluation environments have the experiment's seed plus this one, so that no episode is trained and evaluated on.
EVAL_SEED = 2**31


def make_envs(
    experiment: Experiment,
    n_envs: int | None = None,
    seed: int | None = None,
    *,
    evaluation: bool = False,
    monitor_dir: Path | None = None,
    append: bool = False,
    first: int = 0,
    restarts: int = 0,
    timeout: float | None = None,
    **env_kwargs: Any,
) -> VecEnv:
    """Environments as the experiment describes them, in rl_zoo3's order: wrappers, vector wrappers, normalization,
    frame stacking, transposed images.

    :param experiment: the experiment
    :param n_envs: how many; ``None``: the experiment's for training, one for evaluation
    :param seed: seed of the first one, the others follow; ``None``: of the experiment, and another one for evaluation
    :param evaluation: rewards as the environment gives them, and statistics that do not change. SB3's ``EvalCallback``
        copies them from the training environments before it evaluates
    :param monitor_dir: folder for the ``monitor.csv`` files; ``None``: none are written
    :param append: go on with those that are there
    :param first: the number of the first one, where other processes have others; it counts in seeds and names of files
    :param restarts: how many times a fresh environment may take the place of one that failed
    :param timeout: seconds that an environment may take for a step or a reset; ``None``: any
    :param env_kwargs: further arguments of the environment, such as ``render_mode``
    :return: the environments
    :raises ValueError: restarts or a time limit for environments that cannot have them
    :raises gymnasium.error.Error: there is no such environment, or its package is not installed
    """
    if n_envs is None:
        n_envs = 1 if evaluation else experiment.n_envs
    experiment = settle(experiment.replace(n_envs=n_envs), restarts, timeout)
    if seed is None:
        seed = (experiment.seed + EVAL_SEED) % 2**32 if evaluation else experiment.seed
    seed += first
    kwargs = experiment.env_kwargs
    if evaluation and experiment.eval_env_kwargs is not None:
        kwargs = experiment.eval_env_kwargs
    kwargs = {**deepcopy(kwargs), **env_kwargs}
    # Evaluation is of the single environment, whatever makes training faster.
    together = not evaluation and experiment.vec_env in BATCHED
    check_supervision(experiment.vec_env, restarts, timeout)
    if together and experiment.vec_env == "envpool" and is_atari(experiment.env_id):
        experiment, kwargs = _as_atari_of_envpool(experiment, kwargs)
    with warnings_once(experiment.env_id):
        if together:
            env = _make_batched(experiment, n_envs, seed, monitor_dir, append, first, kwargs)
        else:
            env = _make_each(experiment, n_envs, seed, monitor_dir, append, first, kwargs, restarts, timeout)
    env = _wrap(env, experiment.vec_env_wrapper)
    if experiment.normalize is not None:
        env = _normalize(env, experiment, evaluation)
    if experiment.frame_stack is not None:
        env = VecFrameStack(env, experiment.frame_stack)
    # What the algorithm would do to its own environments; evaluation must see the same.
    return PPO_Plus._wrap_env(env)


def check_supervision(vec_env: str, restarts: int = 0, timeout: float | None = None) -> None:
    """:raises ValueError: restarts or a time limit for environments that cannot have them"""
    if timeout is not None and vec_env not in ("subproc", "auto"):
        raise ValueError(
            f"--env-timeout {timeout:g}: an environment that hangs can be ended only in a process of its own: "
            "add --vec-env subproc"
        )
    if restarts and vec_env in BATCHED:
        raise ValueError(
            f"--restart-envs {restarts}: --vec-env {vec_env} has no single environments to restart: use one of "
            f"{', '.join(VEC_ENVS)}"
        )


def settle(experiment: Experiment, restarts: int = 0, timeout: float | None = None) -> Experiment:
    """The experiment with the vector environment that trains fastest in place of ``"auto"``; says in a line which, and
    why. Any other experiment as it is.

    :param experiment: the experiment
    :param restarts: how many times a fresh environment may take the place of one that failed
    :param timeout: seconds that an environment may take for a step or a reset; ``None``: any
    """
    if experiment.vec_env != "auto":
        return experiment
    if timeout is not None:
        kind, why = "subproc", "--env-timeout ends environments in processes of their own"
    else:
        with warnings_once(experiment.env_id):
            kind, why = pick(
                experiment.env_id, experiment.n_envs, partial(_make_one, experiment), _single(experiment, restarts)
            )
    _tell(f"--vec-env auto: {kind} ({why})")
    return experiment.replace(vec_env=kind)


def _single(experiment: Experiment, restarts: int) -> str:
    """What needs single environments, if anything does."""
    given = [
        name
        for name in ("env_kwargs", "env_wrapper", "monitor_kwargs", "vec_env_wrapper", "frame_stack")
        if getattr(experiment, name)
    ]
    given += ["--restart-envs"] if restarts else []
    return f"single environments are needed for {' and '.join(given)}" if given else ""


def _make_one(experiment: Experiment) -> Resumable:
    """One environment as it is trained on."""
    return _resumable(gym.make(find_env(experiment.env_id), **deepcopy(experiment.env_kwargs)), experiment.env_wrapper)


def _make_each(
    experiment: Experiment,
    n_envs: int,
    seed: int,
    monitor_dir: Path | None,
    append: bool,
    first: int,
    kwargs: dict[str, Any],
    restarts: int,
    timeout: float | None,
) -> VecEnv:
    """Environments made one by one."""
    processes = experiment.vec_env == "subproc"
    supervision = {"restarts": restarts, "timeout": timeout, "processes": processes, "report": _tell}
    supervised = processes or restarts > 0
    make = partial(gym.make, find_env(experiment.env_id))
    if processes:
        # A mistake shows here with its own message; a worker process would only end.
        make(**kwargs).close()
    return make_vec_env(
        make,
        n_envs,
        seed=seed,
        start_index=first,
        monitor_dir=None if monitor_dir is None else str(monitor_dir),
        wrapper_class=partial(_resumable, parts=experiment.env_wrapper),
        env_kwargs=kwargs,
        vec_env_cls=SupervisedVecEnv if supervised else DummyVecEnv,  # type: ignore[arg-type]
        vec_env_kwargs=supervision if supervised else {},
        monitor_kwargs=deepcopy(experiment.monitor_kwargs) | ({"override_existing": False} if append else {}),
    )


def _tell(line: str) -> None:
    """Above the progress bar, if there is one."""
    tqdm.write(line, file=sys.stderr)


def _make_batched(
    experiment: Experiment,
    n_envs: int,
    seed: int,
    monitor_dir: Path | None,
    append: bool,
    first: int,
    kwargs: dict[str, Any],
) -> VecEnv:
    """Environments that are one object, which steps all of them at once."""
    if experiment.env_wrapper or experiment.monitor_kwargs:
        raise ValueError(
            f"vec_env={experiment.vec_env!r} has no single environments, which env_wrapper and monitor_kwargs are for: "
            f"use one of {', '.join(VEC_ENVS)}"
        )
    name: Any = experiment.env_id if experiment.vec_env == "envpool" else find_env(experiment.env_id)
    env: Any = BATCHED[experiment.vec_env](name, n_envs, seed, kwargs)
    if monitor_dir is not None:
        path = monitor_dir / (f"{first}.monitor.csv" if first else "all.monitor.csv")
        header: dict[str, float | str] = {"t_start": time.time(), "env_id": experiment.env_id}
        env.episode_log = ResultsWriter(str(path), header=header, override_existing=not append)
    return env  # type: ignore[no-any-return]


def _as_atari_of_envpool(experiment: Experiment, kwargs: dict[str, Any]) -> tuple[Experiment, dict[str, Any]]:
    """An Atari experiment in the terms of EnvPool, which does by itself what ``AtariWrapper`` and frame stacking do.

    :param experiment: the experiment
    :param kwargs: arguments of the environment
    :return: the same with EnvPool's name of the game and without wrapper and stacking, and EnvPool's arguments
    :raises ValueError: EnvPool cannot make these environments
    """
    game = re.fullmatch(r"(\w+)NoFrameskip-v4", experiment.env_id)
    if game is None or kwargs or [part.cls for part in experiment.env_wrapper] != [AtariWrapper]:
        raise ValueError(
            f"vec_env='envpool' makes Atari games named ...NoFrameskip-v4, in AtariWrapper and without env_kwargs, but "
            f"not {experiment.env_id!r} in {[part.name for part in experiment.env_wrapper]} with {kwargs}: use "
            "'subproc', or hand envpool.make_gymnasium(...) to PPO_Plus in Python"
        )
    wrapper = signature(AtariWrapper).bind(None, **experiment.env_wrapper[0].kwargs)
    wrapper.apply_defaults()
    given = wrapper.arguments
    arguments = {
        "noop_max": given["noop_max"],
        "frame_skip": given["frame_skip"],
        "img_height": given["screen_size"],
        "img_width": given["screen_size"],
        "episodic_life": given["terminal_on_life_loss"],
        "reward_clip": given["clip_reward"],
        "repeat_action_probability": given["action_repeat_probability"],
        "stack_num": experiment.frame_stack or 1,
    }
    return experiment.replace(env_id=f"{game[1]}-v5", env_wrapper=(), frame_stack=None), arguments


def _normalize(env: VecEnv, experiment: Experiment, evaluation: bool) -> VecNormalize:
    arguments: dict[str, Any] = dict(experiment.normalize or {})
    # Rewards are scaled by the spread of the discounted return, so the discount must be the algorithm's.
    if "gamma" in experiment.hyperparams:
        arguments["gamma"] = experiment.hyperparams["gamma"]
    if evaluation:
        arguments.update(training=False, norm_reward=False)
    return (VecNormalizeTransitions if experiment.vec_env in BATCHED else VecNormalize)(env, **arguments)


def _resumable(env: Any, parts: tuple[Part, ...]) -> Resumable:
    return Resumable(_wrap(env, parts))


def _wrap(env: Any, parts: tuple[Part, ...]) -> Any:
    return reduce(lambda wrapped, part: part(wrapped), parts, env)
