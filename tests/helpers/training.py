"""Models with four minibatches in each epoch, what they have seen and what they have logged."""

import copy
import inspect
from functools import partial

from models import make_model
from stable_baselines3.common.callbacks import BaseCallback

from ppo_plus import PPO_Plus

#: Four minibatches in each epoch.
make = partial(make_model, batch_size=4)


def shorten_rollouts(patch, n_steps):
    """Let models that are not told how long rollouts are have shorter ones than 2048 steps."""
    init = inspect.unwrap(PPO_Plus.__init__)
    patch.setattr(init, "__defaults__", tuple(n_steps if value == 2048 else value for value in init.__defaults__))


def logged(model):
    return model.logger.name_to_value


class Recording(PPO_Plus):
    """Remembers the batches, coefficients and diagnostics, and the loss, of every minibatch."""

    def compute_loss(self, batch, coefficients):
        outcome = super().compute_loss(batch, coefficients)
        numbers = outcome.diagnostics | {"loss": outcome.total.detach()}
        self.record = [*getattr(self, "record", []), (batch, coefficients, numbers)]
        return outcome


class LogHistory(BaseCallback):
    """Keeps what each update logged; the last one is in the logger after training."""

    def __init__(self):
        super().__init__()
        self.updates = []

    def _on_rollout_start(self):
        if "train/loss" in logged(self.model):
            self.updates.append(dict(logged(self.model)))

    def _on_training_end(self):
        self.updates.append(dict(logged(self.model)))

    def _on_step(self):
        return True

    def __getitem__(self, name):
        return [update[name] for update in self.updates]


def learn(model, n_updates, **kwargs):
    """Learn for some updates; returns what each of them logged."""
    history = LogHistory()
    model.learn(n_updates * model.n_steps * model.n_envs, callback=history, log_interval=None, **kwargs)
    return history


class LogDumps(BaseCallback):
    """What each dump wrote."""

    def _on_training_start(self):
        self.dumps = []
        dump = self.logger.dump
        self.logger.dump = lambda step=0: self.dumps.append(dict(self.logger.name_to_value)) or dump(step)

    def _on_step(self):
        return True


def n_steps_taken(model):
    return int(next(iter(model.policy.optimizer.state.values()))["step"])


class CopiesInHooks(BaseCallback):
    """Copies the model in every hook, once each."""

    def __init__(self, duplicate):
        super().__init__()
        self.duplicate, self.copies = duplicate, {}

    def _copy(self, hook):
        if hook not in self.copies:
            self.copies[hook] = self.duplicate(self.model)

    def _on_training_start(self):
        self._copy("training start")

    def _on_rollout_start(self):
        self._copy("rollout start")

    def _on_step(self):
        self._copy("step")
        return True

    def _on_rollout_end(self):
        self._copy("rollout end")

    def _on_training_end(self):
        self._copy("training end")


class At(BaseCallback):
    """Calls ``function(model)`` at steps, and in hooks such as ``"rollout_end"``."""

    def __init__(self, function, steps=(), hooks=()):
        super().__init__()
        self.function, self.steps = function, steps
        for hook in hooks:
            setattr(self, f"_on_{hook}", lambda: function(self.model))

    def _on_step(self):
        if self.n_calls in self.steps:
            self.function(self.model)
        return True


class Noting(BaseCallback):
    """Keeps entries of the locals of each step, and copies of them."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.seen, self.kept = names, [], []

    def _on_step(self):
        self.seen.append({name: self.locals[name] for name in self.names})
        self.kept.append(copy.deepcopy(self.seen[-1]))
        return True
