"""Hyperparameter search with Optuna, an exact budget, and a confirmation on unseen seeds. Needs the extra ``zoo``."""

from ppo_plus.zoo.tune.jobs import open_storage
from ppo_plus.zoo.tune.space import read_space
from ppo_plus.zoo.tune.study import Study
from ppo_plus.zoo.tune.task import Plan
from ppo_plus.zoo.tune.tuner import tune

__all__ = ["Plan", "Study", "open_storage", "read_space", "tune"]
