"""Commands to paste into a shell: they start the program in the environment that this process runs in."""

import os
import re
import shlex
import shutil
import sys
from importlib.metadata import requires
from pathlib import Path


def command(*words: object) -> str:
    """A command of this program, such as ``ppo-plus enjoy --env CartPole-v1``."""
    return shlex.join([*_program("ppo-plus", "ppo_plus"), *map(str, words)])


def pip_install(*packages: str, extra: str | None = None) -> str:
    """The command that installs packages, or those of an extra of this package."""
    if extra is not None:
        needed = (line.partition(";") for line in requires("ppo_plus") or ())
        packages += tuple(name.strip() for name, _, when in needed if re.search(rf"extra == ['\"]{extra}['\"]", when))
    return shlex.join([*_program("pip", "pip"), "install", *packages])


def _program(script: str, module: str) -> list[str]:
    """A script if the shell finds this environment's, or else this environment's Python with the module."""
    folder, found = Path(sys.executable).parent, shutil.which(script)
    if found is not None and Path(found).parent.resolve() == folder.resolve():
        return [script]
    inside = folder.is_relative_to(Path.cwd())
    return [os.path.relpath(sys.executable) if inside else sys.executable, "-m", module]


def this_command() -> str:
    """The command line of this process, without passwords."""
    if Path(sys.argv[0]).name == "ppo-plus":
        return command(*map(without_password, sys.argv[1:]))
    return shlex.join(map(without_password, sys.orig_argv))


def without_password(word: str) -> str:
    """An argument with the passwords of URLs in it replaced by ``***``."""
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", re.sub(r"([?&]password=)[^&\s]*", r"\1***", word))
