"""Callbacks of a training run: evaluations, saved models, progress."""

import math
import sys
import warnings
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from tqdm import tqdm

from ppo_plus import PPO_Plus
from ppo_plus.distributed.ranks import Ranks
from ppo_plus.rollout.evaluation import frozen, play, with_statistics_of
from ppo_plus.saving.files import replacing
from ppo_plus.zoo.experiment import save_model
from ppo_plus.zoo.interrupts import check


class EvalAfterUpdates(EvalCallback):
    """SB3's ``EvalCallback``, but it evaluates after updates, including the last one.

    SB3 evaluates in the middle of a rollout, where it scores the policy of the previous rollout, and never scores the
    last update. This callback evaluates the first update after each multiple of ``eval_freq``, and the last one. If
    several processes train one model, each plays its share of the episodes, and the first one records all.

    :param eval_env: evaluation environments of this process, or the id of one. They are wrapped as the training
        environments are, and get their normalization statistics
    :param eval_freq: environment steps between evaluations, over all environments (SB3: of each); 0 or less: never
    :param kwargs: arguments of ``EvalCallback``; ``best_model_save_path`` gets the statistics as well
    """

    #: See :attr:`ppo_plus.call.Call.in_all_processes`.
    in_all_processes = True

    def __init__(self, eval_env: Any, eval_freq: int = 10_000, verbose: int = 0, **kwargs: Any):
        super().__init__(PPO_Plus._wrap_env(eval_env), eval_freq=eval_freq, verbose=verbose, **kwargs)

    def _init_callback(self) -> None:
        with warnings.catch_warnings():
            # SB3 compares the classes of wrappers.
            warnings.filterwarnings("ignore", "Training and eval env are not of the same type")
            super()._init_callback()

    def _on_training_start(self) -> None:
        super()._on_training_start()
        # An environment that does not fit raises an error before training.
        with_statistics_of(self.model, self.eval_env)
        self.evaluated_updates = self.model._n_updates
        self.evaluated_timesteps = self.model.num_timesteps
        self.should_continue = True

    def _on_step(self) -> bool:
        return self.should_continue

    def _on_rollout_start(self) -> None:
        every = self.eval_freq
        self._evaluate(every > 0 and self.num_timesteps // every > self.evaluated_timesteps // every)

    def _on_training_end(self) -> None:
        self._evaluate(self.eval_freq > 0)

    def _evaluate(self, is_due: bool) -> None:
        """Evaluate if it is due, and there has been an update since the last evaluation."""
        ranks: Ranks = self.model.ranks  # type: ignore[attr-defined]
        # Rank 0 decides, so that all ranks evaluate or none does.
        if ranks.lead(is_due and self.model._n_updates > self.evaluated_updates):
            self.evaluated_updates = self.model._n_updates
            self.evaluated_timesteps = self.num_timesteps
            self._is_success_buffer = []
            n_episodes = (self.n_eval_episodes + ranks.rank) // ranks.size
            options = {"deterministic": self.deterministic, "render": self.render, "warn": self.warn}
            with frozen(with_statistics_of(self.model, self.eval_env)) as played:
                returns, lengths = play(self.model, played, n_episodes, self._log_success_callback, **options)
            parts = ranks.gather_values((returns, lengths, self._is_success_buffer))
            if ranks.leads:
                self._record(*(sum(part, []) for part in zip(*parts, strict=True)))

    def _record(self, returns: list[float], lengths: list[int], successes: list[bool]) -> None:
        """Save and log the episodes, and save the model if it is the best, as ``EvalCallback`` does."""
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(returns)
        self.evaluations_length.append(lengths)
        tables: dict[str, Any] = {
            "timesteps": self.evaluations_timesteps,
            "results": self.evaluations_results,
            "ep_lengths": self.evaluations_length,
        }
        if successes:
            self.evaluations_successes.append(successes)
            tables["successes"] = self.evaluations_successes
            self.logger.record("eval/success_rate", np.mean(successes))
        if self.log_path is not None:
            with replacing(f"{self.log_path}.npz") as file:
                np.savez(file, **tables)
        self.last_mean_reward = mean = float(np.mean(returns))
        is_best = mean > self.best_mean_reward
        self.logger.record("eval/mean_reward", mean)
        self.logger.record("eval/mean_ep_length", np.mean(lengths))
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)
        if self.verbose >= 1:
            # Above the progress bar, if there is one.
            result = f"mean return {mean:.2f} +/- {np.std(returns):.2f} over {len(returns)} episodes"
            best = " (new best)" if is_best else ""
            tqdm.write(f"evaluation after {self.num_timesteps:,} timesteps: {result}{best}", file=sys.stderr)
        if is_best:
            self.best_mean_reward = mean
            if self.best_model_save_path is not None:
                save_model(self.model, Path(self.best_model_save_path, "best_model.zip"))  # type: ignore[arg-type]
            if self.callback_on_new_best is not None:
                self.should_continue &= self.callback_on_new_best.on_step()
        self.should_continue = self.should_continue and self._on_event()


class SavedModels(BaseCallback):
    """Saves the model and its normalization statistics when :class:`EvalAfterUpdates` evaluates: after the first update
    past each multiple of ``save_freq`` environment steps, over all environments together."""

    def __init__(self, save_freq: int, folder: Path):
        super().__init__()
        self.every, self.folder = save_freq, folder

    def _on_training_start(self) -> None:
        self.saved_timesteps = self.model.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > self.saved_timesteps // self.every:
            self.saved_timesteps = self.num_timesteps
            save_model(self.model, self.folder / f"rl_model_{self.num_timesteps}_steps.zip")  # type: ignore[arg-type]

    _on_training_end = _on_rollout_start


class Interruptible(BaseCallback):
    """Ends training when a signal has come; see :func:`ppo_plus.zoo.interrupts.check`."""

    def _on_step(self) -> bool:
        check()
        return True


class ProgressDisplay(BaseCallback):
    """Shows how far training is, its return, speed and remaining time: a bar on a terminal, else ten plain lines."""

    def __init__(self, bar: bool | None = None):
        super().__init__()
        self.shows_bar = sys.stderr.isatty() if bar is None else bar
        self.bar: Any = None

    def _on_training_start(self) -> None:
        notice = self.model.compilation.notice  # type: ignore[attr-defined]
        if notice is not None and self.model.verbose < 1:  # else the model prints it
            print(notice, file=sys.stderr, flush=True)
        self.compiling = self.model.compilation.seconds  # type: ignore[attr-defined]
        done, total = self.model.num_timesteps, self.locals["total_timesteps"]
        # Without a terminal the bar is never drawn; its text is printed at each tenth.
        where: dict[str, Any] = {} if self.shows_bar else {"file": StringIO(), "mininterval": math.inf}
        self.bar = tqdm(initial=done, total=total, unit=" steps", unit_scale=True, dynamic_ncols=True, **where)

    def _on_step(self) -> bool:
        # The time left is that of training: compiling is over.
        compiling = self.model.compilation.seconds - self.compiling  # type: ignore[attr-defined]
        self.bar.start_t, self.bar.last_print_t = self.bar.start_t + compiling, self.bar.last_print_t + compiling
        self.compiling += compiling
        tenths = 10 * self.bar.n // self.bar.total
        self.bar.update(min(self.num_timesteps, self.bar.total) - self.bar.n)  # the last rollout is completed
        if not self.shows_bar and 10 * self.bar.n // self.bar.total > tenths:
            print(self.bar, file=sys.stderr, flush=True)
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        self.bar.set_postfix_str(f"mean return {np.mean(returns):.2f}" if returns else "no episode ended yet")

    def _on_training_end(self) -> None:
        """Also called after an interruption, where SB3 does not call it."""
        if self.bar is not None:
            self.bar.close()
