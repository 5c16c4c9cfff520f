"""Hyperparameter search with Optuna, an exact budget, and a confirmation on unseen seeds. Needs the extra ``zoo``."""

from importlib import import_module
from typing import Any

#: Module of each name. They are imported on first use, because Optuna takes seconds.
MODULES = {"Plan": "plan", "Study": "stages", "open_storage": "storage", "read_space": "space"}
MODULES |= dict.fromkeys(("Workers", "tune"), "tuner")


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
