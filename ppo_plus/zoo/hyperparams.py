"""Settings files: YAML in rl_zoo3's format, with Python values as text. Reading them never runs code.

The package's own file is ``hyperparams/ppo_plus.yml``.
"""

import ast
import keyword
import math
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from ppo_plus.zoo.registry import is_atari

#: Maximum number of characters that a message quotes.
MAX_MESSAGE = 500
#: Maximum of any number of things: fits in 64 bits.
MAX_NUMBER = 10**18

#: Modules whose classes Python text may name: the real module, and the required base class.
MODULES = {
    **dict.fromkeys(("nn", "th.nn", "torch.nn"), ("torch.nn", "Module")),
    **dict.fromkeys(("th.optim", "torch.optim"), ("torch.optim", "Optimizer")),
}
#: Classes that rl_zoo3's files name without a module, and their modules.
NAMES = {"RMSpropTFLike": "stable_baselines3.common.sb2_compat.rmsprop_tf_like"}
#: Classes of ppo_plus that settings may call, with constants as arguments, and their modules.
STRATEGIES = {
    **dict.fromkeys(("WhiteNoise", "StateDependentNoise", "ColoredNoise"), "ppo_plus.formulas.exploration"),
    **dict.fromkeys(("EarlyStop", "AdaptivePenalty", "AdaptiveLearningRate"), "ppo_plus.formulas.kl_control"),
}
ALLOWED = f"constants, lists, tuples, {{...}}, dict(...), nn.X, th.optim.X, {', '.join(NAMES)}, ColoredNoise(beta=...)"


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
    """YAML's safe loader, plus the ordered dictionaries and tuples in the files that rl_zoo3 keeps with a run."""

    def make_dict(self, node: yaml.SequenceNode) -> dict[Any, Any]:
        (pairs,) = self.construct_sequence(node, deep=True)
        return dict(pairs)

    def make_tuple(self, node: yaml.SequenceNode) -> tuple[Any, ...]:
        return tuple(self.construct_sequence(node, deep=True))


RunLoader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", RunLoader.make_dict)
RunLoader.add_constructor("tag:yaml.org,2002:python/tuple", RunLoader.make_tuple)


def read_mapping(source: Path, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> dict[str, Any]:
    """Read a YAML file that contains a mapping of plain data.

    :param loader: loader to read it with; :class:`RunLoader` for the files of a run
    :raises ValueError: invalid YAML, or not a mapping
    :raises OSError: the file cannot be read
    """
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file")
    text = source.read_bytes()
    try:
        entries = yaml.load(text, loader)
    except Exception as error:
        # Any exception: PyYAML's constructors raise many kinds for text that claims to be a number.
        message = shortened(" ".join(str(error).split()) or type(error).__name__)
        raise ValueError(f"{source} is not valid YAML: {message}") from None
    return require_mapping(str(source), entries)


def require_mapping(name: str, value: Any) -> dict[str, Any]:
    """:raises ValueError: ``value`` is not a mapping"""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of keys to values, not {shortened(repr(value))}")
    return value


def shortened(text: str, length: int = MAX_MESSAGE) -> str:
    """A text, cut to what a message may quote."""
    return text if len(text) <= length else f"{text[:length]}..."


def positive_int(name: str, value: Any) -> int:
    """A whole number from 1 to :data:`MAX_NUMBER`, written as ``100000``, ``1e5`` or ``"1e5"``.

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


def parse_literal(text: str) -> Any:
    """Read Python text of settings files, such as ``"dict(net_arch=[64, 64], activation_fn=nn.ReLU)"``.

    The syntax tree is evaluated by hand, so that nothing in the text is run.

    :raises ValueError: the text is not made of :data:`ALLOWED` only
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{_quoted(text)} is not a Python expression ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise ValueError(f"{_quoted(text)} is nested too deeply") from None


def format_literal(value: Any) -> str:
    """Write a value as text that :func:`parse_literal` and rl_zoo3 read back.

    :raises ValueError: :func:`parse_literal` cannot return the value
    """
    match value:
        case dict() if value and all(map(_is_keyword_argument, value)):
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
        case type():
            return _class_name(value)
        case _ if type(value).__module__ == STRATEGIES.get(type(value).__name__, ""):
            arguments = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            return f"{type(value).__name__}({_format_arguments(arguments)})"
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
        case ast.Call(func=ast.Name(id=name), args=[], keywords=pairs) if all(pair.arg for pair in pairs) and (
            name == "dict" or name in STRATEGIES
        ):
            arguments = {str(pair.arg): _value(pair.value) for pair in pairs}
            return arguments if name == "dict" else _strategy(name, arguments)
        case ast.Name(id=name) if name in NAMES:
            return getattr(import_module(NAMES[name]), name)
        case ast.Attribute(value=owner, attr=name) if ast.unparse(owner) in MODULES:
            return _class(ast.unparse(owner), name)
    raise ValueError(f"{_quoted(ast.unparse(node))} is not allowed: write only {ALLOWED}")


def _strategy(name: str, arguments: dict[str, Any]) -> Any:
    try:
        return getattr(import_module(STRATEGIES[name]), name)(**arguments)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _format_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={format_literal(value)}" for name, value in arguments.items())


def _is_keyword_argument(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _class(owner: str, name: str) -> type:
    path, parent = MODULES[owner]
    module = import_module(path)
    found = vars(module).get(name)
    if isinstance(found, type) and issubclass(found, getattr(module, parent)):
        return found
    raise ValueError(f"{owner}.{name} is not a torch {parent.lower()} class")


def _class_name(value: type) -> str:
    for owner, (path, _) in MODULES.items():
        if vars(import_module(path)).get(value.__name__) is value:
            return f"{owner}.{value.__name__}"
    if value.__module__ == NAMES.get(value.__name__):
        return value.__name__
    raise ValueError(f"{value!r} cannot be written: use only {ALLOWED}")


def _quoted(text: str) -> str:
    return repr(shortened(text, 57))
