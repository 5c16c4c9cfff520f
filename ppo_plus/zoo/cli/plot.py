"""``ppo-plus plot``: learning curves of several environments and log folders, with intervals over runs."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppo_plus.zoo.plot import Curve, plot_curves, read_curve


def add_parser(commands: Any) -> None:
    """Add the subcommand.

    :param commands: the program's subparsers
    """
    command = commands.add_parser("plot", help="draw learning curves with 95 %% intervals over runs")
    command.set_defaults(prepare=prepare)
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
    curves = {
        env_id: {label: read_curve(folder, env_id, args.y) for label, folder in folders.items()} for env_id in args.env
    }

    def work() -> None:
        plot_curves(curves, path)
        for env_id, by_label in curves.items():
            for label, curve in by_label.items():
                print(f"{env_id}, {label}: {_last(curve)}")
        print(path)

    return work


def _last(curve: Curve) -> str:
    interval = f" [{curve.low[-1]:.2f}, {curve.high[-1]:.2f}]" if curve.n_runs > 1 else ""
    return f"{curve.mean[-1]:.2f}{interval} after {curve.timesteps[-1]:.0f} timesteps, {curve.n_runs} run(s)"
