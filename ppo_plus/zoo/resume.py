"""Going on with a training run that was interrupted, as if it had not been."""

from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from ppo_plus import PPO_Plus
from ppo_plus.files import checkpoint
from ppo_plus.ranks import Ranks
from ppo_plus.zoo.enjoy import saved_arguments, saved_experiment
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.folders import ALGO, RunFolder, runs_of
from ppo_plus.zoo.hyperparams import RunLoader, read_mapping
from ppo_plus.zoo.imports import ALLOWED_PACKAGES
from ppo_plus.zoo.options import Options
from ppo_plus.zoo.ranks import share
from ppo_plus.zoo.train import Run, command, make_eval_envs


def find_run(path: Path) -> RunFolder:
    """The folder of a run.

    :param path: the folder
    :raises FileNotFoundError: it is none
    """
    saved = next(path.glob("*/args.yml"), None)
    if saved is None:
        raise FileNotFoundError(f"--resume {path}: this is no run's folder, such as logs/ppo_plus/CartPole-v1_1")
    return RunFolder(path, read_mapping(saved, RunLoader)["env"])


def begun_by(job: str | None, log_folder: Path, env_id: str) -> RunFolder | None:
    """The run that the same job of torchrun has begun, by the same command, before it was restarted.

    :param job: its name; see :func:`ppo_plus.zoo.torchrun.job`
    :param log_folder: folder of all runs
    :param env_id: Gymnasium environment id
    :return: the folder; ``None``: there is none that can be gone on with
    """
    runs = runs_of(log_folder / ALGO, env_id) if job is not None else {}
    for _, path in sorted(runs.items(), reverse=True):
        folder = RunFolder(path, env_id)
        with suppress(FileNotFoundError):
            same = saved_arguments(folder).get("job") == job and folder.command.read_text("utf-8") == command()
            if same and checkpoint.files(folder.checkpoints):
                return folder
    return None


def set_up_again(folder: RunFolder, packages: Collection[str] | None = ALLOWED_PACKAGES, **changes: Any) -> Run:
    """A run as it stood at its last checkpoint, ready to go on.

    :param folder: its folder
    :param packages: what its settings may import from; ``None``: from anywhere
    :param changes: what is to be shown, or survived, otherwise than before, of :class:`~ppo_plus.zoo.options.Options`
    :raises FileNotFoundError: it has no checkpoint, since it was trained to its end, or ended before its first
    :raises ValueError: a file is damaged
    :raises BlockingIOError: another process is training it
    """
    arguments = saved_arguments(folder)
    run = {name: arguments[name] for name in ("seed", "device", "vec_env", "eval_env_kwargs")}
    experiment = saved_experiment(folder, packages).replace(**run)
    options = Options(**{field.name: arguments.get(field.name, field.default) for field in fields(Options)} | changes)
    if not checkpoint.files(folder.checkpoints):
        raise FileNotFoundError(f"--resume {folder.path}: there is no checkpoint. {_why_there_is_none(folder)}")
    ranks = Ranks.present()
    part = share(experiment, ranks)
    with folder.held() if ranks.leads else nullcontext():
        first = ranks.rank * part.n_envs
        env = make_envs(part, monitor_dir=folder.path, append=True, first=first, **options.supervision())
        model = PPO_Plus.resume(folder.checkpoints, env, device=experiment.device, verbose=options.verbose)
    return Run(experiment, options, folder, model, make_eval_envs(experiment, options, ranks))


def _why_there_is_none(folder: RunFolder) -> str:
    """Why a run has no checkpoint, and what to do."""
    if folder.was_trained_to_its_end:
        return (
            "A run that was trained to its end has none left: "
            f"ppo-plus train -i {folder.last_model} --env {folder.env_id} trains its model on"
        )
    return (
        f"It was ended before its first checkpoint: begin it anew with its command: {folder.command.read_text('utf-8')}"
    )
