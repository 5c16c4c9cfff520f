"""Callbacks of a training run: evaluations, saved models, interrupts, progress."""

import math
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from ppo_plus.callbacks import EvalAfterUpdates, save_with_statistics
from ppo_plus.zoo.interrupts import check

#: Episodes of the evaluation at the end of training, at least.
LAST_EPISODES = 20


class Evaluations(EvalAfterUpdates):
    """The evaluations of a run. The last model plays :data:`LAST_EPISODES` or more; the file has the usual number."""

    #: The returns of the last model, once training has ended.
    returns: tuple[float, ...] = ()

    def _on_training_end(self) -> None:
        super()._on_training_end()
        n_more = LAST_EPISODES - self.n_eval_episodes
        if self.model.ranks.lead(n_more > 0 and len(self.evaluations_results) > 0):
            more = self._play(n_more)
            if self.model.ranks.leads:
                self.returns = (*self.evaluations_results[-1], *(episode["return"] for episode in more))

    @property
    def last(self) -> list[float]:
        """The returns of the last evaluation."""
        return [*self.returns] or self.evaluations_results[-1]

    def better(self) -> str:
        """What to say of the best model, if it was evaluated as better than the last one."""
        means = [np.mean(returns) for returns in self.evaluations_results]
        best = int(np.argmax(means))
        limited = any(hasattr(stream, "limit") for stream in self.model.streams)  # which the best may have exceeded
        if limited or best == len(means) - 1 or means[best] <= np.mean(self.last):
            return ""
        n, steps = len(self.evaluations_results[best]), self.evaluations_timesteps[best]
        evaluated = f"mean return {means[best]:.2f} over {n} evaluation episodes after {steps:,} timesteps"
        return f"\nthe best model was better: {evaluated}; --load-best plays it"


class SavedModels(BaseCallback):
    """Saves the model and its normalization statistics when :class:`~ppo_plus.EvalAfterUpdates` evaluates: after the
    first update past each multiple of ``save_freq`` environment steps, over all environments together."""

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
            save_with_statistics(self.model, self.folder / f"rl_model_{self.num_timesteps}_steps.zip")  # type: ignore[arg-type]

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
        done, total = self.model.num_timesteps, self.locals["total_timesteps"]
        # Without a terminal the bar is never drawn; its text is printed at each tenth.
        where: dict[str, Any] = {} if self.shows_bar else {"file": StringIO(), "mininterval": math.inf}
        self.bar = tqdm(initial=done, total=total, unit=" steps", unit_scale=True, dynamic_ncols=True, **where)

    def _on_step(self) -> bool:
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
