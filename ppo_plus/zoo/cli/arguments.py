"""Arguments that several subcommands have, and types of arguments whose errors say what is wrong.

Torch and SB3 take seconds to load. Commands import them where they use them, so that most errors come at once.
"""

import argparse
import re
import sys
from argparse import _ActionsContainer, _SubParsersAction
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import yaml

from ppo_plus.zoo.hyperparams import parse_literal, positive_int
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, GAMES, import_packages, is_within, module_of
from ppo_plus.zoo.runs import RunFolder

GYM_PACKAGES = "import these packages, or modules in the current folder, first: they register environments"
#: What subcommands are added to.
Commands: TypeAlias = "_SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    words: Sequence[str] = ()

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        help = "show the whole traceback of an error before the work begins"
        self.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=help)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, all of which must be known."""
        self.words = sys.argv[1:] if args is None else args
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)} (see {self.prog} --help)")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """End the program with a line and exit code 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


class Pairs(argparse.Action):
    """An option whose values are pairs, which become a mapping; it may be repeated, but not its keys."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        mapping = dict(getattr(namespace, self.dest) or {})
        for key, value in values:
            if key in mapping:
                parser.error(f"{option} {key} is given twice")
            mapping[key] = value
        setattr(namespace, self.dest, mapping)


def add_option(group: _ActionsContainer, spec: str, help: str, **kwargs: Any) -> None:
    """Add an option such as ``"-n --n-timesteps N"``; if its default is a number or a text, the help ends with it."""
    *names, last = spec.split()
    if last.startswith("-"):
        names.append(last)
    else:
        kwargs["metavar"] = last
    if type(kwargs.get("default")) in (str, int, float):
        help += " (default: %(default)s)"
    group.add_argument(*names, help=help, **kwargs)


def add_env_arguments(command: argparse.ArgumentParser, log_folder: str) -> None:
    """Add the arguments of subcommands that create environments. ``log_folder`` is rl_zoo3's name of ``-f``."""
    add = partial(add_option, command)
    add("--env ID", "id of a Gymnasium environment, such as CartPole-v1")
    add(f"-f {log_folder} DIR", "folder of all runs", dest="log_folder", default="logs")
    add("--gym-packages PKG", GYM_PACKAGES, nargs="+", action="extend", default=[])
    add("--env-kwargs K:V", "arguments of the environment, such as g:9.81", nargs="+", action=Pairs, type=key_value)
    add("--device", "cpu, cuda or auto", default="auto")


def add_fault_arguments(group: _ActionsContainer, of: str = "") -> None:
    """Add the arguments for environments that fail; ``of`` says what the number of restarts counts for."""
    help = (
        f"restart environments that raise, return invalid data, die or time out, up to N times{of}, and run them in "
        "processes (default: stop with an error that names environment, seed and step)"
    )
    add_option(group, "--restart-envs N", help, type=whole_number)
    help = "limit the time of an environment's step or reset, and run environments in processes (default: no limit)"
    add_option(group, "--env-timeout SECONDS", help, type=float)


def add_deterministic(group: _ActionsContainer) -> None:
    """Add ``--deterministic`` and ``--stochastic``, for the actions of evaluations and of players."""
    help = "take the most likely actions to evaluate (default, except for Atari and MiniGrid)"
    add_option(group, "--deterministic", help, action="store_true", default=None)
    help = "sample actions to evaluate (default for Atari and MiniGrid)"
    add_option(group, "--stochastic", help, dest="deterministic", action="store_false", default=None)


def allowed_packages(args: argparse.Namespace) -> tuple[str, ...] | None:
    """Packages that settings may import from; ``None``: any."""
    return None if args.trust_config else (*ALLOWED_PACKAGES, *(name.split(".")[0] for name in args.gym_packages))


def import_named(args: argparse.Namespace, folder: RunFolder | None = None) -> None:
    """Import the packages that the command names, also before the colon of ``--env``, and those that the command of a
    run named. These must be named again, unless the run is trusted."""
    env_ids = [getattr(args, "env", None) or ""]
    given = [*args.gym_packages, module_of(env_ids[0])]
    named: list[str] = []
    if folder is not None:
        named = [*(folder.arguments().get("gym_packages") or []), module_of(folder.env_id)]
        env_ids.append(folder.env_id)
        yours = dict.fromkeys(name for name in named if name and not is_within(name, ALLOWED_PACKAGES))
        if not args.trust_config and not yours.keys() <= {*given}:
            raise ValueError(f"{folder.path} imports packages of yours: add --gym-packages {' '.join(yours)}")
    args.gym_packages = list(dict.fromkeys(filter(None, [*given, *named])))
    games = {module_of(env_id) for env_id in env_ids if env_id.rpartition(":")[0] in GAMES}
    import_packages(name for name in args.gym_packages if name not in games)


def key_value(text: str) -> tuple[str, Any]:
    """``key:value``, as in rl_zoo3; the value is Python text without code, or a plain word."""
    key, colon, value = text.partition(":")
    if not key or not colon:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY:VALUE, such as learning_rate:0.001")
    try:
        return key, parse_literal(value)
    except ValueError as error:
        if re.fullmatch(r"[A-Za-z][\w.+-]*", value):
            return key, yaml.safe_load(value)  # a word, such as lin_3e-4 or true
        if key.endswith("_kwargs") and re.search(r"[A-Za-z]\w*\.[A-Za-z]", value):
            return key, value  # it names a class, and is read where it is known which packages are allowed
        raise argparse.ArgumentTypeError(f"{key}: {error}; write text in quotes, {key}:\"'text'\"") from None


def whole_number(text: str) -> int:
    """A positive whole number, also as ``1e6``."""
    try:
        return positive_int("it", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def interval(text: str) -> int:
    """A whole number, also as ``1e6``; 0 for numbers that are not positive."""
    return 0 if float(text) <= 0 else whole_number(text)
