"""Python values as text, such as ``dict(net_arch=[64], activation_fn=nn.ReLU)``. Reading them never runs code."""

import ast
import math
from dataclasses import fields
from importlib import import_module
from keyword import iskeyword
from typing import Any

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


def parse_literal(text: str) -> Any:
    """Read Python text of settings files. The syntax tree is evaluated by hand, so that nothing in the text is run.

    :raises ValueError: the text is not made of :data:`ALLOWED` only
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{_quoted(text)} is not a Python expression ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise ValueError(f"{_quoted(text)} is nested too deeply") from None


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
            try:
                return arguments if name == "dict" else getattr(import_module(STRATEGIES[name]), name)(**arguments)
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        case ast.Name(id=name) if name in NAMES:
            return getattr(import_module(NAMES[name]), name)
        case ast.Attribute(value=owner, attr=name) if ast.unparse(owner) in MODULES:
            path, parent = MODULES[ast.unparse(owner)]
            module = import_module(path)
            found = vars(module).get(name)
            if isinstance(found, type) and issubclass(found, getattr(module, parent)):
                return found
            raise ValueError(f"{ast.unparse(node)} is not a torch {parent.lower()} class")
    raise ValueError(f"{_quoted(ast.unparse(node))} is not allowed: write only {ALLOWED}")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 57 else f"{text[:57]}...")


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
            for owner, (path, _) in MODULES.items():
                if vars(import_module(path)).get(name) is value:
                    return f"{owner}.{name}"
            if module == NAMES.get(name):
                return name
        case _ if type(value).__module__ == STRATEGIES.get(type(value).__name__):
            arguments = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            return f"{type(value).__name__}({_format_arguments(arguments)})"
    raise ValueError(f"{value!r} cannot be written: use only {ALLOWED}")


def _format_arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={format_literal(value)}" for name, value in arguments.items())
