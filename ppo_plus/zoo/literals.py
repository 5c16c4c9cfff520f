"""Python values written as text: read without running any of it, and written so that they read back."""

import ast
import keyword
import math
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any

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
