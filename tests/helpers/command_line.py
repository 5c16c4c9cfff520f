"""The command line, in this process and in others."""

import os
import subprocess
import sys
from pathlib import Path

from ppo_plus.zoo.cli import make_parser

ROOT = Path(__file__).parents[2]
#: Without evaluations, of which the last has 20 episodes.
TRAIN = ["train", "--env", "CartPole-v1", "--device", "cpu", "--eval-freq", "-1"]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(arguments, cwd, **options):
    """Run Python in a folder outside the checkout, with the package importable from the checkout."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment(), text=True, timeout=600, **options)


def subcommands():
    """The parser of each subcommand."""
    return next(action for action in make_parser()._actions if isinstance(action.choices, dict)).choices
