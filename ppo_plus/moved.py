"""Modules that have moved: their old names go on working, with a deprecation.

What version 0.1 pickled names its modules as they were then, so models of that time load through this table as well.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

#: Where the contents of a former module are now.
MOVED: dict[str, tuple[str, ...]] = {
    "ppo_plus.advantages": ("ppo_plus.formulas.advantages",),
    "ppo_plus.arguments": ("ppo_plus.require",),
    "ppo_plus.buffers": ("ppo_plus.rollout.buffer", "ppo_plus.update.batch"),
    "ppo_plus.distributions": ("ppo_plus.policy.distributions",),
    "ppo_plus.evaluation": ("ppo_plus.rollout.evaluation",),
    "ppo_plus.exploration": ("ppo_plus.formulas.exploration",),
    "ppo_plus.kl_control": ("ppo_plus.formulas.kl_control",),
    "ppo_plus.losses": ("ppo_plus.formulas.losses",),
    "ppo_plus.masking": ("ppo_plus.policy.masking",),
    "ppo_plus.memory": ("ppo_plus.policy.recurrent", "ppo_plus.policy.carry"),
    "ppo_plus.migration": ("ppo_plus.files.from_sb3",),
    "ppo_plus.observations": ("ppo_plus.policy.observations",),
    "ppo_plus.policies": ("ppo_plus.policy.policies", "ppo_plus.policy.adapter"),
    "ppo_plus.recurrent": ("ppo_plus.policy.recurrent",),
    "ppo_plus.schedules": ("ppo_plus.formulas.schedules",),
    "ppo_plus.vec_env": ("ppo_plus.rollout.vec_env",),
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes a former module of those that have its contents now."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: types.ModuleType) -> None:
        sources = MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved to {' and '.join(sources)}: import from ppo_plus, or from there",
            DeprecationWarning,
            stacklevel=2,
        )
        homes = [importlib.import_module(source) for source in sources]

        def find(name: str) -> Any:
            for home in homes:
                if hasattr(home, name):
                    return getattr(home, name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = find


def install() -> None:
    """Let the former names be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
