"""``ppo-plus plot``: learning curves of several environments and log folders, with intervals over runs."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ppo_plus.zoo.cli.arguments import add_algo_argument, add_option
from ppo_plus.zoo.runs import ALGO, RL_ZOO3_ALGOS, runs_of

DESCRIPTION = """
Draw the mean learning curve of several runs. With five runs or more, the picture also shows the mean's 95 percent
confidence interval; with fewer, it shows each run. Curves end where the shortest run ends.
"""


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    help = "draw learning curves: means over runs, with confidence intervals"
    command = commands.add_parser("plot", help=help, description=DESCRIPTION)
    command.set_defaults(prepare=prepare)
    add_algo_argument(command, "which runs: ppo_plus, or rl_zoo3's of ppo or ppo_lstm", RL_ZOO3_ALGOS)
    add = partial(add_option, command)
    add("-e --env", "environments, one panel each", nargs="+", required=True, metavar="ID")
    add("-f --exp-folders", "log folders, one curve each (default: logs)", nargs="+", default=["logs"], metavar="DIR")
    add("-l --labels", "names of the curves (default: the folders)", nargs="+", metavar="LABEL")
    help = "draw the mean returns of evaluations (eval), or the smoothed returns of training episodes (train)"
    add("-y", help, choices=["eval", "train"], default="eval")
    add("-o --output", "picture to write, a .png, .svg or .pdf", default="curves.png", metavar="FILE")


def prepare(args: argparse.Namespace) -> Callable[[], None]:
    """Read the curves."""
    labels = args.labels or args.exp_folders
    if len(labels) != len(args.exp_folders):
        raise ValueError(f"-l has {len(labels)} labels for {len(args.exp_folders)} folders")
    path = Path(args.output)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"-o {path}: the name must end in .png, .svg or .pdf")
    from ppo_plus.zoo.results import read_curve

    curves: dict[str, dict[str, Any]] = {}
    missing = []
    for env_id in args.env:
        for label, folder in dict(zip(labels, map(Path, args.exp_folders), strict=True)).items():
            # Runs of `ppo-plus train --algo ppo` are in the folder of ppo_plus.
            algo = args.algo if runs_of(folder / args.algo, env_id) else ALGO
            try:
                curves.setdefault(env_id, {})[label] = read_curve(folder, env_id, args.y, algo)
            except ValueError as error:
                missing.append(str(error))
    if not curves:
        raise ValueError("; ".join(missing))
    for message in missing:
        print(f"left out: {message}", file=sys.stderr)
    return partial(_plot, curves, path)


def _plot(curves: dict[str, dict[str, Any]], path: Path) -> None:
    from ppo_plus.zoo.results import plot_curves

    plot_curves(curves, path)
    for env_id, by_label in curves.items():
        for label, curve in by_label.items():
            print(f"{env_id}, {label}: {curve}")
            if curve.timesteps[-1] < curve.longest:
                print(f"  (up to the end of the shortest run; the longest has {curve.longest:,.0f} timesteps)")
    print(path)
