"""The environments of an experiment, for training and for evaluation."""

import sys
from copy import deepcopy
from functools import partial, reduce
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from tqdm import tqdm

from ppo_plus import PPO_Plus, Resumable, SupervisedVecEnv
from ppo_plus.envs.checks import LeanVecEnv, check_spaces
from ppo_plus.envs.make_vec import require_vec_env
from ppo_plus.zoo.experiment import Experiment, Part
from ppo_plus.zoo.installation import find_env

#: Added to the experiment's seed for evaluation environments, so that no episode is both trained and evaluated on.
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

    :param n_envs: how many; ``None``: the experiment's number for training, one for evaluation
    :param seed: seed of the first one; ``None``: the experiment's, plus :data:`EVAL_SEED` for evaluation
    :param evaluation: single environments with unnormalized rewards and fixed statistics
    :param monitor_dir: folder for the ``monitor.csv`` files, which are overwritten unless you ``append``
    :param first: number of the first environment, if other processes have others; it shifts seeds and file names
    :param restarts: how many failed environments to replace by new ones; more than 0: in processes
    :param timeout: seconds that an environment may take for a step or a reset, in processes; ``None``: no limit
    :param env_kwargs: further arguments of the environment, such as ``render_mode``
    :raises ValueError: no such kind of vector environment
    """
    if n_envs is None:
        n_envs = 1 if evaluation else experiment.n_envs
    experiment = experiment.replace(n_envs=n_envs)
    require_vec_env(experiment.vec_env)
    if seed is None:
        seed = (experiment.seed + EVAL_SEED) % 2**32 if evaluation else experiment.seed
    kwargs = experiment.env_kwargs
    if evaluation and experiment.eval_env_kwargs is not None:
        kwargs = experiment.eval_env_kwargs
    kwargs = {**deepcopy(kwargs), **env_kwargs}
    env: Any = _make_single(
        experiment,
        seed + first,
        kwargs,
        restarts,
        timeout,
        start_index=first,
        monitor_dir=None if monitor_dir is None else str(monitor_dir),
        monitor_kwargs=deepcopy(experiment.monitor_kwargs) | ({"override_existing": False} if append else {}),
    )
    env = _wrap(env, experiment.vec_env_wrapper)
    if experiment.normalize is not None:
        arguments = dict(experiment.normalize)
        # Rewards are scaled by the standard deviation of the discounted return, with the algorithm's discount.
        if "gamma" in experiment.hyperparams:
            arguments["gamma"] = experiment.hyperparams["gamma"]
        if evaluation:
            arguments.update(training=False, norm_reward=False)
        env = VecNormalize(env, **arguments)
    if experiment.frame_stack is not None:
        env = VecFrameStack(env, experiment.frame_stack)
    # The algorithm does the same with its training environments.
    return PPO_Plus._wrap_env(env)


def _make_single(
    experiment: Experiment, seed: int, kwargs: dict[str, Any], restarts: int, timeout: float | None, **monitors: Any
) -> VecEnv:
    """Environments that are stepped one by one, or each in its process."""
    make = partial(gym.make, find_env(experiment.env_id))
    processes = experiment.vec_env == "subproc" or restarts > 0 or timeout is not None
    if processes:
        # A mistake raises its own error here; in a worker process it would only end the process.
        make(**kwargs).close()
    cls: Any = SupervisedVecEnv if processes else LeanVecEnv
    supervision = {"restarts": restarts, "timeout": timeout, "report": _print}
    return make_vec_env(
        make,
        experiment.n_envs,
        seed=seed,
        wrapper_class=partial(_resumable, parts=experiment.env_wrapper),
        env_kwargs=kwargs,
        vec_env_cls=cls,
        vec_env_kwargs=supervision if processes else {},
        **monitors,
    )


def _print(line: str) -> None:
    """Print above the progress bar, if there is one."""
    tqdm.write(line, file=sys.stderr)


def _resumable(env: Any, parts: tuple[Part, ...]) -> Resumable:
    wrapped = _wrap(env, parts)
    check_spaces(wrapped)
    return Resumable(wrapped)


def _wrap(env: Any, parts: tuple[Part, ...]) -> Any:
    return reduce(lambda wrapped, part: part(wrapped), parts, env)
