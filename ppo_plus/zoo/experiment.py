"""An experiment: everything that defines one training run, resolved and checked."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.require import nearest
from ppo_plus.zoo.hyperparams import (
    builtin_file,
    errors_of,
    format_literal,
    plain,
    positive_int,
    read_arguments,
    read_entry,
    read_hyperparameter,
    read_literal,
    read_mapping,
)
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, import_class, is_atari
from ppo_plus.zoo.runs import RunFolder


@dataclass(frozen=True)
class Part:
    """A class that a settings file names, with the arguments to call it with."""

    name: str
    cls: type
    kwargs: dict[str, Any]

    def __call__(self, *args: Any) -> Any:
        return self.cls(*args, **self.kwargs)


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a training run. The fields up to ``hyperparams`` are keys of a settings file."""

    env_id: str
    n_timesteps: int  # number of environment steps, over all environments together
    n_envs: int = 1
    policy: str | type = "MlpPolicy"
    normalize: dict[str, Any] | None = None  # arguments of `VecNormalize`; `None` for raw observations and rewards
    frame_stack: int | None = None  # number of observations to stack; `None` for no stacking
    env_wrapper: tuple[Part, ...] = ()  # wrappers of each environment, the innermost first
    vec_env_wrapper: tuple[Part, ...] = ()  # wrappers of the vector environment, the innermost first
    callback: tuple[Part, ...] = ()
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    monitor_kwargs: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    hyperparams: dict[str, Any] = field(default_factory=dict)  # the other arguments of `PPO_Plus`
    eval_env_kwargs: dict[str, Any] | None = None  # arguments of evaluation environments; `None` for `env_kwargs`
    seed: int = 0
    device: str = "auto"
    vec_env: str = "dummy"  # `"dummy"` steps the environments one after another, `"subproc"` in separate processes

    def replace(self, **changes: Any) -> "Experiment":
        """A copy with other values of some fields, which are not checked."""
        return replace(self, **changes)

    def with_hyperparams(
        self, settings: dict[str, Any], packages: Collection[str] | None = ALLOWED_PACKAGES
    ) -> "Experiment":
        """A copy with some settings changed; ``policy_kwargs`` are merged key by key.

        :raises ValueError: unknown key or bad value
        """
        settings = {"n_timesteps": self.n_timesteps, **settings}
        changed = parse_settings(self.env_id, settings, packages, check_names=True)
        named = {name: getattr(changed, name) for name in SETTINGS if name in settings}
        merged = {name: {**getattr(self, name), **getattr(changed, name)} for name in ("policy_kwargs", "hyperparams")}
        return self.replace(**{**named, **merged})

    def settings(self) -> dict[str, Any]:
        """The experiment as an entry of a settings file, which :func:`parse_settings` and rl_zoo3 can read."""
        policy = self.policy
        parts = {
            name: [{part.name: plain(part.kwargs)} if part.kwargs else part.name for part in getattr(self, name)]
            for name in PARTS
        }
        optional = {
            "normalize": self.normalize is not None and (plain(self.normalize) or True),
            "frame_stack": self.frame_stack,
            **parts,
            "env_kwargs": plain(self.env_kwargs),
            "monitor_kwargs": self.monitor_kwargs and format_literal(self.monitor_kwargs),
            "policy_kwargs": self.policy_kwargs and format_literal(self.policy_kwargs),
        }
        return {
            "n_timesteps": self.n_timesteps,
            "n_envs": self.n_envs,
            "policy": policy if isinstance(policy, str) else f"{policy.__module__}.{policy.__qualname__}",
            **{name: value for name, value in optional.items() if value},
            **{name: plain(value) for name, value in self.hyperparams.items()},
        }

    def beside_settings(self) -> dict[str, Any]:
        """The fields that are not part of a settings file."""
        return {name: getattr(self, name) for name in BESIDE_SETTINGS}

    def for_each_process(self, n_processes: int) -> "Experiment":
        """The part of one of several processes, with its share of the environments and of each minibatch."""
        if n_processes == 1:
            return self
        batch_size = self.hyperparams.get("batch_size", 64)
        for name, value in (("n_envs", self.n_envs), ("batch_size", batch_size)):
            if value % n_processes:
                raise ValueError(
                    f"{name}={value} cannot be divided among {n_processes} processes: use a multiple of {n_processes}, "
                    f"such as {name}={-(-value // n_processes) * n_processes}, or fewer processes"
                )
        hyperparams = {**self.hyperparams, "batch_size": batch_size // n_processes}
        return self.replace(n_envs=self.n_envs // n_processes, hyperparams=hyperparams)

    @property
    def deterministic_eval(self) -> bool:
        """Whether evaluation takes the most likely actions: as in rl_zoo3, not for Atari and MiniGrid."""
        spec = gym.registry.get(self.env_id)
        return not is_atari(self.env_id) and "minigrid" not in str(spec and spec.entry_point)


#: Fields of :class:`Experiment` that a settings file does not set.
BESIDE_SETTINGS = ("eval_env_kwargs", "seed", "device", "vec_env")
#: Keys of a settings file that are fields of :class:`Experiment`; the other keys are arguments of ``PPO_Plus``.
SETTINGS = tuple(f.name for f in fields(Experiment) if f.name not in ("env_id", "hyperparams", *BESIDE_SETTINGS))
#: Keys that name classes to import, and the base class of each.
PARTS = {"env_wrapper": gym.Wrapper, "vec_env_wrapper": VecEnvWrapper, "callback": BaseCallback}
#: Arguments of ``PPO_Plus`` that are not hyperparameters.
OF_THE_RUN = {"policy", "policy_kwargs", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}


def load_experiment(
    env_id: str,
    path: str | Path | None = None,
    overrides: dict[str, Any] | None = None,
    *,
    variant: str | None = None,
    packages: Collection[str] | None = ALLOWED_PACKAGES,
    **run: Any,
) -> Experiment:
    """The experiment that a settings file describes for an environment, with every name looked up and checked.

    :param path: YAML file; ``None`` for the package's own
    :param overrides: settings that replace those of the file
    :param variant: use the entry ``env_id/variant`` of the file
    :param packages: packages that the file may import wrappers, callbacks and policies from; ``None``: any
    :param run: fields that a file does not set: ``seed``, ``device``, ``vec_env``, ``eval_env_kwargs``
    :raises ValueError: invalid YAML, no entry, unknown key or bad value; the message names file, entry and key
    """
    source, overrides = builtin_file() if path is None else Path(path), overrides or {}
    name, entry = read_entry(env_id, source, variant)
    # Overrides are checked alone first, so that the message does not blame the file for them.
    parse_settings(env_id, {"n_timesteps": 1, **overrides}, packages, check_names=True)
    with errors_of(f"{source}, {name}"):
        return parse_settings(env_id, {**entry, **overrides}, packages, check_names=True).replace(**run)


def saved_experiment(folder: RunFolder, packages: Collection[str] | None = ALLOWED_PACKAGES) -> Experiment:
    """The experiment of a run, which rl_zoo3 may have trained."""
    settings, arguments = read_mapping(folder.settings / "config.yml"), folder.arguments()
    if arguments.get("env_kwargs"):
        settings["env_kwargs"] = arguments["env_kwargs"]
    run = {name: arguments[name] for name in BESIDE_SETTINGS if name in arguments}
    return parse_settings(folder.env_id, settings, packages).replace(**run)


def parse_settings(
    env_id: str,
    settings: dict[str, Any],
    packages: Collection[str] | None = ALLOWED_PACKAGES,
    check_names: bool = False,
) -> Experiment:
    """Read one entry of a settings file.

    :param check_names: whether it must be for PPO_Plus; else it may be another algorithm's
    :raises ValueError: unknown key or bad value
    """
    if check_names:
        # First: a key that seems to be missing may be misspelled.
        _check_names(settings, hyperparameter_names().union(SETTINGS))
    readers: dict[str, Callable[[str, Any], Any]] = {
        "n_timesteps": positive_int,
        "n_envs": positive_int,
        "policy": partial(_policy, packages),
        "normalize": _normalize,
        "frame_stack": lambda name, value: None if value is None else positive_int(name, value),
        **dict.fromkeys(PARTS, partial(_parts, packages)),
        "env_kwargs": read_arguments,
        "monitor_kwargs": read_arguments,
        "policy_kwargs": _policy_kwargs,
    }
    settings = {"n_timesteps": None, **settings}
    named = {name: read(name, settings[name]) for name, read in readers.items() if name in settings}
    rest = {name: read_hyperparameter(name, value) for name, value in settings.items() if name not in readers}
    return Experiment(env_id, **named, hyperparams=rest)


def hyperparameter_names() -> set[str]:
    """Arguments of ``PPO_Plus`` that a settings file may set as hyperparameters."""
    return set(signature(PPO_Plus).parameters) - OF_THE_RUN


def _check_names(names: Iterable[Any], valid: Collection[str], where: str = "") -> None:
    for name in names:
        if name not in valid:
            likely = nearest(name, valid)
            remedy = f"valid keys are {', '.join(sorted(valid))}" if likely is None else f"did you mean {likely!r}?"
            raise ValueError(f"unknown key {name!r}{where}: {remedy}")


def _policy(packages: Collection[str] | None, _name: str, value: Any) -> str | type:
    if isinstance(value, str) and "." in value:
        return import_class(value, BasePolicy, packages)
    return value if isinstance(value, type) else str(value)


def _parts(packages: Collection[str] | None, name: str, value: Any) -> tuple[Part, ...]:
    """One class or a list of classes, each a dotted name or a mapping from it to keyword arguments."""
    parts = []
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        mapping = {item: None} if isinstance(item, str) else item
        if not isinstance(mapping, dict) or len(mapping) != 1 or not isinstance(next(iter(mapping)), str):
            raise ValueError(f"{name}: {item!r} must be a dotted name, or a mapping of one such name to its arguments")
        ((dotted, kwargs),) = mapping.items()
        with errors_of(name):
            part = Part(dotted, import_class(dotted, PARTS[name], packages), read_arguments(dotted, kwargs))
            try:
                # Wrappers are called with an environment.
                signature(part.cls).bind(*(() if name == "callback" else (None,)), **part.kwargs)
            except TypeError as error:
                raise ValueError(f"{dotted}: {error}") from None
            parts.append(part)
    return tuple(parts)


def _normalize(name: str, value: Any) -> dict[str, Any] | None:
    value = read_literal(name, value)
    if value is None or isinstance(value, bool):
        return {} if value else None
    arguments = read_arguments(name, value)
    defaults = {each.name: each.default for each in signature(VecNormalize).parameters.values() if each.name != "venv"}
    _check_names(arguments, defaults, " in normalize")
    for key, item in arguments.items():
        kind = {bool: bool, float: (int, float)}.get(type(defaults[key]), (list, tuple, type(None)))
        if not isinstance(item, kind) or (isinstance(item, bool) and kind is not bool):  # type: ignore[arg-type]
            raise ValueError(f"normalize: {key}={item!r} must be like its default, {defaults[key]!r}")
    return arguments


def _policy_kwargs(name: str, value: Any) -> dict[str, Any]:
    arguments = read_arguments(name, value)
    for key, item in arguments.items():
        if isinstance(item, str) and str(key).endswith(("_fn", "_class")):
            raise ValueError(f"policy_kwargs: {key}={item!r} must be a class, such as nn.ReLU or th.optim.Adam")
    return arguments
