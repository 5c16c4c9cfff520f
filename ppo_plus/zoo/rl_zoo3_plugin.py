"""PPO_Plus as an algorithm of rl_zoo3: rl_zoo3's own scripts, with ``--algo ppo_plus``.

``python -m ppo_plus.zoo.rl_zoo3_plugin train --algo ppo_plus --env CartPole-v1`` is
``python -m rl_zoo3.train --algo ppo_plus …`` in a Python where rl_zoo3 knows the algorithm. rl_zoo3 must be installed.
Importing it changes Gymnasium's ``TimeLimit`` for the whole process, so nothing else of this package imports it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from ppo_plus import PPO_Plus
from ppo_plus.zoo.hyperparams import builtin_file
from ppo_plus.zoo.runs import ALGO

SCRIPTS = ("train", "enjoy")


class ZooPPO_Plus(PPO_Plus):
    """PPO_Plus as rl_zoo3's scripts use it."""

    @classmethod
    def load(cls, path: Any, *args: Any, custom_objects: dict[str, Any] | None = None, **kwargs: Any) -> PPO_Plus:  # type: ignore[override]
        """As ``PPO_Plus.load``. ``custom_objects`` are ignored: rl_zoo3's ``enjoy`` puts schedules of zeros in place of
        the model's, which PPO_Plus refuses, to load models that older Pythons saved."""
        return super().load(path, *args, **kwargs)


def register() -> None:
    """Make PPO_Plus known to rl_zoo3: the algorithm, what is sampled for it in a hyperparameter search, and its file of
    tuned hyperparameters.

    :raises ImportError: rl_zoo3 is not installed
    """
    from rl_zoo3 import hyperparams_opt, train
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.utils import ALGOS

    class Manager(ExperimentManager):
        """rl_zoo3's manager, with this package's file of hyperparameters and schedules."""

        def __init__(self, args: Any, algo: str, *rest: Any, config: str | None = None, **kwargs: Any):
            if algo == ALGO:
                config = config or str(builtin_file())
            super().__init__(args, algo, *rest, config=config, **kwargs)

        def _preprocess_schedules(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
            # rl_zoo3 makes a linear schedule of every string; PPO_Plus reads "cos_3e-4" and the like itself.
            return hyperparams if self.algo == ALGO else super()._preprocess_schedules(hyperparams)

    ALGOS[ALGO] = ZooPPO_Plus
    hyperparams_opt.HYPERPARAMS_SAMPLER[ALGO] = hyperparams_opt.HYPERPARAMS_SAMPLER["ppo"]
    hyperparams_opt.HYPERPARAMS_CONVERTER[ALGO] = hyperparams_opt.HYPERPARAMS_CONVERTER["ppo"]
    train.ExperimentManager = Manager


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of rl_zoo3's scripts.

    :param arguments: its name and its arguments; ``None`` for those of the process
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else ""
    if name not in SCRIPTS:
        _fail(f"the first argument must be one of {', '.join(SCRIPTS)}, not {name!r}")
    try:
        register()
    except ImportError as error:
        _fail(f"rl_zoo3 cannot be imported ({error}): pip install rl_zoo3 requests")
    sys.argv = [f"rl_zoo3 {name}", *given[1:]]
    getattr(import_module(f"rl_zoo3.{name}"), name)()


def _fail(message: str) -> NoReturn:
    print(f"ppo_plus.zoo.rl_zoo3_plugin: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
