"""Python values written as text, read without running any of it."""

import ast
from typing import Any

from torch import nn

ALLOWED = "constants, lists, tuples, {...}, dict(...) and nn.X, where X is a torch module class"


def parse_literal(text: str) -> Any:
    """Read what settings files write as Python, such as ``"dict(net_arch=[64, 64], activation_fn=nn.ReLU)"``.

    :param text: a Python expression made of nothing but :data:`ALLOWED`
    :return: its value
    :raises ValueError: anything else
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{_short(text)} is no Python expression ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise ValueError(f"{_short(text)} is nested too deeply") from None


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
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(pair.arg for pair in keywords):
            return {pair.arg: _value(pair.value) for pair in keywords}
        case ast.Attribute(value=ast.Name(id="nn"), attr=name):
            return _module_class(name)
    raise ValueError(f"{_short(ast.unparse(node))} is not allowed: write only {ALLOWED}")


def _module_class(name: str) -> type[nn.Module]:
    found = getattr(nn, name, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    raise ValueError(f"nn.{name} is no torch module class")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
