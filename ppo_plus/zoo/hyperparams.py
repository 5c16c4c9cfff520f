"""Settings files: YAML in rl_zoo3's format, and the values in it. The package's own is ``hyperparams/ppo_plus.yml``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ppo_plus.zoo.literals import STRATEGIES, format_literal, parse_literal
from ppo_plus.zoo.registry import is_atari

#: A class that a mapping may name without being Python text as a whole.
CLASS = re.compile(r"(nn|(th|torch)\.(nn|optim))\.\w+")
#: Maximum number of characters that a message quotes.
MAX_MESSAGE = 500
#: Maximum number of values in a file, with those that aliases repeat.
MAX_NODES = 100_000
#: Maximum of any number of things: fits in 64 bits.
MAX_NUMBER = 10**18


def builtin_file() -> Path:
    """The package's own settings: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "hyperparams" / "ppo_plus.yml"
    return installed if installed.is_file() else package.parent / "hyperparams" / "ppo_plus.yml"


def read_entry(env_id: str, source: Path, variant: str | None = None) -> tuple[str, dict[str, Any]]:
    """The entry of an environment in a settings file: its own, else ``atari`` for an ALE game, else ``default``.

    :param variant: use the entry ``env_id/variant``, and no other
    :return: name of the entry, and its settings
    :raises ValueError: invalid YAML, or no entry
    """
    entries, env_id = read_mapping(source), env_id.rpartition(":")[2]
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


class Loader(yaml.SafeLoader):
    """YAML's safe loader, with rl_zoo3's ordered dictionaries and tuples, in which a key may be written only once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Check the keys as they are written: merges (``<<``) are added later."""
        node, lines = super().compose_mapping_node(anchor), dict[Any, int]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"the key {key.value!r} in line {line} is already in line {lines[name]}")
            lines[name] = line
        return node


def _items(loader: Any, node: Any) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


_PYTHON = "tag:yaml.org,2002:python/"
Loader.add_constructor(f"{_PYTHON}tuple", _items)
Loader.add_constructor(f"{_PYTHON}object/apply:collections.OrderedDict", lambda *args: dict(*_items(*args)))


def read_mapping(source: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping of plain data. ``ValueError``: invalid YAML, or not a mapping."""
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file")
    text = source.read_bytes()
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is not None and _written_out(node, {}) > MAX_NODES:
            raise yaml.YAMLError(f"its aliases stand for more than {MAX_NODES} values")
        entries = node and loader.construct_document(node)
    except Exception as error:
        # Any exception: PyYAML's constructors raise many kinds for text that claims to be a number.
        message = shortened(" ".join(str(error).split()) or type(error).__name__)
        raise ValueError(f"{source} is not valid YAML: {message}") from None
    return require_mapping(str(source), entries)


def _written_out(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node stands for, if its aliases are written out."""
    if id(node) not in sizes:
        sizes[id(node)] = MAX_NODES + 1  # for an alias within itself
        parts = [part for each in getattr(node, "value", ()) for part in (each if isinstance(each, tuple) else (each,))]
        sizes[id(node)] = 1 + sum(_written_out(part, sizes) for part in parts if isinstance(part, yaml.Node))
    return sizes[id(node)]


def require_mapping(name: str, value: Any) -> dict[str, Any]:
    """:raises ValueError: ``value`` is not a mapping"""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {shortened(repr(value))}")
    return value


def shortened(text: str) -> str:
    """A text, cut to what a message may quote."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Begin the message of a ``ValueError`` in the block with the name of what has the mistake."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def positive_int(name: str, value: Any) -> int:
    """A whole number from 1 to :data:`MAX_NUMBER`, written as ``100000``, ``1e5`` or ``"1e5"``, or ``ValueError``."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or number < 1 or not number.is_integer():
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    if number > MAX_NUMBER:
        raise ValueError(f"{name} must be at most {MAX_NUMBER:.0e}, not {value!r}")
    return int(number)


def read_literal(name: str, value: Any) -> Any:
    """A value, which is Python text if it is a string."""
    with errors_of(name):
        return parse_literal(value) if isinstance(value, str) else value


def read_arguments(name: str, value: Any) -> dict[str, Any]:
    """A mapping, given as such, as Python text, or as ``None``; ``nn.X`` in its values becomes the class."""
    value = read_literal(name, value)
    mapping = require_mapping(name, {} if value is None else value)
    return {
        key: read_literal(name, item) if isinstance(item, str) and CLASS.fullmatch(item) else item
        for key, item in mapping.items()
    }


def read_hyperparameter(name: Any, value: Any) -> Any:
    """A number (also text such as ``1e-3``), a word, a call such as ``ColoredNoise(beta=0.5)``, or arguments."""
    if str(name).endswith("_kwargs"):
        return read_arguments(name, value)
    if not isinstance(value, str):
        return value
    if value.partition("(")[0] in STRATEGIES:
        return read_literal(name, value)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", value):
        raise ValueError(f"{name}={value!r} is a string: write the number without quotes")
    try:
        return float(value)
    except ValueError:
        return value


def plain(value: Any) -> Any:
    """A value as YAML can store it: unchanged, or as Python text."""
    return value if _is_plain(value) else format_literal(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)
