"""Models of an experiment: created, saved and loaded together with their normalization statistics."""

import pickle
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from ppo_plus import PPO_Plus
from ppo_plus.process import torch_threads
from ppo_plus.saving import statistics
from ppo_plus.saving.format.atomic import replacing
from ppo_plus.zoo.experiment import Experiment


def make_model(experiment: Experiment, env: VecEnv, **arguments: Any) -> PPO_Plus:
    """A new model, with further ``arguments`` and the errors of ``PPO_Plus``."""
    given = {"policy_kwargs": experiment.policy_kwargs, **experiment.hyperparams}
    given = {**deepcopy(given), "seed": experiment.seed, "device": experiment.device, **arguments}
    # Orthogonal initialization rounds differently on several threads; the weights should depend on the seed only.
    with torch_threads(1):
        return PPO_Plus(experiment.policy, env, **given)


def make_callbacks(experiment: Experiment) -> Sequence[BaseCallback]:
    """New instances of the callbacks that the settings name."""
    return [part() for part in experiment.callback]


def load_model(
    path: Path, experiment: Experiment, env: VecEnv, trust_pickle: bool = False, **arguments: Any
) -> PPO_Plus:
    """A saved model, to be trained further with the experiment's hyperparameters. Its networks stay unchanged.

    :param env: its training environments; they get the statistics saved with the model
    :param trust_pickle: unpickle SB3's files, which runs code, if they cannot be read otherwise
    """
    if unwrap_vec_normalize(env) is None and statistics_path(path).is_file():
        raise ValueError(
            f"{path} was trained in a VecNormalize, whose statistics are beside it, but the settings do not normalize: "
            "give the run's settings (-conf FILE), or add -params normalize:True"
        )
    load_statistics(path, env)
    changes = {**deepcopy(experiment.hyperparams), "seed": experiment.seed, **arguments}
    return PPO_Plus.load(path, env=env, device=experiment.device, trust_pickle=trust_pickle, **changes)


def save_model(model: PPO_Plus, path: Path) -> None:
    """Save a model and, next to its ``.zip`` file, its normalization statistics."""
    model.save(path)
    save_statistics(model, path)


def save_statistics(model: PPO_Plus, path: Path) -> None:
    """Save the normalization statistics of a model, if it has any, next to its file."""
    normalize = model.get_vec_normalize_env()
    if normalize is not None:
        write_statistics(normalize, statistics_path(path))


def write_statistics(normalize: VecNormalize, path: Path) -> None:
    """Write normalization statistics, which must be finite, atomically; a ``.pkl`` in SB3's format, for rl_zoo3."""
    statistics.require_finite(normalize, path)
    if path.suffix != ".pkl":
        return statistics.write_statistics(normalize, path)
    with replacing(path) as file:
        pickle.dump(normalize, file)


def load_statistics(path: Path, env: VecEnv, source: Path | None = None) -> None:
    """Load the statistics that were saved with a model into environments, if these normalize.

    :param source: the statistics' file; ``None``: the one next to the model
    :raises ValueError: the file is damaged, or its statistics are not finite, or do not fit the observations
    """
    normalize = unwrap_vec_normalize(env)
    if normalize is None:
        return
    source = source or statistics_path(path)
    statistics.put_statistics(normalize, statistics.read_statistics(source), source)


def statistics_path(path: Path) -> Path:
    """The file of a model's statistics: ``best_model.zip`` has ``best_model_vecnormalize.zip``."""
    return path.with_name(f"{path.name.removesuffix('.zip')}_vecnormalize.zip")
