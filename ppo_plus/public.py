"""The public names of the package, which files of models have, too."""

import ast
from pathlib import Path

_STUB = Path(__file__).with_name("__init__.pyi")
#: The module of each public name, from the imports that type checkers read. A module is imported when a name of it is
#: first used: torch takes seconds to load, and `ppo-plus --help` does without it.
MODULES = {
    alias.name: f"{node.module}"
    for node in ast.parse(_STUB.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def version_of(package: str) -> str:
    """The version of an installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # imported from a checkout that is not installed
        return "unknown"
