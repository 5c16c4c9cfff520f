"""What a model does with a rollout: the update, from the schedules at its beginning to the log at its end."""

from collections.abc import Iterable, Iterator
from typing import Any

from stable_baselines3.common import utils

from ppo_plus.compiling.compilation import Compilation
from ppo_plus.formulas.losses import Coefficients, Losses
from ppo_plus.formulas.schedules import at
from ppo_plus.playing import Playing
from ppo_plus.rollout.anew import estimated_anew, separate
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.update.batch import Batch
from ppo_plus.update.flat import packed
from ppo_plus.update.learner import metrics
from ppo_plus.update.parallel import Reduction, average_buffers, explained_variance, shared_epochs, with_room
from ppo_plus.update.update import Scheduled, Update


class Learning(Playing):
    """The part of :class:`~ppo_plus.PPO_Plus` that learns from what was collected."""

    # Whether and how updates are compiled.
    compilation: Compilation
    # Arguments.
    n_epochs: int
    batch_size: int
    recompute_advantages: bool
    normalize_advantage: Any

    def compute_loss(self, batch: Batch, coefficients: Coefficients) -> Losses:
        raise NotImplementedError

    def _normalize(self, buffer: RolloutBuffer) -> None:
        """Normalize advantages over the whole rollout, where that is asked for."""
        if self.normalize_advantage == "rollout":
            self.together.normalize_advantages(buffer)

    def _estimate(self, buffer: RolloutBuffer) -> None:
        """Fill advantages and returns of a twin of the rollout, given its values."""
        self.collector.estimate(buffer)
        self._normalize(buffer)

    def _passes(self) -> Iterator[Any]:
        """Passes over the rollout in minibatches."""
        buffer, rollout = self.rollout_buffer, self.rollout_buffer.on_device()
        if self.ranks.several and self.settings.loss.normalize_advantage:
            rollout = with_room(rollout)
        if self.recompute_advantages:
            rollout = separate(rollout)
        passes: Iterator[Any] = (buffer.minibatches(self.batch_size, rollout) for _ in range(self.n_epochs))
        if self.recompute_advantages:
            passes = estimated_anew(passes, rollout, self.policy, buffer, self._estimate)
        return passes

    def train(self) -> None:
        """Improve the policy with the rollout that was collected: ``n_epochs`` passes over it in minibatches.

        :raises FloatingPointError: too many minibatches in a row had a non-finite loss or gradient
        """
        settings, policy, buffer = self.settings, self.policy, self.rollout_buffer
        policy.set_training_mode(True)
        self._normalize(buffer)
        # Also a schedule that replaced the attribute after SB3's fashion.
        schedules = settings.schedules | {"learning_rate": self.lr_schedule}
        numbers = self.together.scheduled = at(self._current_progress_remaining, schedules)
        scheduled = Scheduled.of(numbers, self.device)
        state = self.learner.kl_state(settings.control)
        learning_rate = numbers["learning_rate"] * state.lr_scale.item()
        utils.update_learning_rate(policy.optimizer, learning_rate)
        reduction = Reduction(self.ranks) if self.ranks.several else None
        update = Update(policy, self.compute_loss, settings.control, self.max_grad_norm, reduction)
        foreign = None if settings.has_own_buffer else f"{type(buffer).__name__} is no rollout buffer of ppo_plus"

        epochs: Iterable[Any] = self._passes()
        if self.ranks.several:
            epochs = shared_epochs(self.ranks, epochs, settings.loss.normalize_advantage)
        with packed(policy.optimizer) as weights:
            minibatch = update.prepared(weights, scheduled, self.compilation, foreign, named=[self], loss=settings.loss)
            done = self.learner.learn(minibatch, epochs, settings.control, state, scheduled.target_kl)
        if self.ranks.several:
            average_buffers(self.ranks, policy)
        self._n_updates += done.n_epochs
        if self.verbose >= 1 and not done.state.running:
            print(f"Early stopping at step {done.n_epochs - 1} due to reaching max kl: {done.kl:.2f}")
        shown = ("clip_range", "clip_range_vf")
        ranges = {name: numbers[name] for name in shown if numbers[name] is not None}
        explained = explained_variance(self.ranks, buffer.values, buffer.returns)
        logged = metrics(done, settings.control, explained, policy)
        for name, value in {**logged, **ranges, "learning_rate": learning_rate}.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
