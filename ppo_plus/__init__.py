"""PPO for Stable-Baselines3: every action space, every exploration, several KL controls, much faster."""

from importlib import import_module
from typing import Any

from ppo_plus.public import MODULES, REMOVED, version_of

__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    """Import what is used for the first time: a public name, or the version."""
    if name in MODULES:
        value = getattr(import_module(MODULES[name]), name)
    elif name == "__version__":
        value = version_of("ppo_plus")
    elif name in REMOVED:
        # Python would replace an AttributeError of `from ppo_plus import ...` by one without the remedy.
        raise ImportError(f"ppo_plus.{name} was removed: {REMOVED[name]}", name=name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
