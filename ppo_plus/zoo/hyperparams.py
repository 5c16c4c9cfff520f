"""Settings files: YAML in rl_zoo3's format, and the Python text in it, such as
``dict(net_arch=[64], activation_fn=nn.ReLU)``. Reading them never runs code.

The package's own file is ``hyperparams/ppo_plus.yml``.
"""

import ast
import math
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from importlib import import_module
from itertools import chain
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeAlias

import yaml

import ppo_plus
from ppo_plus.require import nearest
from ppo_plus.zoo.installation import Packages, import_class, is_atari

#: A value of a settings file: plain data of YAML, or what Python text stands for.
Value: TypeAlias = object
#: Torch's modules whose networks and optimizers Python text may name, by the names that they have there.
MODULES = dict.fromkeys(("nn", "th.nn", "torch.nn"), "torch.nn")
MODULES |= dict.fromkeys(("th.optim", "torch.optim"), "torch.optim")
#: Classes of ppo_plus that settings may call, with constants as arguments.
STRATEGIES = (
    "WhiteNoise StateDependentNoise ColoredNoise EarlyStop AdaptivePenalty AdaptiveLearningRate "
    "Stream Cost RandomNetworkDistillation".split()
)
ALLOWED = "constants, lists, tuples, {...}, dict(...), nn.X, th.optim.X, Cost('cost', limit=25.0), ColoredNoise(0.5)"


def parse_literal(text: str, packages: Packages = ()) -> Value:
    """Read Python text of settings files. The syntax tree is evaluated by hand, so that nothing in the text is run.

    :param packages: packages whose networks and optimizers the text may name, as ``my_nets.Extractor``; ``None``: any
    :raises ValueError: the text is not made of :data:`ALLOWED` and these only
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, packages)
    except SyntaxError as error:
        raise ValueError(f"{shortened(text, 57)!r} is not a Python expression ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise ValueError(f"{shortened(text, 57)!r} is nested too deeply") from None


def _value(node: ast.AST, packages: Packages) -> Value:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return [_value(item, packages) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, packages) for item in items)
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant | ast.UnaryOp) for key in keys):
            return {_value(key, ()): _value(value, packages) for key, value in zip(keys, values, strict=True) if key}
        case ast.Call(func=ast.Name(id=name), args=items, keywords=words) if all(word.arg for word in words) and (
            name in STRATEGIES or (name == "dict" and not items)
        ):
            arguments = {str(word.arg): _value(word.value, packages) for word in words}
            if len(arguments) < len(words):
                raise ValueError(f"{shortened(ast.unparse(node), 57)!r} has an argument twice")
            first = [_value(item, packages) for item in items]
            try:
                return arguments if name == "dict" else getattr(ppo_plus, name)(*first, **arguments)
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        case ast.Attribute(value=owner, attr=name) if ast.unparse(owner) in MODULES:
            return import_class(f"{MODULES[ast.unparse(owner)]}.{name}", _torch_classes(), ["torch"])
        case ast.Attribute() if packages != () and re.fullmatch(r"[\w.]+", ast.unparse(node)):
            return import_class(ast.unparse(node), _torch_classes(), packages)
    raise ValueError(f"{shortened(ast.unparse(node), 57)!r} is not allowed: write only {ALLOWED}")


def _torch_classes() -> tuple[type, ...]:
    """The base classes of networks and optimizers."""
    return import_module("torch.nn").Module, import_module("torch.optim").Optimizer


def format_literal(value: Any) -> str:
    """Write a value as text that :func:`parse_literal` and rl_zoo3 read back.

    :raises ValueError: :func:`parse_literal` cannot return the value
    """
    match value:
        case dict() if value and all(
            isinstance(key, str) and key.isidentifier() and not iskeyword(key) for key in value
        ):
            return f"dict({_format_arguments(value)})"
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
        case type(__name__=name, __module__=module):
            for owner, path in MODULES.items():
                if vars(import_module(path)).get(name) is value:
                    return f"{owner}.{name}"
            if issubclass(value, _torch_classes()) and vars(import_module(module)).get(name) is value:
                return f"{module}.{name}"
        case _ if (name := type(value).__name__) in STRATEGIES and type(value) is getattr(ppo_plus, name):
            arguments = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            return f"{name}({_format_arguments(arguments)})"
    raise ValueError(f"{value!r} cannot be written: use only {ALLOWED}")


def _format_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={format_literal(value)}" for name, value in arguments.items())


#: Python text that a value of a mapping may be: torch's classes, ``None`` in quotes, and tuples.
LITERAL = re.compile(r"(nn|(th|torch)\.(nn|optim))\.\w+|None|\([-+.,e\d ]*\)")
#: Maximum number of values in a file, with those that aliases repeat.
MAX_NODES = 100_000


def builtin_file() -> Path:
    """The package's own settings: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "hyperparams" / "ppo_plus.yml"
    return installed if installed.is_file() else package.parent / "hyperparams" / "ppo_plus.yml"


def measured_returns() -> dict[str, str]:
    """What the entries of the package's own file reached, in words, by name; without those that were not measured."""
    return read_mapping(builtin_file().with_name("returns.yml"))


def read_entry(env_id: str, source: Path, variant: str | None = None) -> tuple[str, dict[str, Any]]:
    """The entry of an environment in a settings file: its own, else ``atari`` for an ALE game, else ``default``. A file
    with ``n_timesteps`` instead of entries, such as that of a run, has the settings of any environment.

    :param variant: use the entry ``env_id/variant``, or ``atari/variant``, and no other
    :return: name of the entry, and its settings
    :raises ValueError: invalid YAML, or no entry
    """
    entries, bare = read_mapping(source), env_id.rpartition(":")[2]
    if "n_timesteps" in entries and variant is None:
        return env_id, entries
    names = [*dict.fromkeys([env_id, bare]), *(["atari"] if is_atari(bare) else [])]
    names = [*names, "default"] if variant is None else [f"{name}/{variant}" for name in names]
    for name in (*names, f"default/{variant}"):
        if name in entries:
            return name, require_mapping(f"{source}, {name}: the entry", entries[name])
    prefixes = (f"{env_id}/", f"{bare}/", "default/")
    variants = dict.fromkeys(str(name).rpartition("/")[2] for name in entries if str(name).startswith(prefixes))
    raise ValueError(f"{source} has no entry {' or '.join(names)}; variants of {bare}: {', '.join(variants) or 'none'}")


class Loader(yaml.SafeLoader):
    """YAML's safe loader, with rl_zoo3's ordered dictionaries and tuples, in which a key may be written only once."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Check the keys as they are written: merges (``<<``) are added later."""
        node, lines = super().compose_mapping_node(anchor), dict[Any, int]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"the key {key.value!r} in line {line} is already in line {lines[name]}")
            lines[name] = line
        return node


class Dumper(yaml.SafeDumper):
    """YAML's safe dumper, with quotation marks around text that :class:`Loader` would read as a number or ``None``."""


def _items(loader: Loader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


_PYTHON = "tag:yaml.org,2002:python/"
Loader.add_constructor(f"{_PYTHON}tuple", _items)
Loader.add_constructor(f"{_PYTHON}object/apply:collections.OrderedDict", lambda *args: dict(*_items(*args)))
# Numbers as in Python: in YAML 1.1, 1e5 is text, 010 is 8, and 1:30 is 90. What else begins with a digit is text.
_NUMBER = re.compile(r"[-+]?(0x[\da-fA-F]+|(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)?)$")
for _kind in (Loader, Dumper):  # first, because PyYAML then copies the lists that all its classes share
    _kind.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), "N")
_INFINITY = ("tag:yaml.org,2002:float", re.compile(r"[-+]?\.(inf|Inf|INF)$"))
Loader.yaml_implicit_resolvers |= dict.fromkeys("-+0123456789", [("!number", _NUMBER), _INFINITY])
Dumper.add_implicit_resolver("!number", _NUMBER, list("-+.0123456789"))
Loader.add_implicit_resolver("!number", _NUMBER, ["."])
Loader.add_constructor("!number", lambda _, node: ast.literal_eval(node.value))


def to_yaml(mapping: dict[str, Any]) -> str:
    """A mapping as YAML, which :func:`read_mapping` reads back."""
    return yaml.dump(mapping, Dumper=Dumper, sort_keys=False)


def read_mapping(source: Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping of plain data. ``ValueError``: invalid YAML, or not a mapping."""
    text = source.read_bytes()
    try:
        entries = deepcopy(_parsed(text))
    except Exception as error:
        # Any exception: PyYAML's constructors raise many kinds for text that claims to be a number.
        message = shortened(" ".join(str(error).split()) or type(error).__name__)
        raise ValueError(f"{source} is not valid YAML: {message}") from None
    return require_mapping(str(source), entries)


@lru_cache(maxsize=4)  # a command reads the package's own file several times, which takes 0.3 s each
def _parsed(text: bytes) -> Value:
    loader = Loader(text)
    node = loader.get_single_node()
    if node is not None and _written_out(node, {}) > MAX_NODES:
        raise yaml.YAMLError(f"its aliases stand for more than {MAX_NODES} values")
    return None if node is None else loader.construct_document(node)


def _written_out(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node stands for, if its aliases are written out."""
    if id(node) not in sizes:
        sizes[id(node)] = MAX_NODES + 1  # for an alias within itself
        parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + sum(_written_out(part, sizes) for part in parts if isinstance(part, yaml.Node))
    return sizes[id(node)]


def require_mapping(name: str, value: Value) -> dict[str, Any]:
    """:raises ValueError: ``value`` is not a mapping"""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {shortened(repr(value))}")
    return value


def require_known(name: str, valid: Collection[str]) -> None:
    """:raises ValueError: ``name`` is not a valid key"""
    if name not in valid:
        likely = nearest(name, valid)
        remedy = f"valid keys are {', '.join(sorted(valid))}" if likely is None else f"did you mean {likely!r}?"
        raise ValueError(f"unknown key {name!r}: {remedy}")


def shortened(text: str, most: int = 500) -> str:
    """A text, cut to what a message may quote."""
    return text if len(text) <= most else f"{text[:most]}..."


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Begin the message of a ``ValueError`` in the block with the name of what has the mistake."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def positive_int(name: str, value: Value) -> int:
    """A whole number, at least 1, written as ``100000``, ``1e5`` or ``"1e5"``, or ``ValueError``."""
    number = 0.0
    if isinstance(value, int | float | str):
        with suppress(ValueError, OverflowError):
            number = float(value)
    if isinstance(value, bool) or number < 1 or not number.is_integer():
        raise ValueError(f"{name} must be a positive whole number, not {value!r}")
    return int(number)


def read_literal(name: str, value: Value, packages: Packages = ()) -> Value:
    """A value, which is Python text if it is a string."""
    with errors_of(name):
        return parse_literal(value, packages) if isinstance(value, str) else value


def read_arguments(name: str, value: Value, packages: Packages = ()) -> dict[str, Any]:
    """A mapping, or Python text of one; ``None`` is an empty one. Its values may be :data:`LITERAL`."""
    value = read_literal(name, value, packages)
    mapping = require_mapping(name, {} if value is None else value)
    return {key: read_literal(name, item) if LITERAL.fullmatch(str(item)) else item for key, item in mapping.items()}


def pairs_option(option: str, pairs: dict[str, Any] | None) -> list[str]:
    """An option with its pairs, as on the command line: ``--env-kwargs g:9.81``."""
    given = [f"{name}:{format_literal(value)}" for name, value in (pairs or {}).items()]
    return [option, *given] if given else []


def plain(value: Value) -> Value:
    """A value as YAML can store it: unchanged, or as Python text."""
    return value if _is_plain(value) else format_literal(value)


def _is_plain(value: Value) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)
