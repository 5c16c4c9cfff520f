"""PPO for Stable-Baselines3: every action space, every exploration, several KL controls, much faster."""

from importlib import import_module
from typing import Any

from ppo_plus.public import MODULES, version_of

__all__ = list(MODULES)


def __getattr__(name: str) -> Any:
    """Import what is used for the first time: a public name, or the version."""
    if name in MODULES:
        value = getattr(import_module(MODULES[name]), name)
    elif name == "__version__":
        value = version_of("ppo_plus")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
