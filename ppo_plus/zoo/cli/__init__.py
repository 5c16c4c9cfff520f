"""The command line. A mistake of the user ends in one clear line and exit code 2, but an error in the user's own code
in Python's traceback.

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
        # Everything else is imported inside, so that Ctrl-C is one line during the imports, too.
        parser = make_parser()
        args = parser.parse_args(arguments)
        import gymnasium as gym

        # Only here: an error during the work, or in the user's code, is Python's to show.
        try:
            work = args.prepare(args)
        except (ValueError, TypeError, AssertionError, ImportError, OSError, gym.error.Error) as error:
            if "traceback" in args or passed_own_code(error):
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


def passed_own_code(error: BaseException | None) -> bool:
    """Whether an error or its cause passed the user's code: not this package's, an installed one's, or Python's."""
    ours = [Path(__file__).parents[2], Path(traceback.__file__).parent]
    if error is None:
        return False
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(path.parts) or any(map(path.is_relative_to, ours))
        if not installed and path.is_absolute():  # else it is compiled, or has no file
            return True
    return passed_own_code(error.__cause__ or error.__context__)


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
