"""A training run: build it, train, evaluate, and leave a folder with everything it produced."""

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus import PPO_Plus
from ppo_plus.zoo.envs import make_envs
from ppo_plus.zoo.experiment import Experiment
from ppo_plus.zoo.models import make_model, save_model
from ppo_plus.zoo.plot import plot_learning_curve

N_EVAL_EPISODES = 20


@dataclass(frozen=True)
class Run:
    """A training run that is ready to start.

    :param experiment: its settings
    :param model: the model, not yet trained
    :param folder: where its results go
    """

    experiment: Experiment
    model: PPO_Plus
    folder: Path


def set_up(experiment: Experiment, log_folder: str | Path = "logs") -> Run:
    """Build environments and model. A mistake in the settings shows here, before any training, and leaves no folder.

    :param experiment: what to train
    :param log_folder: folder of all runs
    :return: the run
    """
    folder = new_folder(Path(log_folder) / "ppo_plus", experiment.env_id)
    try:
        model = make_model(experiment, make_envs(experiment, monitor_dir=folder))
    except Exception:
        shutil.rmtree(folder)
        raise
    return Run(experiment, model, folder)


def train(run: Run) -> None:
    """Train, save, plot and evaluate. Ctrl-C ends the training early; what was learned until then is kept.

    :param run: a run made by :func:`set_up`
    """
    experiment, model, folder = run.experiment, run.model, run.folder
    start = time.monotonic()
    with suppress(KeyboardInterrupt):
        # The bar is drawn by rich, on standard output.
        if sys.stdout.isatty():
            model.learn(experiment.n_timesteps, progress_bar=True)
        else:
            model.learn(experiment.n_timesteps, callback=ProgressLines())
    seconds = time.monotonic() - start
    save_model(model, folder / "model.zip")
    curve = plot_learning_curve(folder, experiment.env_id)
    mean, std = evaluate(model)
    print(
        f"{experiment.env_id}: mean return {mean:.2f} +/- {std:.2f} over {N_EVAL_EPISODES} episodes "
        f"after {model.num_timesteps} timesteps in {seconds:.0f} s"
    )
    print(f"model: {folder / 'model.zip'}")
    print(f"learning curve: {curve}")


def new_folder(parent: Path, env_id: str) -> Path:
    """Create the first free one of ``<env>_1``, ``<env>_2``, ...; safe when several runs start at once.

    :param parent: folder of all runs of this algorithm
    :param env_id: environment id; characters with a meaning in paths are replaced
    :return: the new folder
    """
    name = env_id.replace("/", "-").replace(":", "-")
    for number in count(1):
        folder = parent / f"{name}_{number}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def evaluate(model: PPO_Plus) -> tuple[float, float]:
    """The mean and standard deviation of the policy's return, in the training environments.

    :param model: the trained model
    """
    # From here on episodes are no training episodes, and monitor.csv and the learning curve are about those.
    env = model.get_env()
    assert env is not None
    for writer in env.get_attr("results_writer"):
        writer.close()
    env.set_attr("results_writer", None)
    return model.evaluate(n_eval_episodes=N_EVAL_EPISODES)


class ProgressLines(BaseCallback):
    """Ten plain lines in the course of a training, for logs and other places where a progress bar makes no sense."""

    def _on_training_start(self) -> None:
        self.start = time.monotonic()
        self.lines = 0

    def _on_step(self) -> bool:
        done, total = self.num_timesteps, self.locals["total_timesteps"]
        if self.lines < 10 and done * 10 >= (self.lines + 1) * total:
            self.lines = done * 10 // total
            self._print(done, total)
        return True

    def _print(self, done: int, total: int) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        mean = f"mean return {np.mean(returns):.2f}" if returns else "no episode ended yet"
        speed = done / (time.monotonic() - self.start)
        print(f"{done} of {total} timesteps, {mean}, {speed:.0f} timesteps/s", file=sys.stderr, flush=True)
