"""Gymnasium's spaces by the arguments that make them."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ppo_plus.files.names import name_of

#: For each class the attributes that say all of a space, but for its generator.
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    spaces.Box: ("low", "high", "dtype", "bounded_below", "bounded_above"),
    spaces.Dict: ("spaces",),
    spaces.Discrete: ("n", "start", "dtype"),
    spaces.Graph: ("node_space", "edge_space"),
    spaces.MultiBinary: ("n",),
    spaces.MultiDiscrete: ("nvec", "start", "dtype"),
    spaces.OneOf: ("spaces",),
    spaces.Sequence: ("feature_space", "stack"),
    spaces.Text: ("min_length", "max_length", "charset"),
    spaces.Tuple: ("spaces",),
}
#: Names of these attributes, where another one is written.
_PRIVATE = {"charset": "_char_list"}
#: The classes by their names in files.
SPACES = {name_of(cls): cls for cls in ATTRIBUTES}


def facts(space: spaces.Space) -> dict[str, Any]:
    """The values that make a space again."""
    return chosen(type(space), vars(space))


def chosen(cls: type, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those attributes of a space that make it again.

    :param cls: one of :data:`ATTRIBUTES`
    :param attributes: all of the space; some are missing if Gymnasium was older
    """
    names = {name: _PRIVATE.get(name, name) for name in ATTRIBUTES[cls]}
    return {name: attributes[each] for name, each in names.items() if each in attributes}


def make_space(cls: type, facts: Mapping[str, Any]) -> spaces.Space:
    """The space again.

    :param cls: one of :data:`ATTRIBUTES`
    :param facts: what :func:`facts` returned; some lack where Gymnasium was older
    :raises Exception: of any kind, where they make no space
    """
    made = _MAKERS[cls](**{name: facts[name] for name in ATTRIBUTES[cls] if name in facts})
    for each in (made, *_inner(made)):
        if not isinstance(each, spaces.Space):
            raise TypeError(f"{each!r} is no space")
    return made


def _inner(space: Any) -> list[Any]:
    inner = getattr(space, "spaces", ())
    return list(inner.values() if isinstance(inner, Mapping) else inner)


def _box(low: Any, high: Any, dtype: Any, bounded_below: Any = None, bounded_above: Any = None) -> spaces.Box:
    box = spaces.Box(np.asarray(low), np.asarray(high), dtype=dtype)
    # An integer has no infinity to say by itself that it is no bound.
    for name, bounded in (("bounded_below", bounded_below), ("bounded_above", bounded_above)):
        if bounded is not None:
            bounded = np.asarray(bounded)
            if bounded.dtype != bool or bounded.shape != box.shape:
                raise ValueError(f"{name} must be booleans of shape {box.shape}")
            setattr(box, name, bounded)
    return box


def _discrete(n: Any, start: Any = 0, dtype: Any = None) -> spaces.Discrete:
    options = {} if dtype is None or dtype == np.int64 else {"dtype": dtype}
    return spaces.Discrete(n, start=start, **options)


def _dict(spaces: Mapping[str, Any]) -> gymnasium.spaces.Dict:
    # Pairs, since Gymnasium would sort the keys of a dict.
    return gymnasium.spaces.Dict(list(spaces.items()))


#: Constructors with attributes as arguments.
_MAKERS: dict[type, Callable[..., spaces.Space]] = {
    spaces.Box: _box,
    spaces.Dict: _dict,
    spaces.Discrete: _discrete,
    spaces.Graph: spaces.Graph,
    spaces.MultiBinary: spaces.MultiBinary,
    spaces.MultiDiscrete: spaces.MultiDiscrete,
    spaces.OneOf: spaces.OneOf,
    spaces.Sequence: lambda feature_space, stack=False: spaces.Sequence(feature_space, stack=stack),
    spaces.Text: lambda charset, **lengths: spaces.Text(charset="".join(charset), **lengths),
    spaces.Tuple: spaces.Tuple,
}
