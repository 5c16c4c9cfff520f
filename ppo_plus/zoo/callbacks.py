"""What happens during a training run besides training: evaluations, checkpoints, progress."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from tqdm import tqdm

from ppo_plus.rollout.evaluation import with_masks
from ppo_plus.zoo.models import save_statistics


class EvalAfterUpdates(EvalCallback):
    """SB3's ``EvalCallback``, at the moments when the policy is new: after an update, the last one included.

    SB3 evaluates in the middle of a rollout, where it scores the policy of the rollout before, and never scores the
    last update. Here the first update after each multiple of ``eval_freq`` is evaluated, and the last one. A run
    without any update has no evaluation.

    :param eval_env: evaluation environments; statistics of ``VecNormalize`` are copied to them before each evaluation
    :param eval_freq: environment steps between evaluations, over all environments together (SB3: of each)
    :param kwargs: arguments of ``EvalCallback``; ``best_model_save_path`` gets the statistics as well, and a
        ``callback_after_eval`` is called after every evaluation (``self.parent.last_mean_reward``), and may stop
        training by returning ``False``
    """

    def __init__(self, eval_env: Any, eval_freq: int = 10_000, verbose: int = 0, **kwargs: Any):
        if kwargs.get("best_model_save_path") is not None:
            path = Path(kwargs["best_model_save_path"], "best_model.zip")
            kwargs.setdefault("callback_on_new_best", SaveStatistics(path))
        # SB3 counts calls of its own; here each call of its `_on_step` is to evaluate.
        super().__init__(eval_env, eval_freq=1, verbose=verbose, **kwargs)
        self.every = eval_freq

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.evaluated_updates = self.model._n_updates
        self.evaluated_timesteps = self.model.num_timesteps
        self.go_on = True

    def _on_step(self) -> bool:
        return self.go_on

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > self.evaluated_timesteps // self.every:
            self._evaluate()

    def _on_training_end(self) -> None:
        self._evaluate()

    def _evaluate(self) -> None:
        """Evaluate, if there has been an update since the last time."""
        if self.model._n_updates > self.evaluated_updates:
            self.evaluated_updates = self.model._n_updates
            self.evaluated_timesteps = self.num_timesteps
            model = self.model
            # SB3's evaluator knows nothing of masks.
            self.model = with_masks(model, self.eval_env)  # type: ignore[arg-type]
            try:
                self.go_on = super()._on_step() and self.go_on
            finally:
                self.model = model


class EvalLine(BaseCallback):
    """One line after each evaluation (SB3's ``callback_after_eval``), above the progress bar if there is one."""

    def _on_step(self) -> bool:
        results = self.parent.evaluations_results  # type: ignore[union-attr]
        rewards = results[-1]
        is_best = np.mean(rewards) > max(map(np.mean, results[:-1]), default=-np.inf)
        best = " (new best)" if is_best else ""
        tqdm.write(
            f"evaluation after {self.num_timesteps:,} timesteps: return {np.mean(rewards):.2f} +/- "
            f"{np.std(rewards):.2f} over {len(rewards)} episodes{best}",
            file=sys.stderr,
        )
        return True


class SaveStatistics(BaseCallback):
    """Saves the normalization statistics beside a model that another callback has just saved.

    :param path: the model's file
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        save_statistics(self.model, self.path)  # type: ignore[arg-type]
        return True


class SavedModels(CheckpointCallback):
    """SB3's ``CheckpointCallback``, with the statistics beside each model, as beside every other."""

    def _on_step(self) -> bool:
        if not super()._on_step():
            return False
        if self.n_calls % self.save_freq == 0:
            save_statistics(self.model, Path(self._checkpoint_path(extension="zip")))  # type: ignore[arg-type]
        return True


class Progress(BaseCallback):
    """How far training is, its return, its speed and the time left: a bar on a terminal, else ten plain lines.

    :param bar: ``None``: a bar if standard error is a terminal
    """

    def __init__(self, bar: bool | None = None):
        super().__init__()
        self.shows_bar = sys.stderr.isatty() if bar is None else bar
        self.bar: tqdm | None = None

    def get_state(self) -> dict[str, Any]:
        """Nothing: how far a run that goes on is, its model says."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def _on_training_start(self) -> None:
        self.first = self.model.num_timesteps
        self.total = self.locals["total_timesteps"]
        self.started = time.monotonic()
        self.lines = self.first * 10 // self.total
        notice = self.model.compilation.notice  # type: ignore[attr-defined]
        if notice is not None and self.model.verbose < 1:  # else the model says it
            print(notice, file=sys.stderr, flush=True)
        if self.shows_bar:
            self.bar = tqdm(initial=self.first, total=self.total, unit="step", unit_scale=True, dynamic_ncols=True)

    def _on_step(self) -> bool:
        done = self.num_timesteps
        if self.bar is not None:
            self.bar.update(min(done, self.total) - self.bar.n)  # the last rollout is completed
        elif self.lines < 10 and done * 10 >= (self.lines + 1) * self.total:
            self.lines = done * 10 // self.total
            speed = (done - self.first) / (time.monotonic() - self.started)
            print(
                f"{done:,} of {self.total:,} timesteps, {self._mean_return()}, {speed:.0f} timesteps/s, "
                f"{max(0, self.total - done) / speed:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        return True

    def _on_rollout_end(self) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(self._mean_return())

    def _on_training_end(self) -> None:
        """Called by hand as well: SB3 does not when training is interrupted."""
        if self.bar is not None:
            self.bar.close()

    def _mean_return(self) -> str:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        return f"mean return {np.mean(returns):.2f}" if returns else "no episode ended yet"
