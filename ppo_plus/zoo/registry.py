"""Environments by their Gymnasium id."""

import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym


def find_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """How Gymnasium makes an environment. Handed to worker processes as it is, so that they need no registration.

    :param env_id: Gymnasium environment id; ``module:id`` imports the module first
    :raises gymnasium.error.Error: there is no such environment, or its package is not installed
    :raises ImportError: there is no such module
    """
    module, _, name = env_id.rpartition(":")
    if module:
        import_packages([module])
    atari = is_atari(name)  # registers ALE's environments where they can be
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        if atari and find_spec("ale_py") is None:
            raise type(error)(f"{env_id} needs pip install ale-py opencv-python") from None
        versions = [spec for spec in gym.registry.values() if spec.id.rpartition("-v")[0] == name]
        if versions:
            latest = max(versions, key=lambda spec: spec.version or 0)
            raise type(error)(f"{env_id!r} has no version: use {latest.id}") from None
        raise


def is_atari(env_id: str) -> bool:
    """Whether an environment is one of the Arcade Learning Environment (of ``ale-py``, where that is installed)."""
    if env_id not in gym.registry:
        with suppress(ImportError):
            import ale_py

            gym.register_envs(ale_py)
    spec = gym.registry.get(env_id)
    return env_id.startswith("ALE/") or (spec is not None and "AtariEnv" in str(spec.entry_point))


#: Packages that settings files may import wrappers, callbacks and policies from without being trusted.
ALLOWED_PACKAGES = ("ale_py", "gymnasium", "minigrid", "ppo_plus", "rl_zoo3", "sb3_contrib", "stable_baselines3")


def import_packages(names: Iterable[str]) -> None:
    """Import packages that register environments, those in the current folder as well.

    :param names: their names
    :raises ImportError: there is none of that name
    """
    for name in names:
        search_here()
        import_module(name)


def search_here() -> None:
    """Let imports find what is in the current folder, after everything else: nothing there can hide a package."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def import_class(name: str, kind: str | type, packages: Collection[str] | None = ALLOWED_PACKAGES) -> type:
    """The class that a dotted name stands for.

    :param name: such as ``"stable_baselines3.common.atari_wrappers.AtariWrapper"``
    :param kind: what it must be a subclass of: a class, or its dotted name
    :param packages: packages that it, and the class itself, must come from; ``None``: any, which runs the code of
        whatever the file names
    :raises ValueError: another package, no such class, or a class of another kind
    """
    module_name, _, class_name = name.rpartition(".")
    if packages is not None and not _is_within(module_name, packages):
        raise ValueError(
            f"{name!r} is in none of the packages that settings may import from ({', '.join(packages)}): "
            "use --trust-config (packages=None) if you trust the file"
        )
    if packages is None:
        search_here()
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be imported ({error}): is its package installed?") from None
    parent = _parent(kind)
    # What a module of an allowed package has imported from elsewhere is not allowed with it.
    if not isinstance(found, type) or not issubclass(found, parent):
        raise ValueError(f"{name!r} is no subclass of {parent.__module__}.{parent.__qualname__}")
    if packages is not None and not _is_within(found.__module__, packages):
        raise ValueError(f"{name!r} comes from {found.__module__}, which settings may not import from")
    return found


def _is_within(module_name: str, packages: Collection[str]) -> bool:
    return any(module_name == package or module_name.startswith(f"{package}.") for package in packages)


def _parent(kind: str | type) -> type:
    """A class, or the class of that name."""
    if isinstance(kind, type):
        return kind
    module_name, _, name = kind.rpartition(".")
    found: type = getattr(import_module(module_name), name)
    return found
