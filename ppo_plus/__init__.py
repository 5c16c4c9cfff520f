"""PPO for Stable-Baselines3: every action space, every exploration, several ways to hold the KL, much faster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppo_plus.buffers import Batch as Batch
    from ppo_plus.buffers import RolloutBuffer as RolloutBuffer
    from ppo_plus.exploration import ColoredNoise as ColoredNoise
    from ppo_plus.exploration import NoiseProcess as NoiseProcess
    from ppo_plus.exploration import StateDependentNoise as StateDependentNoise
    from ppo_plus.exploration import WhiteNoise as WhiteNoise
    from ppo_plus.fused import CompileError as CompileError
    from ppo_plus.kl_control import AdaptiveLearningRate as AdaptiveLearningRate
    from ppo_plus.kl_control import AdaptivePenalty as AdaptivePenalty
    from ppo_plus.kl_control import EarlyStop as EarlyStop
    from ppo_plus.kl_control import KLControl as KLControl
    from ppo_plus.kl_control import KLState as KLState
    from ppo_plus.losses import Coefficients as Coefficients
    from ppo_plus.losses import Losses as Losses
    from ppo_plus.memory import Carry as Carry
    from ppo_plus.policies import ActorCriticPolicy as ActorCriticPolicy
    from ppo_plus.policies import CnnPolicy as CnnPolicy
    from ppo_plus.policies import MlpPolicy as MlpPolicy
    from ppo_plus.policies import MultiInputPolicy as MultiInputPolicy
    from ppo_plus.ppo_plus import PPO_Plus as PPO_Plus
    from ppo_plus.recurrent import CnnGruPolicy as CnnGruPolicy
    from ppo_plus.recurrent import CnnLstmPolicy as CnnLstmPolicy
    from ppo_plus.recurrent import GRUMemory as GRUMemory
    from ppo_plus.recurrent import LSTMMemory as LSTMMemory
    from ppo_plus.recurrent import MlpGruPolicy as MlpGruPolicy
    from ppo_plus.recurrent import MlpLstmPolicy as MlpLstmPolicy
    from ppo_plus.recurrent import MultiInputGruPolicy as MultiInputGruPolicy
    from ppo_plus.recurrent import MultiInputLstmPolicy as MultiInputLstmPolicy
    from ppo_plus.schedules import constant as constant
    from ppo_plus.schedules import cosine as cosine
    from ppo_plus.schedules import linear as linear

#: The module of each public name. It is imported when the name is first used: torch takes seconds to load, and
#: `ppo-plus --help` does without it. Type checkers read the imports above; a test holds that both say the same.
MODULES = {
    "ActorCriticPolicy": "ppo_plus.policies",
    "AdaptiveLearningRate": "ppo_plus.kl_control",
    "AdaptivePenalty": "ppo_plus.kl_control",
    "Batch": "ppo_plus.buffers",
    "Carry": "ppo_plus.memory",
    "CnnGruPolicy": "ppo_plus.recurrent",
    "CnnLstmPolicy": "ppo_plus.recurrent",
    "CnnPolicy": "ppo_plus.policies",
    "Coefficients": "ppo_plus.losses",
    "ColoredNoise": "ppo_plus.exploration",
    "CompileError": "ppo_plus.fused",
    "EarlyStop": "ppo_plus.kl_control",
    "GRUMemory": "ppo_plus.recurrent",
    "KLControl": "ppo_plus.kl_control",
    "KLState": "ppo_plus.kl_control",
    "LSTMMemory": "ppo_plus.recurrent",
    "Losses": "ppo_plus.losses",
    "MlpGruPolicy": "ppo_plus.recurrent",
    "MlpLstmPolicy": "ppo_plus.recurrent",
    "MlpPolicy": "ppo_plus.policies",
    "MultiInputGruPolicy": "ppo_plus.recurrent",
    "MultiInputLstmPolicy": "ppo_plus.recurrent",
    "MultiInputPolicy": "ppo_plus.policies",
    "NoiseProcess": "ppo_plus.exploration",
    "PPO_Plus": "ppo_plus.ppo_plus",
    "RolloutBuffer": "ppo_plus.buffers",
    "StateDependentNoise": "ppo_plus.exploration",
    "WhiteNoise": "ppo_plus.exploration",
    "constant": "ppo_plus.schedules",
    "cosine": "ppo_plus.schedules",
    "linear": "ppo_plus.schedules",
}
__all__ = list(MODULES)
__version__: str


def __getattr__(name: str) -> Any:
    """Import what is used for the first time: a public name, a module that holds one, or the version."""
    if name in MODULES:
        value = getattr(import_module(MODULES[name]), name)
    elif f"{__name__}.{name}" in MODULES.values():
        value = import_module(f"{__name__}.{name}")
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ppo_plus")
    except PackageNotFoundError:  # imported from a checkout that is not installed
        return "unknown"
