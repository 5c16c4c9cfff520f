"""The arguments of classes, read from their source: a mistyped one is told before torch has loaded."""

import ast
from importlib.util import find_spec
from pathlib import Path

from ppo_plus import MODULES

#: SB3's other algorithms.
SB3_ALGORITHMS = ("A2C", "DDPG", "DQN", "SAC", "TD3")
#: What no settings file sets: the training run decides it.
OF_THE_RUN = {"env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}


def ppo_plus_arguments() -> set[str]:
    """The arguments of ``PPO_Plus`` that a settings file may set."""
    return _arguments(_package("ppo_plus").joinpath(*MODULES["PPO_Plus"].split(".")[1:]).with_suffix(".py"), "PPO_Plus")


def sb3_algorithms_with(argument: str) -> list[str]:
    """Those of SB3's other algorithms that have an argument which a settings file may set."""
    package = _package("stable_baselines3")
    files = {name: package / name.lower() / f"{name.lower()}.py" for name in SB3_ALGORITHMS}
    return [name for name, path in files.items() if argument in _arguments(path, name)]


def vec_normalize_arguments() -> set[str]:
    """The arguments of ``VecNormalize``."""
    path = _package("stable_baselines3") / "common" / "vec_env" / "vec_normalize.py"
    return _arguments(path, "VecNormalize") - {"venv"}


def _package(name: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _arguments(path: Path, name: str) -> set[str]:
    """The arguments of the constructor of a class, but for :data:`OF_THE_RUN`."""
    classes = ast.parse(path.read_text(encoding="utf-8")).body
    body = next(node for node in classes if isinstance(node, ast.ClassDef) and node.name == name).body
    arguments = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__").args
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)} - {"self"} - OF_THE_RUN
