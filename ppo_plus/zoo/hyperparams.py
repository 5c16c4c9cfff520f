"""Settings files: YAML in the format of rl_zoo3. The package's own is ``hyperparams/ppo_plus.yml``."""

from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from ppo_plus.zoo.registry import is_atari

#: The most bytes of a file. Tuned files have some ten thousand.
MAX_BYTES = 2**20
#: The most keys and values that a file may have once its anchors and merges are written out. Tuned files have a few
#: thousand.
MAX_VALUES = 100_000
#: The most characters of a number: reading a longer one can take time that grows with the square of its length.
MAX_DIGITS = 100
#: So many characters of a text count as one value: a long one may stand in many places by its anchor.
VALUE_LENGTH = 100
#: The most characters that a message quotes.
MAX_MESSAGE = 500
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

    :param source: YAML file, at most :data:`MAX_BYTES` long
    :param loader: how it is read; :class:`RunLoader` for what is kept with a run
    :raises ValueError: broken YAML, no mapping, a longer file, more than :data:`MAX_VALUES` values, or a number of more
        than :data:`MAX_DIGITS` characters
    :raises OSError: the file cannot be read
    """
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file")
    with source.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{source} has more than {MAX_BYTES} bytes: that is no file of settings")
    try:
        entries = _parse(text, loader)
    except Exception as error:
        # Any kind: of text that claims to be a number, PyYAML's constructors raise whatever their code runs into.
        raise ValueError(f"{source} is no valid YAML: {_one_line(error)}") from None
    return require_mapping(str(source), entries)


def require_mapping(name: str, value: Any) -> dict[str, Any]:
    """:raises ValueError: ``value`` is no mapping"""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {shortened(repr(value))}")
    return value


def _parse(text: bytes, kind: type[yaml.SafeLoader]) -> Any:
    """Read YAML. Its size is known before anything is made of it: PyYAML copies what is merged (``<<``), so that a few
    lines of nested merges would fill the memory."""
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values, or one that contains itself")
        return loader.construct_document(node)
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Keys and values within a node, what is shared by anchors or merged counted wherever it stands.

    :param node: the node
    :param sizes: sizes of the nodes seen so far, by their ids
    :raises ValueError: a number with too many characters
    """
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > MAX_DIGITS and node.tag.endswith((":int", ":float")):
            raise ValueError(f"a number has {len(node.value)} characters; the most are {MAX_DIGITS}")
        return 1 + len(node.value) // VALUE_LENGTH
    if id(node) not in sizes:
        sizes[id(node)] = MAX_VALUES  # seen again while it is being counted: it contains itself
        items = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + sum(_size(item, sizes) for item in items)
    return sizes[id(node)]


def _one_line(error: Exception) -> str:
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def shortened(text: str) -> str:
    """A text, cut to what a message may quote."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."


def positive_int(name: str, value: Any) -> int:
    """A whole number from one to :data:`MAX_NUMBER`, however it is written: ``100000``, ``1e5`` or ``"1e5"``.

    :param name: what it is called, for the error message
    :param value: the number
    :raises ValueError: anything else
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or number < 1 or not number.is_integer():
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    if number > MAX_NUMBER:
        raise ValueError(f"{name} must be at most {MAX_NUMBER:.0e}, not {value!r}")
    return int(number)
