"""A call of ``learn``: its progress and its callbacks. :mod:`ppo_plus.saving.checkpoint.checkpoint` resumes one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback

from ppo_plus.model import Model
from ppo_plus.process import keep_freed_memory

#: Attributes that SB3 sets on every callback.
SET_BY_SB3 = frozenset({"model", "logger", "training_env", "locals", "globals", "parent"})


def check_callback(callback: object) -> None:
    """:raises TypeError: nothing that :meth:`PPO_Plus.learn` can call"""
    is_function = callable(callback) and not isinstance(callback, type)
    callbacks = callback if isinstance(callback, list) else [callback]
    if callback is not None and not is_function and not all(isinstance(item, BaseCallback) for item in callbacks):
        raise TypeError(
            f"callback={callback!r} must be a callback such as EvalCallback(eval_env), a list of callbacks, or a "
            "function of locals and globals"
        )


def tree_of(callback: BaseCallback, known: list[BaseCallback] | None = None) -> list[BaseCallback]:
    """A callback and all in it, each once, in a fixed order."""
    known = [] if known is None else known
    if not any(callback is each for each in known):
        known.append(callback)
        for name, value in vars(callback).items():
            if name not in SET_BY_SB3:
                for part in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(part, BaseCallback):
                        tree_of(part, known)
    return known


@dataclass(eq=False)
class Call:
    """A call of ``learn`` while it runs."""

    total_timesteps: float | None = None  # the argument of `learn`
    iteration: int = 0  # the rollouts that it has completed
    between_rollouts: bool = True  # whether every transition has been learned from
    callbacks: list[BaseCallback] = field(default_factory=list)  # without lists of callbacks
    configured: list[dict[str, bytes]] = field(default_factory=list)  # what they were configured with, for checkpoints
    resumed: dict[str, Any] | None = None  # the checkpoint from which it is going to resume

    def begun(self, total_timesteps: float) -> "Call":
        """The call that begins now: this one if it was interrupted, otherwise a new one.

        :raises ValueError: the interrupted one had other ``total_timesteps``
        """
        if self.resumed is None:
            return Call(total_timesteps)
        if total_timesteps != self.total_timesteps:
            raise ValueError(
                f"total_timesteps={total_timesteps}: this call of learn resumes an interrupted one, which had "
                f"{self.total_timesteps}. Pass the same; learn(..., reset_num_timesteps=False) after it trains further"
            )
        return self

    @contextmanager
    def running(self, model: Model) -> Iterator["Call"]:
        """The call while it runs. An error ends training in the other processes, too."""
        keep_freed_memory()
        try:
            yield self
        except BaseException:
            for bar in self.bars():  # rich draws one at a time
                bar.close()
            model.ranks.leave()
            if not self.between_rollouts:
                model._last_obs = None  # the environments may have taken a step that no rollout has
            raise
        finally:
            if self.resumed is None:  # otherwise it can be resumed again
                self.total_timesteps, self.iteration, self.callbacks, self.configured = None, 0, [], []

    def watch(self, callback: BaseCallback) -> None:
        """Set the callback of this call, and order it: what takes checkpoints (``comes_first``) comes first, since what
        others do at the start of a rollout is done again after resuming."""
        for part in tree_of(callback):
            for inner in tree_of(part)[1:] if isinstance(part, EventCallback) else ():
                if getattr(inner, "in_all_processes", False):
                    inside = f"{type(inner).__name__} in {type(part).__name__}"
                    raise ValueError(f"callback: {inside} is not called between rollouts: pass it to learn directly")
            if isinstance(part, CallbackList):
                part.callbacks = sorted(
                    part.callbacks,
                    key=lambda root: not any(getattr(one, "comes_first", False) for one in tree_of(root)),
                )
        self.callbacks = [part for part in tree_of(callback) if not isinstance(part, CallbackList)]

    @property
    def in_all_processes(self) -> list[str]:
        """The callbacks in which processes that train together wait for each other (``in_all_processes``)."""
        return [type(part).__name__ for part in self.callbacks if getattr(part, "in_all_processes", False)]

    def bars(self) -> list[Any]:
        """The progress bars of tqdm that callbacks show."""
        names = ("pbar", "progress_bar", "bar")  # SB3's, rl_zoo3's, and ours
        found = [getattr(callback, name, None) for callback in self.callbacks for name in names]
        return [bar for bar in found if isinstance(getattr(bar, "start_t", None), float)]
