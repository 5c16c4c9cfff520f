"""What this Python installation offers: environments by Gymnasium id, classes by dotted name, a way to draw MuJoCo
without a screen, and commands to paste into a shell, which start the program with this installation."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from ctypes.util import find_library
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import gymnasium as gym

#: Packages of games, which are imported when they are made.
GAME_PACKAGES = ("mpe2", "pettingzoo")
#: Packages that settings files may import wrappers, callbacks and policies from without being trusted.
ALLOWED_PACKAGES = (
    "ale_py",
    "gymnasium",
    "minigrid",
    "ppo_plus",
    "rl_zoo3",
    "sb3_contrib",
    "stable_baselines3",
    *GAME_PACKAGES,
)
#: Which packages a function may import from; ``None``: any.
Packages = Collection[str] | None
#: By a pattern of ids: the module that registers these environments, and the packages to install.
REGISTERS = {
    "MiniGrid-": ("minigrid", "minigrid"),
    "NoVel-": ("rl_zoo3.import_envs", "rl_zoo3"),
    "^ALE/|NoFrameskip|Deterministic|-ram": ("ale_py", "ale-py opencv-python"),
}
#: What makes the games of PettingZoo, by what is before the name of their module.
GAMES = {"pettingzoo": "ppo_plus.envs.agents:Team", "selfplay": "ppo_plus.league:SelfPlay"}


def module_of(env_id: str) -> str:
    """The module that making an environment imports; empty: that is Gymnasium's."""
    module, _, name = env_id.rpartition(":")
    return name if module in GAMES else module


def find_env(env_id: str) -> gym.envs.registration.EnvSpec:
    """Gymnasium's specification of an environment, with which a worker process need not register it.

    :param env_id: Gymnasium environment id; ``module:id`` imports the module first; ``pettingzoo:module``: the agents
        of a parallel game of PettingZoo, ``selfplay:module`` is a game against others
    :raises gymnasium.error.Error: the environment does not exist, or its package is not installed
    """
    module, _, name = env_id.rpartition(":")
    if module in GAMES:  # which import the game when they are made, with errors that say what is missing
        _search_current_folder()
        return gym.envs.registration.EnvSpec(env_id, GAMES[module], kwargs={"env": name}, disable_env_checker=True)
    if module:
        import_packages([module])
    is_atari(name)  # which registers ALE's games, if they are installed
    registers, packages = next((known for part, known in REGISTERS.items() if re.search(part, name)), ("", ""))
    if registers and name not in gym.registry:
        with suppress(ImportError):
            _imported(registers)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        if registers and find_spec(registers.partition(".")[0]) is None:
            raise type(error)(f"{env_id} needs a package: pip install {packages}") from None
        if not module:
            raise type(error)(f"{error} If your own module registers it, add --gym-packages MODULE.") from None
        raise


def is_atari(env_id: str) -> bool:
    """Whether an environment belongs to the Arcade Learning Environment (``ale-py``)."""
    if env_id not in gym.registry:
        with suppress(ImportError):
            _imported("ale_py")
    spec = gym.registry.get(env_id)
    return env_id.startswith("ALE/") or (spec is not None and "AtariEnv" in str(spec.entry_point))


def import_packages(names: Iterable[str]) -> None:
    """Import packages that register environments, from the current folder as well."""
    for name in names:
        _search_current_folder()
        _imported(name)


def _search_current_folder() -> None:
    """Let imports find modules in the current folder, last, so that they cannot hide a package."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)


def import_class(name: str, parents: type | tuple[type, ...], packages: Packages = ALLOWED_PACKAGES) -> type:
    """Import a class by its dotted name.

    :param packages: packages that the name, and the class itself, must come from; ``None``: any, which may run any code
    :raises ValueError: another package, no such class, or not a subclass of one of ``parents``
    """
    module_name, _, class_name = name.rpartition(".")
    if packages is None:
        _search_current_folder()
    elif not is_within(module_name, packages):
        problem = f"{name!r} is in none of the packages that settings may import from ({', '.join(packages)})"
        remedy = f"add --gym-packages {name.partition('.')[0]}, or --trust-config for all (Python: packages=None)"
        raise ValueError(f"{problem}: if you trust the file, {remedy}")
    try:
        cls = getattr(_imported(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "is its name right?" if isinstance(error, AttributeError) else "is its package installed?"
        raise ValueError(f"{name!r} cannot be imported ({error}): {remedy}") from error
    parents = parents if isinstance(parents, tuple) else (parents,)
    if not isinstance(cls, type) or not issubclass(cls, parents):
        names = " or ".join(f"{parent.__module__}.{parent.__qualname__}" for parent in parents)
        raise ValueError(f"{name!r} is not a subclass of {names}")
    # A module of an allowed package may itself have imported the class from elsewhere.
    if packages is not None and not is_within(cls.__module__, packages):
        raise ValueError(f"{name!r} comes from {cls.__module__}, which settings may not import from")
    from ppo_plus.saving.format.names import is_part, register  # which import torch

    if is_part(cls):
        register(cls)  # so that the files of the run may ask for it
    return cls


def _imported(name: str) -> ModuleType:
    """A module. Importing rl_zoo3 replaces Gymnasium's time limit for all environments, which is undone."""
    limit = gym.wrappers.TimeLimit
    try:
        return import_module(name)
    finally:
        gym.wrappers.TimeLimit = gym.wrappers.common.TimeLimit = limit  # type: ignore[misc]


def is_within(module_name: str, packages: Collection[str]) -> bool:
    return any(module_name == package or module_name.startswith(f"{package}.") for package in packages)


#: Libraries that draw without a screen; in lower case they are values of ``MUJOCO_GL``.
OFFSCREEN = ("EGL", "OSMesa")


def has_screen() -> bool:
    """Whether windows can be shown; assumed on other systems than Linux."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def draw_without_screen() -> None:
    """Without a screen, set ``MUJOCO_GL``, which MuJoCo reads when it is imported, to an installed library."""
    library = None if has_screen() or "MUJOCO_GL" in os.environ else next(filter(find_library, OFFSCREEN), None)
    if library is not None:
        os.environ["MUJOCO_GL"] = library.lower()


def require_drawing(env_id: str, window: bool) -> None:
    """Check that MuJoCo can draw, if an environment uses it: without a screen, a window would end the process."""
    if "mujoco" not in sys.modules or has_screen():
        return
    if window:
        remedy = "add --no-render, or make a GIF: the same command with record instead of enjoy"
        raise ValueError(f"there is no screen to show {env_id} on (DISPLAY is not set): {remedy}")
    if "MUJOCO_GL" not in os.environ:
        remedy = "install EGL or OSMesa (on Debian and Ubuntu: apt install libegl1)"
        raise ValueError(f"there is no screen, and no library for MuJoCo to draw {env_id} without one: {remedy}")


def require_render_modes(env_id: str) -> None:
    """:raises ValueError: the environment's class says that it does not render"""
    entry = find_env(env_id).entry_point
    creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if getattr(creator, "metadata", {}).get("render_modes") == []:
        remedy = "its class needs metadata = {'render_modes': ['rgb_array'], 'render_fps': 30}, an argument render_mode"
        raise ValueError(f"{env_id} has no render modes: {remedy}, and render(); enjoy --no-render prints the returns")


def command(*words: object) -> str:
    """A command of this program, such as ``ppo-plus enjoy --env CartPole-v1``."""
    path = shutil.which("ppo-plus")  # of this environment, or of another one
    found = path is not None and Path(path).parent.resolve() == Path(sys.executable).parent.resolve()
    return shlex.join([*(["ppo-plus"] if found else [sys.executable, "-m", "ppo_plus"]), *map(str, words)])


def import_options(packages: Iterable[str] | None, trusted: bool) -> list[str]:
    """The options that allow a command to import packages; ``trusted``: all."""
    named = [name for name in packages or () if not is_within(name, GAME_PACKAGES)]
    return [*(["--gym-packages", *named] if named else []), *(["--trust-config"] if trusted else [])]


def deterministic_option(deterministic: bool | None) -> list[str]:
    """The option by which evaluations take the most likely actions, or sampled ones; ``None``: by default."""
    return [] if deterministic is None else ["--deterministic" if deterministic else "--stochastic"]


def this_command() -> str:
    """The command line of this process, without passwords."""
    if Path(sys.argv[0]).name == "ppo-plus":
        return command(*map(without_password, sys.argv[1:]))
    return shlex.join(map(without_password, sys.orig_argv))


def without_password(word: str) -> str:
    """An argument with the passwords of URLs in it replaced by ``***``."""
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", re.sub(r"([?&]password=)[^&\s]*", r"\1***", word))
