"""Hyperparameter search with Optuna: many workers, an exact budget, and a winner only if unseen seeds confirm it. It
needs the extra ``zoo``."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppo_plus.zoo.tune.plan import Plan
    from ppo_plus.zoo.tune.space import read_space
    from ppo_plus.zoo.tune.stages import Study
    from ppo_plus.zoo.tune.storage import open_storage
    from ppo_plus.zoo.tune.tuner import Workers, tune

__all__ = ["Plan", "Study", "Workers", "open_storage", "read_space", "tune"]

#: Module of each name. They are imported on first use, because Optuna takes seconds.
MODULES = {"Plan": "plan", "Study": "stages", "open_storage": "storage", "read_space": "space"}
MODULES |= dict.fromkeys(("Workers", "tune"), "tuner")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
