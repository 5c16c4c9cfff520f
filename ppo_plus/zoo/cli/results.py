"""``ppo-plus enjoy``, ``record``, ``export``, ``push`` and ``plot``: use trained models, and draw learning curves."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import randbelow
from typing import TYPE_CHECKING, Any

from ppo_plus.zoo.cli import arguments
from ppo_plus.zoo.cli.arguments import Commands, add_option, whole_number
from ppo_plus.zoo.installation import draw_without_screen, require_drawing, require_render_modes
from ppo_plus.zoo.runs import ALGO, RunFolder, find_folder, open_run, runs_of

if TYPE_CHECKING:
    from ppo_plus.zoo.enjoy import Player

ALGOS, ALGO_HELP = [ALGO, "ppo", "ppo_lstm"], "which runs: ppo_plus, or rl_zoo3's of ppo or ppo_lstm"


def add_parser(commands: Commands) -> None:
    """Add the five subcommands."""
    command = _add_player(commands, "enjoy", "watch a trained model play", prepare_enjoy)
    command.add_argument("--no-render", action="store_true", help="show no window, only print the returns")

    command = _add_player(commands, "record", "record a GIF or video of a trained model", prepare_record)
    help = "a .gif, or an .mp4 with pip install 'imageio[ffmpeg]' (default: a .gif next to the model)"
    add_option(command, "-o --output FILE", help)

    help = "export a trained policy to ONNX and torch.export, checked against the model"
    command = commands.add_parser("export", help=help, description=help)
    command.set_defaults(prepare=prepare_export)
    command.add_argument("run", metavar="RUN", help="folder of the run, such as logs/ppo_plus/CartPole-v1_1")
    help = "an .onnx; a .pt2 and a .json with the same name are written, too (default: next to the model)"
    add_option(command, "-o --output FILE", help, type=Path)
    add_option(command, "--gym-packages PKG", arguments.GYM_PACKAGES, nargs="+", action="extend", default=[])
    _add_model_arguments(command)

    help = "upload a run to the Hugging Face Hub, with a card that shows settings and returns"
    command = commands.add_parser("push", help=help, description=help)
    command.set_defaults(prepare=prepare_push)
    command.add_argument("run", metavar="RUN", help="folder of the run, such as logs/ppo_plus/CartPole-v1_1")
    command.add_argument("repo", metavar="USER/NAME", help="repository, which is made if it does not exist")
    add_option(command, "-tb --tensorboard-log DIR", "upload this folder of TensorBoard's logs, too", type=Path)

    help = "draw learning curves: means over runs, with 95 percent intervals of five runs or more"
    command = commands.add_parser("plot", help=help, description=help)
    command.set_defaults(prepare=prepare_plot)
    add = partial(add_option, command)
    add("--algo", ALGO_HELP, choices=ALGOS, default=ALGO)
    add("-e --env ID", "environments, one panel each", nargs="+", required=True)
    add("-f --exp-folders DIR", "log folders, one curve each (default: logs)", nargs="+", default=["logs"])
    add("-l --labels LABEL", "names of the curves (default: the folders)", nargs="+")
    help = "draw the mean returns of evaluations (eval), or the smoothed returns of training episodes (train; default: "
    help += "eval, and both for a single run)"
    add("-y", help, choices=["eval", "train"])
    add("-o --output FILE", "picture to write, a .png, .svg or .pdf", default="curves.png")


def _add_player(commands: Commands, name: str, help: str, prepare: Callable[..., Any]) -> argparse.ArgumentParser:
    """Add a subcommand that plays with a model."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
    command.set_defaults(prepare=prepare)
    add = partial(add_option, command)
    arguments.add_env_arguments(command, "--folder --agents")
    add("--algo", ALGO_HELP, choices=ALGOS, default=ALGO)
    help = "number of the run; 0: the last one, or -f if it is the folder of a run; -1: -f"
    add("--exp-id N", help, type=int, default=0)
    _add_model_arguments(command)
    add("--repo USER/NAME", "use a model of the Hugging Face Hub; the pickles of SB3 and rl_zoo3 are not run")
    add("-n --n-timesteps N", "number of steps to play", type=whole_number, default=1000)
    add("--n-envs N", "number of environments", type=whole_number, default=1)
    add("--seed N", "seed of the environments", type=int, default=0)
    arguments.add_deterministic(command)
    return command


def _add_model_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a model of the run, and trust it."""
    help = "read SB3's pickles, which can run code, and allow the run's settings to import from any package"
    add_option(command, "--trust-model --trust-config", help, dest="trust_config", action="store_true")
    add = partial(add_option, command.add_mutually_exclusive_group())
    add("--load-best", "use the best model in evaluation, not the last model", action="store_true")
    add("--load-checkpoint N", "use the model that train --save-freq saved after N timesteps", type=whole_number)
    add("--load-last-checkpoint", "use the last model that train --save-freq saved", action="store_true")


def prepare_enjoy(args: argparse.Namespace) -> Callable[[], None]:
    folder, model = _find(args)
    from ppo_plus.zoo.enjoy import enjoy

    return partial(enjoy, _player(args, folder, model, None if args.no_render else "human"), args.n_timesteps)


def prepare_record(args: argparse.Namespace) -> Callable[[], None]:
    draw_without_screen()  # first: MuJoCo reads it when a module of the user imports it
    folder, model = _find(args)
    beside = model if args.repo is None else Path(model.name)
    path = beside.with_suffix(".gif") if args.output is None else Path(args.output)
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ValueError(f"-o {path}: the name must end in .gif or .mp4")
    if path.suffix.lower() == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise ImportError(f"-o {path}: an .mp4 needs a package: pip install 'imageio[ffmpeg]'")
    from ppo_plus.zoo.enjoy import record

    return partial(record, _player(args, folder, model, "rgb_array"), args.n_timesteps, path)


def prepare_export(args: argparse.Namespace) -> Callable[[], None]:
    """Export the policy, since most that can go wrong shows there."""
    folder = open_run(Path(args.run), "RUN")
    arguments.import_named(args, folder)
    model = _model(args, folder)
    from ppo_plus.zoo.enjoy import make_player

    packages, trust_pickle = arguments.allowed_packages(args), args.trust_config
    player = make_player(folder, model, device="cpu", packages=packages, trust_pickle=trust_pickle)
    try:
        player.model.export(args.output or model.with_suffix(".onnx"))
    finally:
        player.env.close()
    return lambda: None


def prepare_push(args: argparse.Namespace) -> Callable[[], None]:
    """Upload the run, since most that can go wrong shows there."""
    from ppo_plus.saving.hub import push_run

    folder = open_run(Path(args.run), "RUN")
    if (logs := args.tensorboard_log) is not None and not logs.is_dir():
        raise FileNotFoundError(f"-tb {logs}: there is no such folder")
    print(push_run(args.repo, folder.path, folder.settings, folder.env_id, logs))
    return lambda: None


def _find(args: argparse.Namespace) -> tuple[RunFolder, Path]:
    """The run, and one of its models."""
    if args.repo is not None:
        from ppo_plus.saving.hub import fetch

        model = fetch(args.repo)
        in_python = f"load the model in Python, with PPO_Plus.from_hub({args.repo!r})"
        folder = open_run(model.parent, f"--repo {args.repo}: the download", in_python)
        folder.last_model, folder.env_id = model, args.env or folder.env_id
    elif args.env is not None:
        # Runs of `ppo-plus train --algo ppo` are in the folder of ppo_plus.
        folder = find_folder(Path(args.log_folder), args.env, args.exp_id, (args.algo, ALGO))
    else:
        raise ValueError("the following arguments are required: --env ID, or --repo USER/NAME")
    model = _model(args, folder)
    arguments.import_named(args, folder if model.is_file() else None)
    return folder, model


def _model(args: argparse.Namespace, folder: RunFolder) -> Path:
    if args.load_best:
        return folder.best_model
    if args.load_checkpoint is not None or args.load_last_checkpoint:
        return folder.saved_model(args.load_checkpoint)
    return folder.last_model


def _player(args: argparse.Namespace, folder: RunFolder, model: Path, render_mode: str | None) -> "Player":
    from ppo_plus.zoo.enjoy import make_player

    render = {} if render_mode is None else {"render_mode": render_mode}
    if render:
        require_render_modes(folder.env_id)
    player = make_player(
        folder,
        model,
        n_envs=args.n_envs,
        seed=args.seed if args.seed >= 0 else randbelow(2**32),
        device=args.device,
        deterministic=args.deterministic,
        env_kwargs={**render, **(args.env_kwargs or {})},
        packages=arguments.allowed_packages(args),
        trust_pickle=args.trust_config,
    )
    if render:
        require_drawing(folder.env_id, window=render_mode == "human")
    return player


def prepare_plot(args: argparse.Namespace) -> Callable[[], None]:
    labels = args.labels or args.exp_folders
    if not len(set(labels)) == len(labels) == len(args.exp_folders):
        raise ValueError(f"-l has {len(set(labels))} labels for {len(args.exp_folders)} folders: give each its own")
    path = Path(args.output)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"-o {path}: the name must end in .png, .svg or .pdf")
    from ppo_plus.zoo.results import plot_curves, plot_learning_curve, read_curve

    curves: dict[str, dict[str, Any]] = {}
    missing = []
    for env_id in args.env:
        for label, folder in zip(labels, map(Path, args.exp_folders), strict=True):
            # Runs of `ppo-plus train --algo ppo` are in the folder of ppo_plus.
            algo = args.algo if runs_of(folder / args.algo, env_id) else ALGO
            runs = list(runs_of(folder / algo, env_id).values())
            is_single = args.y is None and len(args.env) == len(labels) == len(runs) == 1
            what = "train" if is_single and not (runs[0] / "evaluations.npz").is_file() else args.y or "eval"
            try:
                curves.setdefault(env_id, {})[label] = read_curve(folder, env_id, what, algo)
            except ValueError as error:
                missing.append(str(error))
    if not curves:
        raise ValueError("; ".join(missing))
    for message in missing:
        print(f"left out: {message}", file=sys.stderr)

    def plot() -> None:
        if is_single:
            plot_learning_curve(runs[0], args.env[0], path)
        else:
            plot_curves(curves, path)
        for env_id, by_label in curves.items():
            for label, curve in by_label.items():
                print(f"{env_id}, {label}: {curve}")
                if curve.timesteps[-1] < curve.longest:
                    print(f"  (up to the end of the shortest run; the longest has {curve.longest:,.0f} timesteps)")
        print(path)

    return plot
