"""What the subcommands' arguments have in common: one-line errors, and types that say what is wrong."""

import argparse
import re
from typing import Any, NoReturn

import torch as th
import yaml

from ppo_plus.zoo.hyperparams import positive_int
from ppo_plus.zoo.imports import ALLOWED_PACKAGES
from ppo_plus.zoo.literals import parse_literal


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """End the program.

        :param message: what is wrong
        """
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def add_env_arguments(command: argparse.ArgumentParser, log_folder: str, env_required: bool = True) -> None:
    """The arguments of every subcommand that makes environments.

    :param command: its parser
    :param log_folder: name of the option for the folder of all runs, as rl_zoo3 calls it there
    :param env_required: whether the environment must be given
    """
    command.add_argument(
        "--env", required=env_required, metavar="ID", help="Gymnasium environment id, such as CartPole-v1"
    )
    command.add_argument(
        "-f", log_folder, dest="log_folder", default="logs", metavar="DIR", help="folder of all runs (default: logs)"
    )
    command.add_argument(
        "--gym-packages",
        nargs="+",
        default=[],
        metavar="PKG",
        help="packages to import because they register environments",
    )
    command.add_argument(
        "--env-kwargs", nargs="+", type=key_value, metavar="K:V", help="arguments of the environment, such as g:9.81"
    )
    command.add_argument("--device", type=device, default="auto", help="cpu, cuda or auto (default: auto)")


def allowed_packages(args: argparse.Namespace) -> tuple[str, ...] | None:
    """What settings may import from; ``None``: from anywhere.

    :param args: with ``trust_config`` and ``gym_packages``
    """
    return None if args.trust_config else (*ALLOWED_PACKAGES, *(name.split(".")[0] for name in args.gym_packages))


def key_value(text: str) -> tuple[str, Any]:
    """``key:value``, as rl_zoo3 writes it; the value is Python text without code, or a plain word."""
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
    try:
        return positive_int("it", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    """A device that torch knows."""
    try:
        return text if text == "auto" else str(th.device(text))
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"there is no device {text!r}") from None
