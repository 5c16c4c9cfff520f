"""What the subcommands' arguments have in common: one-line errors, and types that say what is wrong.

Torch, SB3 and Gymnasium take seconds to load: the commands import them where they use them, so that ``--help`` and most
mistakes are told at once.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.runs import ALGO

#: Kinds of devices that networks can be on.
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """End the program.

        :param message: what is wrong
        """
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


class _Refused(argparse.Action):
    """An option that is not there, and says what to do instead."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        parser.error(f"{option_string}: {self.const}")


def refuse(command: argparse.ArgumentParser, remedies: Mapping[str, str]) -> None:
    """Answer those of rl_zoo3's options that a command does not have.

    :param command: its parser
    :param remedies: of each option (with ``/`` between its spellings), what to do instead
    """
    for options, remedy in remedies.items():
        command.add_argument(*options.split("/"), action=_Refused, nargs="*", const=remedy, help=argparse.SUPPRESS)


def add_algo_argument(command: argparse.ArgumentParser, help: str, also: tuple[str, ...] = ("ppo",)) -> None:
    """``--algo``, which rl_zoo3's command lines have.

    :param command: the parser
    :param help: what it means there
    :param also: what it may be, besides ``ppo_plus``
    """
    command.add_argument("--algo", choices=[ALGO, *also], default=ALGO, help=help)


def add_env_arguments(command: argparse.ArgumentParser, log_folder: str, env_required: bool = True) -> None:
    """The arguments of every subcommand that makes environments.

    :param command: its parser
    :param log_folder: name of the option for the folder of all runs, as rl_zoo3 calls it there
    :param env_required: whether the environment must be given
    """
    command.add_argument(
        "--env", required=env_required, metavar="ID", help="id of a Gymnasium environment, such as CartPole-v1"
    )
    command.add_argument(
        "-f",
        log_folder,
        dest="log_folder",
        default="logs",
        metavar="DIR",
        help="folder that holds all runs (default: logs)",
    )
    command.add_argument(
        "--gym-packages",
        nargs="+",
        default=[],
        metavar="PKG",
        help="packages, or modules in the current folder, to import because they register environments",
    )
    command.add_argument(
        "--env-kwargs", nargs="+", type=key_value, metavar="K:V", help="arguments of the environment, such as g:9.81"
    )
    command.add_argument("--device", type=device, default="auto", help="cpu, cuda or auto (default: auto)")


def add_fault_arguments(group: Any, of: str = "") -> None:
    """What a run survives of its environments.

    :param group: where the arguments go
    :param of: what has so many restarts, for the help
    """
    group.add_argument(
        "--restart-envs",
        type=whole_number,
        metavar="N",
        help="where an environment raises, returns NaN or another shape, hangs (--env-timeout) or dies, train on with "
        f"a fresh one, up to N times{of} (default: it is an error that names environment, seed and step)",
    )
    group.add_argument(
        "--env-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long an environment may take for a step or a reset; needs --vec-env subproc or auto (default: any "
        "time)",
    )


#: Help of ``--trust-model``.
TRUST_MODEL = "read a model of SB3 that holds pickles, which run code, and let the settings of its run import anything"


def allowed_packages(args: argparse.Namespace) -> tuple[str, ...] | None:
    """What settings may import from; ``None``: from anywhere.

    :param args: with ``trust_config`` and ``gym_packages``
    """
    return None if args.trust_config else (*ALLOWED_PACKAGES, *(name.split(".")[0] for name in args.gym_packages))


def key_value(text: str) -> tuple[str, Any]:
    """``key:value``, as rl_zoo3 writes it; the value is Python text without code, or a plain word."""
    import yaml

    from ppo_plus.zoo.hyperparams import parse_literal

    key, colon, value = text.partition(":")
    if not key or not colon:
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY:VALUE, such as learning_rate:0.001")
    try:
        return key, parse_literal(value)
    except ValueError as error:
        if re.fullmatch(r"[A-Za-z][\w.+-]*", value):
            return key, yaml.safe_load(value)  # a word, such as lin_3e-4 or true
        raise argparse.ArgumentTypeError(f"{key}: {error}") from None


def whole_number(text: str) -> int:
    """A positive whole number, also as ``1e6``."""
    from ppo_plus.zoo.hyperparams import positive_int

    try:
        return positive_int("it", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """A time in seconds, above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds in (0, 1e6]")
    return number


def seed(text: str) -> int:
    """A seed that NumPy, torch and SB3 accept; negative for a random one."""
    try:
        number = int(text)
    except ValueError:
        number = 2**32
    if number >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number below 2**32")
    return number


def device(text: str) -> str:
    """The name of a device; whether it is there is asked when torch has loaded (:func:`require_device`)."""
    if not re.fullmatch(rf"({'|'.join(DEVICES)})(:\d+)?", text):
        raise argparse.ArgumentTypeError(
            f"there is no device {text!r}: use {', '.join(DEVICES)} or cuda:1, cuda:2, ..."
        )
    return text


def require_device(name: str) -> None:
    """SB3 takes the CPU in place of a GPU that is not there; whoever asks for one wants to know.

    :param name: name of a device
    :raises ValueError: torch has no such device on this machine
    """
    import torch as th

    try:
        th.empty(0, device="cpu" if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name}: torch finds none here ({reason}); use --device auto or cpu") from None
