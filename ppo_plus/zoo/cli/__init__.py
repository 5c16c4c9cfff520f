"""The command line. A mistake of the user ends in one clear line and exit code 2.

A subcommand is a module with ``add_parser(commands)``. Its parser has a default ``prepare``: a function of the
arguments that does everything in which a mistake of the user can show, and returns the function that does the work.
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppo_plus.zoo.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from ppo_plus.zoo.cli.arguments import Parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with some arguments; ``None`` for those of the process."""
    try:
        # Everything else is imported inside, so that Ctrl-C also works during the imports.
        parser = make_parser()
        args = parser.parse_args(arguments)
        import gymnasium as gym

        # Only here: an error during the work is not a mistake of the user, and shows its traceback.
        try:
            work = args.prepare(args)
        except Exception as error:
            mistakes = (ValueError, TypeError, AssertionError, ImportError, OSError, gym.error.Error)
            if in_users_code(error) or not isinstance(error, mistakes):
                raise
            parser.error(str(error) or type(error).__name__)
        try:
            work()
        except (gym.error.DependencyNotInstalled, gym.error.UnsupportedMode) as error:
            # Many environments find out what they draw with, and how, only when they draw.
            parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def in_users_code(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, as its traceback shows it, passed the user's code: neither this package's,
    nor an installed package's, nor Python's."""
    ours = [Path(__file__).parents[2], Path(traceback.__file__).parent]
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            path = Path(frame.filename)
            installed = {"site-packages", "dist-packages"} & set(path.parts) or any(map(path.is_relative_to, ours))
            if not installed and not frame.filename.startswith("<"):
                return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def make_parser() -> "Parser":
    """The parser of the program and its subcommands."""
    from ppo_plus import __version__
    from ppo_plus.zoo.cli import experiments, results
    from ppo_plus.zoo.cli.arguments import Parser

    parser = Parser(
        prog="ppo-plus",
        description="Train and tune PPO_Plus; watch, record and compare what it learned.",
        epilog="To begin: ppo-plus train --env CartPole-v1. Options of a command: ppo-plus COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"ppo-plus {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for module in (experiments, results):
        module.add_parser(commands)
    return parser
