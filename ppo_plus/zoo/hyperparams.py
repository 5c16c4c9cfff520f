"""Experiments as settings: which environment, for how long, with which hyperparameters. Read from YAML files in the
format of rl_zoo3; the package's own file is ``hyperparams/ppo_plus.yml``."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.zoo.literals import parse_literal


@dataclass(frozen=True)
class Experiment:
    """All that defines a training run, apart from its seed and device.

    :param env_id: Gymnasium environment id
    :param n_timesteps: environment steps to train for, over all environments together
    :param n_envs: number of environments stepped side by side
    :param policy: name of the policy class
    :param normalize: arguments of ``VecNormalize``; ``None`` for raw observations and rewards
    :param env_kwargs: arguments of the environment
    :param policy_kwargs: arguments of the policy
    :param hyperparams: the other arguments of ``PPO_Plus``
    """

    env_id: str
    n_timesteps: int
    n_envs: int
    policy: str
    normalize: dict[str, Any] | None
    env_kwargs: dict[str, Any]
    policy_kwargs: dict[str, Any]
    hyperparams: dict[str, Any]


def resolve(env_id: str, path: str | Path | None = None) -> Experiment:
    """The experiment that a settings file describes for an environment.

    :param env_id: Gymnasium environment id; an id that the file does not have takes its ``default`` entry
    :param path: YAML file; ``None`` for the package's own
    :return: the experiment
    :raises ValueError: broken YAML, no entry, unknown key or bad value
    :raises OSError: the file cannot be read
    """
    source = builtin_file() if path is None else Path(path)
    entries = _read_yaml(source)
    name = env_id if env_id in entries else "default"
    if name not in entries:
        raise ValueError(f"{source} has neither an entry for {env_id} nor a default")
    try:
        return _experiment(env_id, entries[name])
    except ValueError as error:
        raise ValueError(f"{source}, {name}: {error}") from None


def builtin_file() -> Path:
    """The package's own settings: inside the package where it is installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "hyperparams" / "ppo_plus.yml"
    return installed if installed.is_file() else package.parent / "hyperparams" / "ppo_plus.yml"


def positive_int(name: str, value: Any) -> int:
    """A whole number of at least one, however it is written: ``100000``, ``1e5`` or ``"1e5"``.

    :param name: what it is called, for the error message
    :param value: the number
    :raises ValueError: anything else
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or number < 1 or not number.is_integer():
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return int(number)


def _read_yaml(source: Path) -> dict[str, Any]:
    try:
        entries = yaml.safe_load(source.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{source} is no valid YAML: {error}") from None
    return _require_mapping(str(source), entries)


def _experiment(env_id: str, entry: Any) -> Experiment:
    settings = dict(_require_mapping("the entry", entry))
    own: dict[str, Any] = {
        "n_timesteps": positive_int("n_timesteps", settings.pop("n_timesteps", None)),
        "n_envs": positive_int("n_envs", settings.pop("n_envs", 1)),
        "policy": str(settings.pop("policy", "MlpPolicy")),
        "normalize": _normalize(settings.pop("normalize", False)),
        "env_kwargs": _mapping("env_kwargs", settings.pop("env_kwargs", None)),
        "policy_kwargs": _mapping("policy_kwargs", settings.pop("policy_kwargs", None)),
    }
    _check_names("", settings, [*own, *_hyperparameter_names()])
    return Experiment(env_id=env_id, hyperparams=settings, **own)


def _hyperparameter_names() -> set[str]:
    """What a file may set on ``PPO_Plus``: all but what the training run itself decides."""
    return _argument_names(PPO_Plus) - {"env", "seed", "device", "verbose", "_init_setup_model"}


def _argument_names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _check_names(owner: str, names: Iterable[Any], valid: Iterable[str]) -> None:
    valid = sorted(set(valid))
    for name in names:
        if name not in valid:
            nearest = get_close_matches(str(name), valid, n=1, cutoff=0.0)[0]
            raise ValueError(f"unknown key {name!r}{owner}; the nearest valid key is {nearest!r}")


def _normalize(value: Any) -> dict[str, Any] | None:
    if isinstance(value, bool):
        return {} if value else None
    arguments = _mapping("normalize", value)
    _check_names(" in normalize", arguments, _argument_names(VecNormalize) - {"venv"})
    return arguments


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """A mapping given as one, as Python text, or not at all; ``nn.X`` in its values becomes the class."""
    if isinstance(value, str):
        value = _literal(name, value)
    mapping = _require_mapping(name, {} if value is None else value)
    return {key: _literal(name, item) if _names_module(item) else item for key, item in mapping.items()}


def _literal(name: str, text: str) -> Any:
    try:
        return parse_literal(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _names_module(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("nn.")


def _require_mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {value!r}")
    return value
