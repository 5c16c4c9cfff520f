"""``ppo-plus enjoy`` and ``ppo-plus record``: play with a trained model, and show or write what happens."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli.arguments import (
    TRUST_MODEL,
    add_algo_argument,
    add_env_arguments,
    refuse,
    require_device,
    seed,
    whole_number,
)
from ppo_plus.zoo.mujoco import draw_without_screen, require_drawing, require_screen
from ppo_plus.zoo.registry import ALLOWED_PACKAGES, import_packages
from ppo_plus.zoo.runs import ALGO, RL_ZOO3_ALGOS, RunFolder, find_folder

if TYPE_CHECKING:
    from ppo_plus.zoo.enjoy import Player

REMEDIES = {
    "--norm-reward": "returns are those of the environment, not normalized; leave it out",
    "--custom-objects": "models are loaded without it; leave it out",
    "--num-threads": "set the environment variable OMP_NUM_THREADS",
}


def add_parser(commands: Any) -> None:
    """Add the two subcommands.

    :param commands: the program's subparsers
    """
    command = commands.add_parser("enjoy", help="watch a trained model")
    command.set_defaults(prepare=prepare_enjoy)
    _add_arguments(command)
    command.add_argument("--no-render", action="store_true", help="show nothing, print the returns")
    command.add_argument("--reward-log", metavar="DIR", help="folder for monitor.csv files")
    command.add_argument("-P", "--progress", action="store_true", help="show a progress bar")
    command.add_argument(
        "--verbose", type=int, default=1, metavar="N", help="0: print no episodes, only their mean (default: 1)"
    )

    command = commands.add_parser("record", help="record a trained model as a GIF or video")
    command.set_defaults(prepare=prepare_record)
    _add_arguments(command)
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a .gif, or an .mp4 with pip install 'imageio[ffmpeg]' (default: a .gif beside the model)",
    )


def prepare_enjoy(args: argparse.Namespace) -> Callable[[], None]:
    """Load the model."""
    folder, model = _find(args)
    from ppo_plus.zoo.enjoy import enjoy

    mode = {} if args.no_render else {"render_mode": "human"}
    monitor_dir = None if args.reward_log is None else Path(args.reward_log)
    player = _player(args, folder, model, mode, monitor_dir)
    if not args.no_render:
        require_screen(args.env)
    return partial(enjoy, player, args.n_timesteps, verbose=args.verbose > 0, progress=args.progress)


def prepare_record(args: argparse.Namespace) -> Callable[[], None]:
    """Load the model."""
    folder, model = _find(args)
    from ppo_plus.zoo.enjoy import check_recording, record

    path = model.with_suffix(".gif") if args.output is None else Path(args.output)
    check_recording(path)
    draw_without_screen()
    player = _player(args, folder, model, {"render_mode": "rgb_array"}, None)
    require_drawing(args.env)

    def work() -> None:
        record(player, args.n_timesteps, path)
        print(path)

    return work


def _find(args: argparse.Namespace) -> tuple[RunFolder, Path]:
    """The run, and which of its models."""
    import_packages(args.gym_packages)
    # A run that `ppo-plus train --algo ppo` made is PPO_Plus's.
    algos = dict.fromkeys((args.algo, ALGO))
    folder = find_folder(Path(args.log_folder), args.env, args.exp_id, tuple(algos))
    if args.load_best:
        return folder, folder.best_model
    if args.load_checkpoint is not None or args.load_last_checkpoint:
        return folder, folder.checkpoint(args.load_checkpoint)
    return folder, folder.last_model


def _player(
    args: argparse.Namespace, folder: RunFolder, model: Path, mode: dict[str, Any], monitor_dir: Path | None
) -> "Player":
    from ppo_plus.zoo.enjoy import make_player

    require_device(args.device)
    return make_player(
        folder,
        model,
        n_envs=args.n_envs,
        seed=max(args.seed, 0),
        device=args.device,
        deterministic=args.deterministic,
        env_kwargs={**mode, **dict(args.env_kwargs or [])},
        monitor_dir=monitor_dir,
        packages=None if args.trust_model else (*ALLOWED_PACKAGES, *args.gym_packages),
        trust_pickle=args.trust_model,
    )


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_env_arguments(command, "--folder")
    add_algo_argument(command, "folder of the run: ppo and ppo_lstm for what rl_zoo3 trained", RL_ZOO3_ALGOS)
    refuse(command, REMEDIES)
    add = command.add_argument
    add("--exp-id", type=int, default=0, metavar="N", help="number of the run; 0: the last, -1: the folder itself")
    add("--trust-model", action="store_true", help=TRUST_MODEL)
    which = command.add_mutually_exclusive_group()
    which.add_argument("--load-best", action="store_true", help="the model that was best in evaluation")
    which.add_argument("--load-checkpoint", type=whole_number, metavar="N", help="the checkpoint after N timesteps")
    which.add_argument("--load-last-checkpoint", action="store_true", help="the last checkpoint")
    add(
        "-n", "--n-timesteps", type=whole_number, default=1000, metavar="N", help="steps to play (default: %(default)s)"
    )
    add("--n-envs", type=whole_number, default=1, metavar="N", help="number of environments (default: %(default)s)")
    add("--seed", type=seed, default=0, help="seed of the environments (default: %(default)s)")
    add("--deterministic", action="store_true", default=None, help="most likely actions (default, but for Atari)")
    add("--stochastic", dest="deterministic", action="store_false", help="draw actions (default for Atari)")
