"""``ppo-plus plot``: learning curves of several environments and log folders, with intervals over runs."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import add_algo_argument, add_option
from ppo_plus.zoo.runs import ALGO, RL_ZOO3_ALGOS, runs_of

if TYPE_CHECKING:
    from ppo_plus.zoo.plot import Curve

DESCRIPTION = """
Draw learning curves. From five runs on, the picture shows a 95 % interval of their mean; with fewer, each run.
"""


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "plot", help="draw learning curves: means over runs, with 95 %% intervals", description=DESCRIPTION
    )
    command.set_defaults(prepare=prepare)
    add_algo_argument(command, "folder of the runs: ppo and ppo_lstm for runs of rl_zoo3", RL_ZOO3_ALGOS)
    add = partial(add_option, command)
    add("-e --env", "environments, one panel each", nargs="+", required=True, metavar="ID")
    add("-f --exp-folders", "log folders, one curve each (default: logs)", nargs="+", default=["logs"], metavar="DIR")
    add("-l --labels", "names of the curves (default: the folders)", nargs="+", metavar="LABEL")
    add("-y", "returns of evaluations or of training episodes", choices=["eval", "train"], default="eval")
    add("-o --output", "a .png, .svg or .pdf", default="curves.png", metavar="FILE")


def prepare(args: argparse.Namespace) -> Callable[[], None]:
    """Read the curves."""
    labels = args.labels or args.exp_folders
    if len(labels) != len(args.exp_folders):
        raise ValueError(f"-l has {len(labels)} labels for {len(args.exp_folders)} folders")
    path = Path(args.output)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"-o {path}: the name must end in .png, .svg or .pdf")
    from ppo_plus.zoo.plot import read_curve

    folders = dict(zip(labels, map(Path, args.exp_folders), strict=True))
    curves: dict[str, dict[str, Curve]] = {}
    missing = []
    for env_id, label in product(args.env, folders):
        try:
            folder = folders[label]
            # Runs of `ppo-plus train --algo ppo` are in the folder of ppo_plus.
            algo = args.algo if runs_of(folder / args.algo, env_id) else ALGO
            curves.setdefault(env_id, {})[label] = read_curve(folder, env_id, args.y, algo)
        except ValueError as error:
            missing.append(str(error))
    if not curves:
        raise ValueError("; ".join(missing))
    for message in missing:
        print(f"left out: {message}", file=sys.stderr)
    return partial(_plot, curves, path)


def _plot(curves: "dict[str, dict[str, Curve]]", path: Path) -> None:
    from ppo_plus.zoo.plot import plot_curves

    plot_curves(curves, path)
    for env_id, by_label in curves.items():
        for label, curve in by_label.items():
            print(f"{env_id}, {label}: {curve}")
    print(path)
