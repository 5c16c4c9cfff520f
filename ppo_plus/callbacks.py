"""Callbacks, and what they write: evaluations, and the best model with its normalization statistics."""

import math
import sys
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.type_aliases import GymEnv
from tqdm import tqdm

from ppo_plus.ppo import PPO_Plus
from ppo_plus.require import require_int
from ppo_plus.rollout.evaluation import Episode, play, prepared, with_statistics_of
from ppo_plus.saving import statistics
from ppo_plus.saving.files import replacing


class EvalAfterUpdates(EvalCallback):
    """SB3's ``EvalCallback``, but it evaluates after updates, including the last one.

    SB3 evaluates in the middle of a rollout, where it scores the policy of the previous rollout, and never scores the
    last update. This callback evaluates the first update after each multiple of ``eval_freq``, and the last one. If
    several processes train one model, each plays its share of the episodes, and the first one records all.

    :param eval_env: evaluation environments of this process, or the id of one. Images are transposed, and observations
        normalized by the statistics of training; other wrappers are not added
    :param eval_freq: environment steps between evaluations, over all environments (SB3: of each); 0 or less: never
    :param kwargs: arguments of ``EvalCallback``, such as ``deterministic``; ``best_model_save_path`` gets the
        statistics as well. The mean sums of streams, such as costs, are logged as ``eval/mean_<name>``
    """

    #: See :attr:`ppo_plus.call.Call.in_all_processes`.
    in_all_processes = True
    model: PPO_Plus  # type: ignore[assignment]

    def __init__(self, eval_env: GymEnv | str, eval_freq: int = 10_000, verbose: int = 0, **kwargs: Any):
        wrapped = PPO_Plus._wrap_env(eval_env)  # type: ignore[arg-type]
        super().__init__(wrapped, eval_freq=eval_freq, verbose=verbose, **kwargs)
        require_int("n_eval_episodes", self.n_eval_episodes, 1)

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
        ranks = self.model.ranks
        # Rank 0 decides, so that all ranks evaluate or none does.
        if ranks.lead(is_due and self.model._n_updates > self.evaluated_updates):
            self.evaluated_updates = self.model._n_updates
            self.evaluated_timesteps = self.num_timesteps
            episodes = self._play(self.n_eval_episodes)
            if ranks.leads:
                self._record(episodes)

    def _play(self, n_episodes: int) -> list[Episode]:
        """Episodes, shared out among the processes; the first process gets all of them."""
        ranks = self.model.ranks
        options = {"deterministic": self.deterministic, "render": self.render, "warn": self.warn}
        with prepared(self.model, self.eval_env) as played:
            share = (n_episodes + ranks.rank) // ranks.size
            own = play(self.model, played, share, **options) if share else []
        return sum(ranks.gather_values(own), [])

    def _record(self, episodes: list[Episode]) -> None:
        """Save and log the episodes, and save the model if it is the best, as ``EvalCallback`` does."""
        names = dict.fromkeys(name for one in episodes for name in one)
        # An environment may report success, or a stream, in some episodes only.
        columns = {name: [one.get(name, math.nan) for one in episodes] for name in names}
        returns, lengths, successes = columns.pop("return"), columns.pop("length"), columns.pop("is_success", [])
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(returns)
        self.evaluations_length.append(lengths)  # type: ignore[arg-type]
        tables: dict[str, Any] = {"results": self.evaluations_results, "ep_lengths": self.evaluations_length}
        if successes or self.evaluations_successes:
            earlier = len(self.evaluations_results) - 1
            self.evaluations_successes += [[]] * (earlier - len(self.evaluations_successes))
            self.evaluations_successes.append(successes)  # type: ignore[arg-type]
            tables["successes"] = self.evaluations_successes
        if successes:
            self.logger.record("eval/success_rate", np.nanmean(successes))
        for name, sums in columns.items():
            self.logger.record(f"eval/mean_{name}", np.nanmean(sums))
        if self.log_path is not None:
            with replacing(f"{self.log_path}.npz") as file:
                # Rows of several lengths end in NaN.
                for name, rows in tables.items():
                    tables[name] = np.array([*zip_longest(*rows, fillvalue=math.nan)]).T
                np.savez(file, timesteps=self.evaluations_timesteps, **tables)
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
                save_with_statistics(self.model, Path(self.best_model_save_path, "best_model.zip"))
            if self.callback_on_new_best is not None:
                self.should_continue = self.callback_on_new_best.on_step() and self.should_continue
        self.should_continue = self.should_continue and self._on_event()


def save_with_statistics(model: PPO_Plus, path: Path) -> None:
    """Save a model and, next to its ``.zip`` file, its normalization statistics, which must be finite."""
    if (normalize := model.get_vec_normalize_env()) is not None:
        statistics.require_finite(normalize, statistics.statistics_path(path))
    model.save(path)
    if normalize is not None:
        statistics.write_statistics(normalize, statistics.statistics_path(path))
