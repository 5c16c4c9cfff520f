"""``ppo-plus plot``: learning curves of several environments and log folders, with intervals over runs."""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import add_algo_argument
from ppo_plus.zoo.runs import ALGO, RL_ZOO3_ALGOS, runs_of

if TYPE_CHECKING:
    from ppo_plus.zoo.plot import Curve


def add_parser(commands: Any) -> None:
    """Add the subcommand.

    :param commands: the program's subparsers
    """
    command = commands.add_parser(
        "plot",
        help="draw learning curves: means over runs, with 95 %% intervals",
        description="Draw learning curves. Five or more runs have a 95 %% interval of their mean; of fewer, each is "
        "drawn. A run that another one continues (train -i) is drawn as its beginning.",
    )
    command.set_defaults(prepare=prepare)
    add_algo_argument(command, "folder of the runs: ppo and ppo_lstm for what rl_zoo3 trained", RL_ZOO3_ALGOS)
    add = command.add_argument
    add("-e", "--env", nargs="+", required=True, metavar="ID", help="environments: one panel each")
    add("-f", "--exp-folders", nargs="+", default=["logs"], metavar="DIR", help="log folders: one curve each (logs)")
    add("-l", "--labels", nargs="+", metavar="LABEL", help="names of the curves (default: the folders')")
    add(
        "-y", choices=["eval", "train"], default="eval", help="evaluations, or training episodes (default: %(default)s)"
    )
    add("-o", "--output", default="curves.png", metavar="FILE", help="a .png, .svg or .pdf (default: %(default)s)")


def prepare(args: argparse.Namespace) -> Callable[[], None]:
    """Read the curves."""
    labels = args.labels or args.exp_folders
    if len(labels) != len(args.exp_folders):
        raise ValueError(f"-l has {len(labels)} labels for {len(args.exp_folders)} folders")
    path = Path(args.output)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"-o {path}: the name must end in .png, .svg or .pdf")
    folders = dict(zip(labels, map(Path, args.exp_folders), strict=True))
    curves: dict[str, dict[str, Curve]] = {}
    missing = []
    for env_id, label in product(args.env, folders):
        try:
            curves.setdefault(env_id, {})[label] = _read(folders[label], env_id, args)
        except ValueError as error:
            missing.append(str(error))
    curves = {env_id: by_label for env_id, by_label in curves.items() if by_label}
    if not curves:
        raise ValueError("; ".join(missing))
    for message in missing:
        print(f"left out: {message}", file=sys.stderr)

    def work() -> None:
        from ppo_plus.zoo.plot import plot_curves

        plot_curves(curves, path)
        for env_id, by_label in curves.items():
            for label, curve in by_label.items():
                print(f"{env_id}, {label}: {curve}")
        print(path)

    return work


def _read(folder: Path, env_id: str, args: argparse.Namespace) -> "Curve":
    from ppo_plus.zoo.plot import read_curve

    # A run that `ppo-plus train --algo ppo` made is PPO_Plus's.
    return read_curve(folder, env_id, args.y, args.algo if runs_of(folder / args.algo, env_id) else ALGO)
