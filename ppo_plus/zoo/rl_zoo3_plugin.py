"""PPO_Plus in rl_zoo3's own scripts, with ``--algo ppo_plus``.

``python -m ppo_plus.zoo.rl_zoo3_plugin train --algo ppo_plus --env CartPole-v1`` registers the algorithm and runs
``python -m rl_zoo3.train --algo ppo_plus …``. In a script, call :func:`register` before rl_zoo3's functions. Nothing
else in this package imports rl_zoo3, as that changes Gymnasium's ``TimeLimit`` for the whole process.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ppo_plus import PPO_Plus
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.runs import ALGO

SCRIPTS = ("train", "enjoy")


class ZooPPO_Plus(PPO_Plus):
    """PPO_Plus as rl_zoo3's scripts use it."""

    @classmethod
    def load(cls, path: Any, *args: Any, custom_objects: dict[str, Any] | None = None, **kwargs: Any) -> PPO_Plus:  # type: ignore[override]
        """``PPO_Plus.load`` without ``custom_objects``, with which rl_zoo3's ``enjoy`` replaces schedules by zeros."""
        return super().load(path, *args, **kwargs)


def register() -> None:
    """Register PPO_Plus in rl_zoo3: the algorithm, its samplers for hyperparameter search, and its tuned settings.

    :raises ImportError: rl_zoo3 is not installed (``pip install rl_zoo3 requests``)
    """
    from rl_zoo3 import hyperparams_opt, train
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.utils import ALGOS

    class Manager(ExperimentManager):
        def __init__(self, args: Any, algo: str, *rest: Any, config: str | None = None, **kwargs: Any):
            if algo == ALGO:
                config = config or str(builtin_file())
            super().__init__(args, algo, *rest, config=config, **kwargs)

        def _preprocess_schedules(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
            # rl_zoo3 turns every string into a linear schedule; PPO_Plus reads "cos_3e-4" and the like itself.
            return hyperparams if self.algo == ALGO else super()._preprocess_schedules(hyperparams)

    ALGOS[ALGO] = ZooPPO_Plus
    hyperparams_opt.HYPERPARAMS_SAMPLER[ALGO] = hyperparams_opt.HYPERPARAMS_SAMPLER["ppo"]
    hyperparams_opt.HYPERPARAMS_CONVERTER[ALGO] = hyperparams_opt.HYPERPARAMS_CONVERTER["ppo"]
    train.ExperimentManager = Manager


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of rl_zoo3's scripts: its name and its arguments; ``None`` for those of the process."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name not in SCRIPTS:
        sys.exit(f"ppo_plus.zoo.rl_zoo3_plugin: the first argument must be {' or '.join(SCRIPTS)}, not {name!r}")
    register()
    sys.argv = [f"rl_zoo3 {name}", *rest]
    getattr(import_module(f"rl_zoo3.{name}"), name)()


if __name__ == "__main__":
    main()
