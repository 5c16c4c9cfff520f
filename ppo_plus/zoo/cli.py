"""The command line. A mistake of the user ends in one clear line and exit code 2."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

import gymnasium as gym
import torch as th

from ppo_plus.zoo.experiment import load_experiment
from ppo_plus.zoo.hyperparams import positive_int
from ppo_plus.zoo.train import Run, set_up, train


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """End the program.

        :param message: what is wrong
        """
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    :param arguments: the arguments; ``None`` for those of the process
    """
    parser = make_parser()
    args = parser.parse_args(arguments)
    # Only mistakes in the settings are caught: an error while training is no user's mistake, and shows its traceback.
    try:
        run = _set_up(args)
    except (ValueError, TypeError, AssertionError, ImportError, OSError, gym.error.Error) as error:
        parser.error(str(error) or type(error).__name__)
    train(run)


def make_parser() -> Parser:
    """The parser of the program and its subcommands."""
    parser = Parser(prog="ppo-plus", description="Train PPO_Plus with the settings of a YAML file.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("train", help="train, evaluate and save a model, and plot its learning curve")
    command.add_argument("--env", required=True, metavar="ID", help="Gymnasium environment id, such as CartPole-v1")
    command.add_argument(
        "-n",
        "--n-timesteps",
        type=_n_timesteps,
        metavar="N",
        help="timesteps to train for (default: the settings file's)",
    )
    command.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    command.add_argument("--device", type=_device, default="auto", help="cpu, cuda or auto (default: auto)")
    command.add_argument("-f", "--log-folder", default="logs", metavar="DIR", help="folder of all runs (default: logs)")
    command.add_argument("-conf", "--conf-file", metavar="FILE", help="YAML settings (default: the package's own)")
    return parser


def _set_up(args: argparse.Namespace) -> Run:
    experiment = load_experiment(args.env, args.conf_file, seed=args.seed, device=args.device)
    if args.n_timesteps is not None:
        experiment = experiment.replace(n_timesteps=args.n_timesteps)
    return set_up(experiment, args.log_folder)


def _n_timesteps(text: str) -> int:
    try:
        return positive_int("it", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _device(text: str) -> str:
    try:
        return text if text == "auto" else str(th.device(text))
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"there is no device {text!r}") from None
