"""Settings files: YAML in the format of rl_zoo3. The package's own is ``hyperparams/ppo_plus.yml``."""

import ast
import keyword
import math
from dataclasses import fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
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


#: The longest text that is read, in characters, and the deepest nesting of its brackets and names.
MAX_LENGTH = 10_000
MAX_DEPTH = 20

#: Modules whose classes may be named: the module, which is imported when one is, and what kind of class that must be.
MODULES = {
    "nn": ("torch.nn", "Module"),
    "th.nn": ("torch.nn", "Module"),
    "torch.nn": ("torch.nn", "Module"),
    "th.optim": ("torch.optim", "Optimizer"),
    "torch.optim": ("torch.optim", "Optimizer"),
}
#: Classes that rl_zoo3's files name without a module, and where they are.
NAMES = {"RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like"}

#: Values of ppo_plus that settings may call for, with constants as arguments: where they are.
STRATEGIES = {
    **dict.fromkeys(("WhiteNoise", "StateDependentNoise", "ColoredNoise"), "ppo_plus.formulas.exploration"),
    **dict.fromkeys(("EarlyStop", "AdaptivePenalty", "AdaptiveLearningRate"), "ppo_plus.formulas.kl_control"),
}

ALLOWED = f"constants, lists, tuples, {{...}}, dict(...), nn.X, th.optim.X, {', '.join(NAMES)}, ColoredNoise(beta=...)"


def parse_literal(text: str) -> Any:
    """Read what settings files write as Python, such as ``"dict(net_arch=[64, 64], activation_fn=nn.ReLU)"``.

    The text is taken apart by :mod:`ast` and put together by hand: nothing of it is ever run.

    :param text: a Python expression made of nothing but :data:`ALLOWED`
    :return: its value
    :raises ValueError: anything else, or more than :data:`MAX_LENGTH` characters or :data:`MAX_DEPTH` levels
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{_short(text)} is longer than {MAX_LENGTH} characters")
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{_short(text)} is no Python expression ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise ValueError(f"{_short(text)} is nested too deeply") from None
    if _depth(body) > MAX_DEPTH:
        raise ValueError(f"{_short(text)} is nested too deeply")
    return _value(body)


def format_literal(value: Any) -> str:
    """Write a value as :func:`parse_literal` (and rl_zoo3) reads it: its inverse.

    :param value: a constant, container or class that :func:`parse_literal` can return
    :raises ValueError: it is none of these
    """
    match value:
        case dict() if value and all(map(_is_keyword_argument, value)):
            return f"dict({', '.join(f'{key}={format_literal(item)}' for key, item in value.items())})"
        case dict():
            return f"{{{', '.join(f'{format_literal(key)}: {format_literal(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(format_literal, value))}]"
        case tuple():
            return f"({''.join(f'{format_literal(item)}, ' for item in value).rstrip()})"
        case None | bool() | int() | str():
            return repr(value)
        case float() if math.isfinite(value):
            return repr(value)
        case type():
            return _class_name(value)
        case _ if is_strategy(value):
            given = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            return f"{type(value).__name__}({', '.join(f'{k}={format_literal(item)}' for k, item in given.items())})"
    raise ValueError(f"{value!r} cannot be written: use only {ALLOWED}")


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant | ast.UnaryOp) for key in keys):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=pairs) if all(pair.arg for pair in pairs):
            return {pair.arg: _value(pair.value) for pair in pairs}
        case ast.Call(func=ast.Name(id=name), args=[], keywords=pairs) if name in STRATEGIES and all(
            pair.arg for pair in pairs
        ):
            return _strategy(name, {str(pair.arg): _value(pair.value) for pair in pairs})
        case ast.Name(id=name) if name in NAMES:
            return getattr(import_module(NAMES[name]), name)
        case ast.Attribute(value=owner, attr=name) if ast.unparse(owner) in MODULES:
            return _class(ast.unparse(owner), name)
    raise ValueError(f"{_short(ast.unparse(node))} is not allowed: write only {ALLOWED}")


def is_strategy(value: Any) -> bool:
    """Whether settings may call for a value, which is one of :data:`STRATEGIES`."""
    kind = type(value)
    return kind.__module__ == STRATEGIES.get(kind.__name__, "")


def _strategy(name: str, arguments: dict[str, Any]) -> Any:
    try:
        return getattr(import_module(STRATEGIES[name]), name)(**arguments)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _is_keyword_argument(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _class(owner: str, name: str) -> type:
    module, kind = _module(owner)
    found = vars(module).get(name)
    if isinstance(found, type) and issubclass(found, kind):
        return found
    raise ValueError(f"{owner}.{name} is no torch {kind.__name__.lower()} class")


def _class_name(value: type) -> str:
    for owner in MODULES:
        if vars(_module(owner)[0]).get(value.__name__) is value:
            return f"{owner}.{value.__name__}"
    if value.__module__ == NAMES.get(value.__name__):
        return value.__name__
    raise ValueError(f"{value!r} cannot be written: use only {ALLOWED}")


def _module(owner: str) -> tuple[ModuleType, type]:
    """A module whose classes may be named, and their kind."""
    path, kind = MODULES[owner]
    module = import_module(path)
    return module, getattr(module, kind)


def _depth(root: ast.AST) -> int:
    """Levels of a tree, counted without recursion."""
    depth, level = 0, [root]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
