"""Hyperparameter search with Optuna: many workers, an exact budget, and a winner only if unseen seeds confirm it. It
needs the extra ``zoo``."""

from ppo_plus.zoo.tune.plan import Plan
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.stages import Study
from ppo_plus.zoo.tune.storage import open_storage
from ppo_plus.zoo.tune.tuner import Workers, tune

__all__ = ["Plan", "Study", "Workers", "open_storage", "read_space", "tune"]
