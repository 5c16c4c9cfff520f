"""A call of ``learn``: its progress, and how an interrupted one is resumed."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from ppo_plus.saving.checkpoint import log_state, random_state
from ppo_plus.saving.checkpoint.callback_state import CallbackStates, tree_of


@dataclass
class Call:
    """A call of ``learn`` and its progress: the rollouts that it has completed, whether every one has been learned
    from, its callbacks, and the checkpoint that it is going to resume from."""

    total_timesteps: float | None = None
    iteration: int = 0
    between_rollouts: bool = True
    callbacks: CallbackStates | None = None
    resumed: dict[str, Any] | None = None

    def watch(self, callback: BaseCallback) -> None:
        """Set the callback of this call, and order it: what takes checkpoints (``comes_first``) comes first, since what
        others do at the start of a rollout is done again after resuming."""

        def comes_first(one: BaseCallback) -> bool:
            return any(getattr(each, "comes_first", False) for each in tree_of(one))

        for each in tree_of(callback):
            if isinstance(each, CallbackList):
                each.callbacks = sorted(each.callbacks, key=lambda one: not comes_first(one))
        self.callbacks = CallbackStates(callback)

    @property
    def in_all_processes(self) -> list[str]:
        """The callbacks in which processes that train together wait for each other (``in_all_processes``)."""
        assert self.callbacks is not None
        found = [each for each in self.callbacks.callbacks if getattr(each, "in_all_processes", False)]
        return [type(each).__name__ for each in found]

    def state(self) -> dict[str, Any] | None:
        """Its state for a checkpoint."""
        if self.total_timesteps is None or self.callbacks is None:
            return None
        callbacks = self.callbacks.get()
        return {"total_timesteps": self.total_timesteps, "iteration": self.iteration, "callbacks": callbacks}

    @contextmanager
    def logs(self, model: Any) -> Iterator[None]:
        """While the model sets up its logger: continue the logs of the call that was interrupted."""
        logger = None
        if self.resumed is not None:
            log_state.cut(**self.resumed["logs"])
            if not model._custom_logger:
                logger = log_state.reopen(self.resumed["log"], model.verbose)
        if logger is not None:
            model.set_logger(logger)
        yield
        if logger is not None:
            model._custom_logger = False

    def restore(self, model: Any) -> None:
        """Restore the rest of the checkpoint, once the call has started again."""
        if self.resumed is None:
            return
        resumed, self.resumed = self.resumed, None
        assert self.callbacks is not None
        for warning in self.callbacks.set(resumed["call"]["callbacks"]):
            warnings.warn(warning, stacklevel=3)
        log_state.set_state(model.logger, resumed["log"])
        # Last, since what comes before may draw.
        random_state.set_states(resumed["generators"])


@contextmanager
def calling(model: Any, total_timesteps: float) -> Iterator[Call]:
    """A call of a model's ``learn``, while it runs: the interrupted one if there is one.

    :raises ValueError: that one had another number of timesteps
    """
    if model.call.resumed is None:
        model.call = Call(total_timesteps)
    elif total_timesteps != model.call.total_timesteps:
        raise ValueError(
            f"total_timesteps={total_timesteps}: this call of learn resumes an interrupted one, which had "
            f"{model.call.total_timesteps}. Pass the same"
        )
    try:
        yield model.call
    finally:
        model.call = Call()
