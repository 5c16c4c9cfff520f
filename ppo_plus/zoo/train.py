"""A training run: build it, train, evaluate, and leave a folder with everything it produced."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from ppo_plus import PPO_Plus
from ppo_plus.files import checkpoint
from ppo_plus.files.atomic import write_text
from ppo_plus.files.checkpoint import Checkpoints
from ppo_plus.ranks import Ranks
from ppo_plus.zoo import interrupts
from ppo_plus.zoo.callbacks import EvalAfterUpdates, EvalLine, Interruptible, Progress, SavedModels
from ppo_plus.zoo.enjoy import saved_experiment
from ppo_plus.zoo.envs import make_envs, settle
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.models import load_model, make_callbacks, make_model, save_model, write_statistics
from ppo_plus.zoo.plot import plot_learning_curve, uncounted
from ppo_plus.zoo.registry import ALLOWED_PACKAGES
from ppo_plus.zoo.runs import ALGO, Options, RunFolder, file_name, new_folder, runs_of, saved_arguments
from ppo_plus.zoo.torchrun import job


@dataclass(frozen=True)
class Run:
    """A training run that is ready to start.

    :param experiment: what is trained
    :param options: what is recorded
    :param folder: where its results go
    :param model: the model, with its training environments
    :param eval_env: the evaluation environments, of several processes this one's; ``None`` if there are to be none
    """

    experiment: Experiment
    options: Options
    folder: RunFolder
    model: PPO_Plus
    eval_env: VecEnv | None


def set_up(experiment: Experiment, options: Options | None = None) -> Run:
    """Build environments and model. A mistake in the settings shows here, before any training, and leaves no folder.

    :param experiment: what to train
    :param options: what to record; ``None`` for the defaults
    :return: the run
    """
    options, ranks = options or Options(), Ranks.present()
    # Before there is a folder, which would stay where another process finds a mistake.
    experiment = _settled(experiment, options, ranks)
    folder = new_folder(Path(options.log_folder), experiment.env_id, options.uuid) if ranks.leads else None
    if ranks.several:
        folder = ranks.lead(folder)
    assert folder is not None
    try:
        model, eval_env = _build(experiment, options, folder.path)
        if ranks.leads:
            _write_settings(experiment, options, folder, model)
        interrupts.check()
    except BaseException:
        if ranks.leads:
            shutil.rmtree(folder.path)
        raise
    return Run(experiment, options, folder, model, eval_env)


def _settled(experiment: Experiment, options: Options, ranks: Ranks) -> Experiment:
    """The experiment with one kind of vector environment in all processes, which is recorded.

    :raises ValueError: the experiment cannot be divided among the processes
    """
    part = experiment.for_each_process(ranks.size)
    if experiment.vec_env != "auto":
        return experiment
    kind = settle(part, **options.supervision()).vec_env if ranks.leads else ""
    return experiment.replace(vec_env=ranks.lead(kind))


def check(experiment: Experiment, options: Options | None = None) -> None:
    """Build all that :func:`set_up` builds, and throw it away: nothing is written.

    :param experiment: what would be trained
    :param options: what would be recorded; ``None`` for the defaults
    :raises ValueError, TypeError: a mistake in the settings
    """
    options = options or Options()
    model, eval_env = _build(_settled(experiment, options, Ranks.present()), options, None)
    _close(model, eval_env)


def train(run: Run) -> bool:
    """Train, evaluate, save and plot. Ctrl-C ends the training early; what was learned until then is kept, as it is
    when an error ends it.

    :param run: a run made by :func:`set_up`
    :return: whether it was trained to its end, and not interrupted
    :raises BlockingIOError: another process trains it
    """
    if not run.model.ranks.leads:
        return _take_part(run)
    with run.folder.held():
        return _train(run)


def _take_part(run: Run) -> bool:
    """Train beside the process that records everything."""
    checkpoints, evaluations, finished = _checkpoints(run), _evaluations(run), False
    try:
        run.model.learn(
            run.experiment.n_timesteps,
            callback=[checkpoints, *evaluations, Interruptible()],
            log_interval=None,  # type: ignore[arg-type]
            reset_num_timesteps=not run.options.keep_timesteps,
        )
        finished = True
    except KeyboardInterrupt:
        pass  # The other process says it.
    finally:
        if not finished:
            checkpoints.write()
        _close(run.model, run.eval_env)
    return finished


def _train(run: Run) -> bool:
    progress = [Progress()] if run.options.progress else []
    checkpoints, evaluations = _checkpoints(run), _evaluations(run)
    own = make_callbacks(run.experiment)
    callbacks: list[BaseCallback] = [checkpoints, *progress, *_saved_models(run), *own, *evaluations, Interruptible()]
    start, finished = time.monotonic(), False
    if run.options.progress:
        print(_beginning(run), file=sys.stderr, flush=True)
    try:
        run.model.learn(
            run.experiment.n_timesteps,
            callback=callbacks,
            log_interval=run.options.log_interval,  # type: ignore[arg-type]
            reset_num_timesteps=not run.options.keep_timesteps,
        )
        finished = True
    except KeyboardInterrupt:
        print("interrupted: saving what was learned", file=sys.stderr)
    finally:
        for callback in progress:
            callback.on_training_end()
        if not finished:
            checkpoints.write()
        _save(run)
    curve = plot_learning_curve(run.folder.path, run.experiment.env_id)
    if finished:
        # Last: until then a run that is killed can be gone on with, and has nothing but its end to do again.
        shutil.rmtree(run.folder.checkpoints, ignore_errors=True)
    _close(run.model, run.eval_env)
    print(_summary(run, evaluations, time.monotonic() - start))
    print(f"model: {run.folder.last_model}")
    print(f"learning curve: {curve}")
    return finished


def _beginning(run: Run) -> str:
    """What is said before training: what is trained, and for how long."""
    model, experiment = run.model, run.experiment
    length = f"training for {experiment.n_timesteps:,} timesteps"
    if model.call.resumed is not None:
        length = f"going on after {model.num_timesteps:,} of {model._total_timesteps:,} timesteps"
    processes = f" in {model.ranks.size} processes" if model.ranks.several else ""
    return (
        f"{experiment.env_id}: {length}{processes}, in rollouts of "
        f"{model.n_steps * experiment.n_envs:,} ({model.n_steps} steps of {experiment.n_envs} environments), "
        f"seed {experiment.seed}; Ctrl-C ends it early and saves"
    )


def _build(experiment: Experiment, options: Options, monitor_dir: Path | None) -> tuple[PPO_Plus, VecEnv | None]:
    """The model with its training environments, and the evaluation environments, if there are to be any."""
    ranks = Ranks.present()
    part = experiment.for_each_process(ranks.size)
    first = ranks.rank * part.n_envs
    env = make_envs(part, monitor_dir=monitor_dir, first=first, **options.supervision())
    model = _make_model(part, options, env)
    return model, make_eval_envs(experiment, options, ranks)


def make_eval_envs(experiment: Experiment, options: Options, ranks: Ranks) -> VecEnv | None:
    """This process's evaluation environments, at least one; ``None`` if there are to be none."""
    if options.eval_freq <= 0:
        return None
    n_envs = -(-options.n_eval_envs // ranks.size)
    return make_envs(experiment, n_envs, evaluation=True, first=ranks.rank * n_envs, **options.supervision())


def _make_model(experiment: Experiment, options: Options, env: VecEnv) -> PPO_Plus:
    tensorboard_log = options.tensorboard_log and str(Path(options.tensorboard_log) / file_name(experiment.env_id))
    arguments: dict[str, Any] = {"verbose": options.verbose, "tensorboard_log": tensorboard_log}
    if options.trained_agent is None:
        return make_model(experiment, env, **arguments)
    return load_model(Path(options.trained_agent), experiment, env, options.trust_model, **arguments)


def _evaluations(run: Run) -> list[EvalAfterUpdates]:
    if run.eval_env is None:
        return []
    evaluations = EvalAfterUpdates(
        run.eval_env,
        run.options.eval_freq,
        n_eval_episodes=run.options.eval_episodes,
        deterministic=run.experiment.deterministic_eval,
        log_path=str(run.folder.path),
        best_model_save_path=str(run.folder.path),
        callback_after_eval=EvalLine() if run.options.progress else None,
    )
    return [evaluations]


def _checkpoints(run: Run) -> Checkpoints:
    """What the run can go on from, should it be interrupted: every ten minutes, too."""
    ranks, n_envs = run.model.ranks, run.model.n_envs
    # Each process has its own episodes.
    own = ["*"]
    if ranks.several:
        own = [
            *(str(i) for i in range(ranks.rank * n_envs, (ranks.rank + 1) * n_envs)),
            *(["all"] if ranks.leads else []),
        ]
    return Checkpoints(
        run.folder.checkpoints,
        save_freq=run.options.save_freq if run.options.save_freq > 0 else None,
        keep=run.options.keep_checkpoints,
        logs=[f"../{name}.monitor.csv" for name in own],
    )


def _saved_models(run: Run) -> list[BaseCallback]:
    if run.options.save_freq <= 0:
        return []
    # SB3 counts steps of each environment.
    every = max(run.options.save_freq // run.experiment.n_envs, 1)
    return [SavedModels(every, str(run.folder.path))]


def _save(run: Run) -> None:
    save_model(run.model, run.folder.last_model)
    normalize = run.model.get_vec_normalize_env()
    if normalize is not None:
        write_statistics(normalize, run.folder.settings / "vecnormalize.pkl")


def _close(model: PPO_Plus, eval_env: VecEnv | None) -> None:
    """Close the environments; processes of theirs may have been ended by the same Ctrl-C."""
    for env in (model.get_env(), eval_env):
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            if env is not None:
                env.close()


def _origin(options: Options, folder: RunFolder, model: PPO_Plus) -> dict[str, Any] | None:
    """Which run this one continues, if any, and after how many timesteps."""
    if options.trained_agent is None:
        return None
    origin = Path(options.trained_agent).parent
    is_run = any(origin.glob("*/args.yml"))
    # Relative, so that the folder of all runs can be moved.
    return {
        "run": os.path.relpath(origin, folder.path) if is_run else None,
        "timesteps": model.num_timesteps + uncounted(origin),
        # Of these, what the model goes on counting from.
        "counted": model.num_timesteps if options.keep_timesteps else 0,
    }


def _write_settings(experiment: Experiment, options: Options, folder: RunFolder, model: PPO_Plus) -> None:
    # rl_zoo3 takes `env_kwargs` from here if they are not null; ours are in the settings.
    run: dict[str, Any] = {
        "algo": ALGO,
        "env": experiment.env_id,
        "env_kwargs": None,
        "eval_env_kwargs": experiment.eval_env_kwargs,
    }
    run.update(seed=experiment.seed, device=experiment.device, vec_env=experiment.vec_env)
    run["job"] = job()
    run["continues"] = _origin(options, folder, model)
    folder.settings.mkdir()
    write_text(folder.settings / "config.yml", yaml.safe_dump(experiment.settings()))
    write_text(folder.settings / "args.yml", yaml.safe_dump({**run, **asdict(options)}))
    write_text(folder.command, command())


def command() -> str:
    """The command line of this process."""
    return shlex.join(sys.orig_argv)


def _summary(run: Run, evaluations: list[EvalAfterUpdates], seconds: float) -> str:
    done = f"after {run.model.num_timesteps:,} timesteps in {seconds:.0f} s"
    if evaluations and evaluations[0].evaluations_results:
        rewards = evaluations[0].evaluations_results[-1]
        result = f"mean return {np.mean(rewards):.2f} +/- {np.std(rewards):.2f} over {len(rewards)} episodes"
    elif run.model.ep_info_buffer:
        rewards = [episode["r"] for episode in run.model.ep_info_buffer]
        result = f"mean return {np.mean(rewards):.2f} over the last {len(rewards)} training episodes"
    else:
        result = "no episode ended"
    return f"{run.experiment.env_id}: {result} {done}"


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
    :param changes: what is to be shown, or survived, otherwise than before, of :class:`~ppo_plus.zoo.runs.Options`
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
    part = experiment.for_each_process(ranks.size)
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
