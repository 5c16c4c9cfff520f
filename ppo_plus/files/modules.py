"""Networks that are arguments: their class, attributes, weights and parts."""

from typing import Any

import torch as th
from torch import nn

#: What every module has, as it is in a new one.
_NEW = vars(nn.Module())
#: What of it is kept; the rest are hooks.
_KEPT = ("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_KINDS: dict[str, Any] = {"_parameters": nn.Parameter, "_buffers": th.Tensor, "_modules": nn.Module}


def module_facts(module: nn.Module) -> dict[str, Any] | None:
    """The attributes of a module; ``None``: they do not say all of it, since it has hooks or is recurrent."""
    has_hooks = any(vars(module).get(name) != new for name, new in _NEW.items() if name not in _KEPT)
    if has_hooks or isinstance(module, nn.RNNBase):
        return None
    return {name: value for name, value in vars(module).items() if name not in _NEW or name in _KEPT}


def make_module(cls: type[nn.Module], facts: dict[str, Any]) -> nn.Module:
    """The module again.

    :param cls: its class
    :param facts: what :func:`module_facts` returned
    :raises ValueError: they are no module's
    """
    kinds = [isinstance(each, (_KINDS[name], type(None))) for name in _KINDS for each in facts[name].values()]
    if not all(kinds) or any(name in _NEW and name not in _KEPT for name in facts) or issubclass(cls, nn.RNNBase):
        raise ValueError(f"this is no {cls.__name__}")
    made = object.__new__(cls)
    nn.Module.__init__(made)
    vars(made).update(facts)
    return made
