"""The command line. A mistake of the user ends in one clear line and exit code 2.

A subcommand is a module with ``add_parser(commands)``. The parser that it adds has a default ``prepare``: a function of
the arguments that does all that can fail by a mistake of the user, and returns the function that does the work.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ppo_plus.zoo.interrupts import INTERRUPTED, ending_at_once

if TYPE_CHECKING:
    from ppo_plus.zoo.cli.arguments import Parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    :param arguments: the arguments; ``None`` for those of the process
    """
    try:
        with _warnings_in_one_line():
            # Everything else is imported within, so that Ctrl-C is answered while it is.
            with ending_at_once():
                parser = make_parser()
                work = _prepare(parser, arguments)
            _work(parser, work)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Within it, warnings look like errors do: no line of source, which means nothing to whoever typed a command."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"ppo-plus: warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _prepare(parser: "Parser", arguments: Sequence[str] | None) -> Callable[[], None]:
    args = parser.parse_args(arguments)
    import gymnasium as gym

    mistakes = (ValueError, TypeError, AssertionError, ImportError, OSError, gym.error.Error)
    # Only mistakes in the settings are caught: an error while working is no user's mistake, and shows its traceback.
    try:
        return args.prepare(args)  # type: ignore[no-any-return]
    except mistakes as error:
        parser.error(str(error) or type(error).__name__)


def _work(parser: "Parser", work: Callable[[], None]) -> None:
    import gymnasium as gym

    try:
        work()
    except gym.error.DependencyNotInstalled as error:
        # Many environments import what draws them only when they draw.
        parser.error(str(error))


def _missing(commands: Any, _args: Any) -> NoReturn:
    """What is prepared where no command was given."""
    raise ValueError(f"which COMMAND? One of {', '.join(commands.choices)}; see ppo-plus --help")


def make_parser() -> "Parser":
    """The parser of the program and its subcommands."""
    from ppo_plus import __version__
    from ppo_plus.zoo.cli import enjoy, plot, train, tune
    from ppo_plus.zoo.cli.arguments import Parser

    parser = Parser(
        prog="ppo-plus",
        description="Train and tune PPO_Plus; watch, record and compare what it learned.",
        epilog="To begin: ppo-plus train --env CartPole-v1. The options of a command: ppo-plus COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"ppo-plus {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    parser.set_defaults(prepare=partial(_missing, commands))
    for module in (train, enjoy, plot, tune):
        module.add_parser(commands)
    return parser
