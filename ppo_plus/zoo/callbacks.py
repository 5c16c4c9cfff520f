"""What happens during a training run besides training: evaluations, checkpoints, progress."""

from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback

from ppo_plus.zoo.models import save_statistics, statistics_path


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
            self.go_on = super()._on_step() and self.go_on


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


class Checkpoints(CheckpointCallback):
    """SB3's ``CheckpointCallback``, with statistics named as those of every other model."""

    def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
        if checkpoint_type == "vecnormalize_":
            return str(statistics_path(Path(self._checkpoint_path(extension="zip"))))
        return super()._checkpoint_path(checkpoint_type, extension)
