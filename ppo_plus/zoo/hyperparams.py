"""Settings files: YAML in the format of rl_zoo3. The package's own is ``hyperparams/ppo_plus.yml``."""

from pathlib import Path
from typing import Any

import yaml

from ppo_plus.zoo.registry import is_atari

#: The most values that a file may have once its anchors are written out. Tuned files have a few thousand.
MAX_VALUES = 100_000
#: No number of anything is larger: 64 bits hold it.
MAX_NUMBER = 10**18


def builtin_file() -> Path:
    """The package's own settings: inside the package where it is installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "hyperparams" / "ppo_plus.yml"
    return installed if installed.is_file() else package.parent / "hyperparams" / "ppo_plus.yml"


def read_entry(env_id: str, source: Path, variant: str | None = None) -> tuple[str, dict[str, Any]]:
    """What a settings file says about an environment: its own entry, else ``atari`` for an ALE game, else ``default``.

    :param env_id: Gymnasium environment id
    :param source: YAML file
    :param variant: take the entry ``env_id/variant``, and no other
    :return: name of the entry, and its settings
    :raises ValueError: broken YAML, or no entry
    :raises OSError: the file cannot be read
    """
    entries = read_mapping(source)
    names = (
        [env_id, *(["atari"] if is_atari(env_id) else []), "default"] if variant is None else [f"{env_id}/{variant}"]
    )
    for name in names:
        if name in entries:
            return name, require_mapping(f"{source}, {name}: the entry", entries[name])
    variants = [name for name in entries if str(name).startswith(f"{env_id}/")]
    raise ValueError(
        f"{source} has no entry {' or '.join(names)}; variants of {env_id}: {', '.join(variants) or 'none'}"
    )


class RunLoader(yaml.SafeLoader):
    """Reads what rl_zoo3 keeps with a run: besides plain data, ordered dictionaries and tuples of it. As of YAML's safe
    loader, no other object is made of it, and nothing in it runs."""


def _ordered_dict(loader: RunLoader, node: yaml.SequenceNode) -> dict[Any, Any]:
    (pairs,) = loader.construct_sequence(node, deep=True)
    return dict(pairs)


def _tuple(loader: RunLoader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


RunLoader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _ordered_dict)
RunLoader.add_constructor("tag:yaml.org,2002:python/tuple", _tuple)


def read_mapping(source: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> dict[str, Any]:
    """The contents of a YAML file that must be a mapping; no object other than plain data can be in it.

    :param source: YAML file
    :param loader: how it is read; :class:`RunLoader` for what is kept with a run
    :raises ValueError: broken YAML, no mapping, or more than :data:`MAX_VALUES` values
    :raises OSError: the file cannot be read
    """
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file")
    try:
        entries = yaml.load(source.read_bytes(), loader)
        size = _size(entries, {})
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{source} is no valid YAML: {error}") from None
    if size > MAX_VALUES:
        raise ValueError(f"{source} has more than {MAX_VALUES} values, or one that contains itself")
    return require_mapping(str(source), entries)


def require_mapping(name: str, value: Any) -> dict[str, Any]:
    """:raises ValueError: ``value`` is no mapping"""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {value!r}")
    return value


def _size(value: Any, sizes: dict[int, int]) -> int:
    """Values within plain data, what is shared by anchors counted wherever it stands."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = MAX_VALUES  # seen again while it is being counted: it contains itself
        items = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_size(item, sizes) for item in items)
    return sizes[id(value)]


def positive_int(name: str, value: Any) -> int:
    """A whole number from one to :data:`MAX_NUMBER`, however it is written: ``100000``, ``1e5`` or ``"1e5"``.

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
    if number > MAX_NUMBER:
        raise ValueError(f"{name} must be at most {MAX_NUMBER:.0e}, not {value!r}")
    return int(number)
