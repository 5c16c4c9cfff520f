"""The search space: from a YAML file to what Optuna suggests, and from that to settings."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from optuna.trial import Trial

from ppo_plus import PPO_Plus
from ppo_plus.require import require_one_of
from ppo_plus.saving.format.names import constructor_arguments
from ppo_plus.zoo.experiment import FIELDS, PARTS, Experiment, hyperparameter_names
from ppo_plus.zoo.hyperparams import (
    Value,
    builtin_file,
    errors_of,
    parse_literal,
    read_mapping,
    require_known,
    require_mapping,
)

POLICY, SCHEDULE = "policy_kwargs", "_schedule"
#: Scales of ranges, and what they need.
BOUNDS = {"linear": "low < high", "log": "0 < low < high", "near_one": "low < high < 1"}
#: Settings that are whole numbers, at least 1.
COUNTS = ("n_envs", "n_steps", "batch_size", "n_epochs")


@dataclass(frozen=True)
class Choices:
    """One of several values, by their names for the sampler (a number, a string, a bool or None)."""

    values: dict[Any, Any]

    def suggest(self, trial: Trial, name: str) -> Value:
        return self.values[trial.suggest_categorical(name, list(self.values))]

    def encode(self, value: Value) -> Value:
        """The name of a value; ``ValueError`` if it is not one of the choices."""
        for name, known in self.values.items():
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return name
        raise ValueError(f"{value!r} must be one of {list(self.values.values())}")

    def examples(self) -> list[Any]:
        return list(self.values.values())

    def including(self, value: Value) -> "Choices":
        """The choices, with the value added if it is missing."""
        try:
            self.encode(value)
            return self
        except ValueError:
            name = value if isinstance(value, int | float | str) and value not in self.values else repr(value)
            return Choices({**self.values, name: value})


@dataclass(frozen=True)
class Range:
    """A number between two others. With the scale ``"near_one"`` the sampler sees the distance to 1 on a log scale."""

    low: float
    high: float
    scale: str = "linear"

    def __post_init__(self) -> None:
        low, high, scale = self.low, self.high, self.scale
        require_one_of("scale", scale, BOUNDS)
        is_possible = _is_number(low) and _is_number(high) and low < high
        if not is_possible or (scale == "log" and low <= 0) or (scale == "near_one" and high >= 1):
            problem = f"a {scale} range from {low!r} to {high!r} is impossible"
            raise ValueError(f"{problem}: it needs numbers, {BOUNDS[scale]}")

    def suggest(self, trial: Trial, name: str) -> float:
        if self.scale == "near_one":
            return 1 - trial.suggest_float(name, 1 - self.high, 1 - self.low, log=True)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.scale == "log")
        return trial.suggest_float(name, self.low, self.high, log=self.scale == "log")

    def encode(self, value: Value) -> float:
        """The sampler's number for a value; ``ValueError`` if it is not a number."""
        if not _is_number(value):
            raise ValueError(f"{value!r} must be a number")
        number = min(max(value, self.low), self.high)
        return 1 - number if self.scale == "near_one" else number  # exact both ways between 0.5 and 1

    def examples(self) -> list[Any]:
        return [self.low, self.high]

    def including(self, value: Value) -> "Range":
        """The range, widened to include a value if that is a number that the scale can express."""
        if not _is_number(value):
            return self
        # A range of integers becomes one of floats if the baseline is a float.
        low, high = (float(self.low), float(self.high)) if isinstance(value, float) else (self.low, self.high)
        try:
            wider = Range(min(low, value), max(high, value), self.scale)
        except ValueError:
            return self
        return self if self.scale == "near_one" and value < 0.5 else wider


@dataclass(frozen=True)
class Space:
    """Parameters by name: a key of a settings file, ``policy_kwargs.KEY``, or ``KEY_schedule``."""

    dimensions: dict[str, Choices | Range]

    def sample(self, trial: Trial) -> dict[str, Any]:
        """Sample the parameters of a trial, and return them as settings, in the format of a settings file."""
        return self._settings({name: item.suggest(trial, label(name, item)) for name, item in self.dimensions.items()})

    def examples(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Each choice, and both ends of each range: the name, the value, and both as settings."""
        for name, dimension in self.dimensions.items():
            base = self.dimensions.get(name.removesuffix(SCHEDULE), dimension).examples()[0]
            for value in dimension.examples():
                yield name, value, self._settings({name.removesuffix(SCHEDULE): base, name: value})

    def _settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for name, value in values.items():
            if name.startswith(POLICY):
                settings.setdefault(POLICY, {})[name.removeprefix(f"{POLICY}.")] = value
            elif not name.endswith(SCHEDULE):
                schedule = values.get(name + SCHEDULE, "constant")
                settings[name] = value if schedule == "constant" or value is None else f"{schedule}_{value!r}"
        return settings

    def params(self, experiment: Experiment) -> dict[str, Any]:
        """The parameters of an experiment, without those that the space cannot express."""
        params = {}
        for name, dimension in self.dimensions.items():
            with suppress(ValueError):
                params[label(name, dimension)] = dimension.encode(self._value(experiment, name))
        return params

    def including(self, experiment: Experiment) -> "Space":
        """The space, widened to include an experiment."""
        values = {name: self._value(experiment, name) for name in self.dimensions}
        unset = [name for name, value in values.items() if value is None and isinstance(self.dimensions[name], Range)]
        if unset:
            raise ValueError(f"search space: a baseline has {unset[0]}=None: use choices with null, not a range")
        return Space({name: item.including(values[name]) for name, item in self.dimensions.items()})

    def _value(self, experiment: Experiment, name: str) -> Value:
        scheduled = name.removesuffix(SCHEDULE)
        value = setting(experiment, scheduled)
        if scheduled + SCHEDULE not in self.dimensions:
            # Of a schedule, a range knows the number that it starts from.
            return split_schedule(value)[1] if isinstance(self.dimensions[name], Range) else value
        schedule, number = split_schedule(value)
        return number if name == scheduled else schedule


def read_space(path: str | Path | None = None) -> dict[str, Any]:
    """The contents of a search-space file, checked.

    :param path: YAML file; ``None`` for the package's own
    :raises ValueError: broken YAML, unknown key or bad value
    """
    source = builtin_file().with_name("search_space.yml") if path is None else Path(path)
    contents = read_mapping(source)
    with errors_of(str(source)):
        parse_space(contents)
    return contents


def parse_space(contents: Mapping[str, Any]) -> Space:
    """The search space that a mapping describes, in the format of ``hyperparams/search_space.yml``."""
    nested = require_mapping(POLICY, contents.get(POLICY) or {})
    entries = {name: entry for name, entry in contents.items() if name != POLICY}
    entries.update({f"{POLICY}.{name}": entry for name, entry in nested.items()})
    known = hyperparameter_names() | set(FIELDS) - {"n_timesteps", POLICY}
    dimensions: dict[str, Choices | Range] = {}
    for name, entry in entries.items():
        if not str(name).startswith(f"{POLICY}."):
            require_known(str(name).removesuffix(SCHEDULE), known)
        entry = require_mapping(name, entry)
        with errors_of(name):
            dimensions[name] = _dimension(entry, name in COUNTS)
    if lacking := [name for name in dimensions if name.removesuffix(SCHEDULE) not in dimensions]:
        raise ValueError(f"{lacking[0]} needs {lacking[0].removesuffix(SCHEDULE)} in the search space: add it")
    return Space(dimensions)


def label(name: str, dimension: Choices | Range) -> str:
    """The name of a parameter in the study."""
    near_one = isinstance(dimension, Range) and dimension.scale == "near_one"
    return f"1 - {name}" if near_one else name.removeprefix(f"{POLICY}.")


def setting(experiment: Experiment, name: str) -> Any:
    """The value of a setting in an experiment, given or by default."""
    if name.startswith(f"{POLICY}."):
        key, policy = name.removeprefix(f"{POLICY}."), experiment.policy
        cls = policy if isinstance(policy, type) else PPO_Plus.policy_aliases.get(policy, object)
        return experiment.policy_kwargs.get(key, constructor_arguments(cls).get(key))
    if name in PARTS:
        parts = experiment.settings().get(name) or [None]
        return parts[0] if len(parts) == 1 else parts
    if name in FIELDS:
        value = getattr(experiment, name)
        return value is not None if name == "normalize" and not value else value
    return experiment.hyperparams.get(name, constructor_arguments(PPO_Plus).get(name))


def split_schedule(value: Value) -> tuple[str, Value]:
    """``"lin_0.001"`` and ``"lin_0.001_0.0001"`` as ``("lin", 0.001)``; anything else is constant."""
    if isinstance(value, str):
        schedule, *numbers = value.split("_")
        with suppress(ValueError):
            return (schedule, float(numbers[0])) if numbers else ("constant", float(schedule))
    return "constant", value


def _dimension(entry: dict[str, Any], is_count: bool) -> Choices | Range:
    dimension: Choices | Range
    if {"low", "high"} <= set(entry) <= {"low", "high", "scale"}:
        dimension = Range(**entry)
    elif set(entry) == {"choices"}:
        dimension = Choices(_named(entry["choices"]))
    else:
        raise ValueError(f"{entry!r} must have choices, or low, high and perhaps scale")
    for value in dimension.examples() if is_count else ():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{value!r} must be a whole number, at least 1")
    return dimension


def _named(choices: Value) -> dict[Any, Any]:
    if isinstance(choices, list):
        choices = {(item if isinstance(item, int | float | str | None) else repr(item)): item for item in choices}
    if not isinstance(choices, dict) or not choices:
        raise ValueError("choices must be a list, or a mapping of names to values, and not empty")
    return {key: parse_literal(str(value)) if str(value).startswith("nn.") else value for key, value in choices.items()}


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
