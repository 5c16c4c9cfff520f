"""Classes named in settings files, imported from packages that such files may use."""

from collections.abc import Collection
from importlib import import_module

#: Packages that settings files may import wrappers, callbacks and policies from without being trusted.
ALLOWED_PACKAGES = ("ale_py", "gymnasium", "minigrid", "ppo_plus", "rl_zoo3", "sb3_contrib", "stable_baselines3")


def import_class(name: str, kind: type, packages: Collection[str] | None = ALLOWED_PACKAGES) -> type:
    """The class that a dotted name stands for.

    :param name: such as ``"stable_baselines3.common.atari_wrappers.AtariWrapper"``
    :param kind: what it must be a subclass of
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
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be imported ({error}): is its package installed?") from None
    # What a module of an allowed package has imported from elsewhere is not allowed with it.
    if not isinstance(found, type) or not issubclass(found, kind):
        raise ValueError(f"{name!r} is no subclass of {kind.__module__}.{kind.__qualname__}")
    if packages is not None and not _is_within(found.__module__, packages):
        raise ValueError(f"{name!r} comes from {found.__module__}, which settings may not import from")
    return found


def _is_within(module_name: str, packages: Collection[str]) -> bool:
    return any(module_name == package or module_name.startswith(f"{package}.") for package in packages)
