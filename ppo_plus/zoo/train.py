"""A training run: build it, or resume it; train, evaluate, and leave a folder with everything it produced."""

import pickle
import shutil
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ppo_plus import PPO_Plus
from ppo_plus.callbacks import save_with_statistics
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.saving.checkpoint import checkpoint
from ppo_plus.saving.files import file_name, replacing, write_text
from ppo_plus.zoo import interrupts
from ppo_plus.zoo.callbacks import Evaluations, Interruptible, ProgressDisplay, SavedModels
from ppo_plus.zoo.experiment import Experiment, load_model, make_envs, make_model, saved_experiment
from ppo_plus.zoo.hyperparams import plain, to_yaml
from ppo_plus.zoo.installation import ALLOWED_PACKAGES, Packages, this_command
from ppo_plus.zoo.results import plot_learning_curve
from ppo_plus.zoo.runs import ALGO, Options, RunFolder, new_folder


@dataclass(frozen=True)
class Run:
    """A training run that is ready to start, with the environments of this process."""

    experiment: Experiment
    options: Options
    folder: RunFolder
    model: PPO_Plus
    evaluations: list[Evaluations]  # the callback that evaluates; none without evaluations


def set_up(experiment: Experiment, options: Options | None = None) -> Run:
    """Build environments and model. A mistake in the settings raises its error here, and leaves no folder."""
    options, ranks = options or Options(), Ranks.present()
    # Before the folder is created, which would stay if another process found a mistake.
    part = experiment.for_each_process(ranks.size, options.trained_agent is not None)
    folder = ranks.lead(new_folder(Path(options.log_folder), experiment.env_id) if ranks.leads else None)
    assert folder is not None
    try:
        env = make_envs(part, monitor_dir=folder.path, first=ranks.rank * part.n_envs, **options.supervision())
        arguments = _shown(experiment, options)
        if options.trained_agent is None:
            model = make_model(part, env, **arguments)
        else:
            model = load_model(Path(options.trained_agent), part, env, options.trust_model, **arguments)
        evaluations = make_evaluations(experiment, options, ranks, folder)
        experiment.make_callbacks()  # for their errors
        if ranks.leads:
            _write_settings(experiment, options, folder)
        interrupts.check()
    except BaseException:
        if ranks.leads:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Run(experiment, options, folder, model, evaluations)


def _shown(experiment: Experiment, options: Options) -> dict[str, Any]:
    """The arguments of a model that say what is shown and logged."""
    tensorboard_log = options.tensorboard_log and str(Path(options.tensorboard_log) / file_name(experiment.env_id))
    return {"verbose": options.verbose, "tensorboard_log": tensorboard_log}


def check(experiment: Experiment, options: Options) -> None:
    """Build everything that :func:`set_up` builds, with the same errors, and discard it."""
    with TemporaryDirectory() as folder:
        _close(set_up(experiment, replace(options, log_folder=folder, tensorboard_log=None)))


def make_evaluations(experiment: Experiment, options: Options, ranks: Ranks, folder: RunFolder) -> list[Evaluations]:
    """The callback that evaluates in this process's evaluation environments, at least one; none for no evaluation."""
    if options.eval_freq <= 0:
        return []
    n_envs = -(-options.n_eval_envs // ranks.size)
    env = make_envs(experiment, n_envs, evaluation=True, first=ranks.rank * n_envs, **options.supervision())
    played = {"n_eval_episodes": options.eval_episodes, "deterministic": experiment.deterministic_eval}
    saved = {"log_path": str(folder.path), "best_model_save_path": str(folder.path)}
    return [Evaluations(env, options.eval_freq, verbose=int(options.progress), **played, **saved)]


def _write_settings(experiment: Experiment, options: Options, folder: RunFolder) -> None:
    # rl_zoo3 uses `env_kwargs` of this file unless they are null; ours are in the settings.
    first = {"algo": ALGO, "env": experiment.env_id, "env_kwargs": None}
    folder.settings.mkdir()
    write_text(folder.settings / "config.yml", to_yaml(experiment.settings()))
    beside = {name: plain(value) for name, value in experiment.beside_settings().items()}
    write_text(folder.settings / "args.yml", to_yaml(first | beside | asdict(options)))
    write_text(folder.command, this_command())


def resume(folder: RunFolder, packages: Packages = ALLOWED_PACKAGES, **changes: Any) -> Run:
    """A run in the state of its last checkpoint, ready to continue.

    :param packages: packages that its settings may import from; ``None``: any
    :param changes: fields of :class:`~ppo_plus.zoo.runs.Options` with other values than before, and the same
        ``tensorboard_log`` if its logs should be continued: a file of the run never says where to write
    :raises FileNotFoundError: there is no checkpoint
    :raises BlockingIOError: another process is training the run
    """
    arguments, experiment = folder.arguments() | {"tensorboard_log": None}, saved_experiment(folder, packages)
    options = Options(**{field.name: arguments.get(field.name, field.default) for field in fields(Options)} | changes)
    if not checkpoint.files(folder.checkpoints):
        finished = f"its model is trained further with -i {folder.last_model}"
        begun = f"if it had none yet, start it again: {folder.command.read_text('utf-8')}"
        raise FileNotFoundError(f"--resume {folder.path}: no checkpoint. If the run is finished, {finished}; {begun}")
    ranks = Ranks.present()
    part = experiment.for_each_process(ranks.size)
    episodes: dict[str, Any] = {"monitor_dir": folder.path, "append": True, "first": ranks.rank * part.n_envs}
    with folder.locked() if ranks.leads else nullcontext():
        env = make_envs(part, **episodes, **options.supervision())
        model = PPO_Plus.resume(folder.checkpoints, env, experiment.device, **_shown(experiment, options))
        if ranks.leads:  # a later --resume has the changes, too
            write_text(folder.settings / "args.yml", to_yaml(folder.arguments() | changes))
    return Run(experiment, options, folder, model, make_evaluations(experiment, options, ranks, folder))


def train(run: Run) -> bool:
    """Train, evaluate, save and plot. Ctrl-C or an error ends the training early; what was learned until then is saved.

    :return: whether the run was trained to its end
    :raises BlockingIOError: another process is training the run
    """
    if not run.model.ranks.leads:
        try:
            callbacks = run.experiment.make_callbacks()
            return _learn(run, [each for each in callbacks if getattr(each, "in_all_processes", False)])
        finally:
            _close(run)
    with run.folder.locked():
        finished = _train_and_record(run)
    if finished:
        # Last: a run that is killed before can still be resumed, and Windows removes no lock that is open.
        shutil.rmtree(run.folder.checkpoints, ignore_errors=True)
    return finished


def _train_and_record(run: Run) -> bool:
    start = time.monotonic()
    before = 0 if run.model.call.resumed is None else run.model.num_timesteps
    progress = [ProgressDisplay()] if run.options.progress else []
    saved = [SavedModels(run.options.save_freq, run.folder.path)] if run.options.save_freq > 0 else []
    if progress:
        steps = f"{run.experiment.n_timesteps:,} timesteps"
        what = f"training for {steps}" if run.model.call.resumed is None else f"resuming after {before:,} of {steps}"
        hint = f"seed {run.experiment.seed}; Ctrl-C ends it early and saves"
        print(f"{run.experiment.env_id}: {what}, {hint}", file=sys.stderr, flush=True)
    try:
        finished = _learn(run, [*progress, *saved, *run.experiment.make_callbacks()])
    finally:
        for display in progress:
            display.on_training_end()
        save_with_statistics(run.model, run.folder.last_model)
        if (normalize := run.model.get_vec_normalize_env()) is not None:
            with replacing(run.folder.settings / "vecnormalize.pkl") as file:
                pickle.dump(normalize, file)  # in SB3's format, for rl_zoo3
    curve = plot_learning_curve(run.folder.path, run.experiment.env_id)
    _close(run)
    print(_summary(run, before, time.monotonic() - start))
    print(f"model: {run.folder.last_model}\nlearning curve: {curve}")
    return finished


def _learn(run: Run, callbacks: list[Any]) -> bool:
    """Train, and write a checkpoint if training ends early; return whether it was trained to its end."""
    finished, ranks, n_envs, options = False, run.model.ranks, run.model.n_envs, run.options
    # Each process has its own files of episodes.
    logs = [f"../{i}.monitor.csv" for i in range(ranks.rank * n_envs, (ranks.rank + 1) * n_envs)]
    every = options.save_freq if options.save_freq > 0 else None
    folder = run.folder.checkpoints
    checkpoints = checkpoint.Checkpoints(folder, save_freq=every, keep=options.keep_checkpoints, logs=logs)
    callbacks = [checkpoints, *callbacks, *run.evaluations, Interruptible()]
    log_interval: Any = 1 if ranks.leads else None
    try:
        run.model.learn(run.experiment.n_timesteps, callbacks, log_interval)
        finished = True
    except KeyboardInterrupt:
        if ranks.leads:
            print("interrupted: saving what was learned", file=sys.stderr)
    finally:
        if not finished:
            checkpoints.write()
    return finished


def _close(run: Run) -> None:
    """Close the environments, whose processes the same Ctrl-C may have ended already."""
    for env in (run.model.get_env(), *(evaluation.eval_env for evaluation in run.evaluations)):
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            if env is not None:
                env.close()


def _summary(run: Run, before: int, seconds: float) -> str:
    n_timesteps = run.model.num_timesteps
    last = f", the last {n_timesteps - before:,}" if before else ""
    trained = f"{n_timesteps:,} timesteps{last} in {seconds:.0f} s"
    rewards, what = [episode["r"] for episode in run.model.ep_info_buffer or ()], f"training episodes after {trained}"
    better = ""
    if run.evaluations and run.evaluations[0].evaluations_results:
        rewards, steps = run.evaluations[0].last, run.evaluations[0].evaluations_timesteps[-1]
        what = f"evaluation episodes after {steps:,} timesteps; trained for {trained}"
        better = run.evaluations[0].better()
    mean = f"{np.mean(rewards):.2f} +/- {np.std(rewards):.2f}" if rewards else "unknown"
    return f"{run.experiment.env_id}: mean return {mean} over {len(rewards)} {what}{better}"
