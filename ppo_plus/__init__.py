"""PPO for Stable-Baselines3: every action space, every exploration, several KL controls, much faster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ppo_plus.public import MODULES, version_of

if TYPE_CHECKING:
    from ppo_plus.compiling.compiled import CompileError as CompileError
    from ppo_plus.distributed.ranks import RanksError as RanksError
    from ppo_plus.envs.make_vec import as_vec_env as as_vec_env
    from ppo_plus.envs.make_vec import make_vec as make_vec
    from ppo_plus.envs.normalization import VecNormalizeTransitions as VecNormalizeTransitions
    from ppo_plus.envs.resumable.state import Resumable as Resumable
    from ppo_plus.envs.supervised.vec_env import EnvFault as EnvFault
    from ppo_plus.envs.supervised.vec_env import SupervisedVecEnv as SupervisedVecEnv
    from ppo_plus.envs.tensors.env import TensorEnv as TensorEnv
    from ppo_plus.envs.tensors.env import Transition as Transition
    from ppo_plus.formulas.exploration import ColoredNoise as ColoredNoise
    from ppo_plus.formulas.exploration import NoiseProcess as NoiseProcess
    from ppo_plus.formulas.exploration import StateDependentNoise as StateDependentNoise
    from ppo_plus.formulas.exploration import WhiteNoise as WhiteNoise
    from ppo_plus.formulas.kl_control import AdaptiveLearningRate as AdaptiveLearningRate
    from ppo_plus.formulas.kl_control import AdaptivePenalty as AdaptivePenalty
    from ppo_plus.formulas.kl_control import EarlyStop as EarlyStop
    from ppo_plus.formulas.kl_control import KLControl as KLControl
    from ppo_plus.formulas.kl_control import KLState as KLState
    from ppo_plus.formulas.losses import Coefficients as Coefficients
    from ppo_plus.formulas.losses import Losses as Losses
    from ppo_plus.formulas.losses import PPOLoss as PPOLoss
    from ppo_plus.formulas.schedules import constant as constant
    from ppo_plus.formulas.schedules import cosine as cosine
    from ppo_plus.formulas.schedules import linear as linear
    from ppo_plus.policy.memory import WithMemory as WithMemory
    from ppo_plus.policy.policies import ActorCriticPolicy as ActorCriticPolicy
    from ppo_plus.policy.policies import Carry as Carry
    from ppo_plus.policy.policies import CnnPolicy as CnnPolicy
    from ppo_plus.policy.policies import Features as Features
    from ppo_plus.policy.policies import Heads as Heads
    from ppo_plus.policy.policies import MlpPolicy as MlpPolicy
    from ppo_plus.policy.policies import MultiInputPolicy as MultiInputPolicy
    from ppo_plus.policy.recurrent import CnnGruPolicy as CnnGruPolicy
    from ppo_plus.policy.recurrent import CnnLstmPolicy as CnnLstmPolicy
    from ppo_plus.policy.recurrent import GRUMemory as GRUMemory
    from ppo_plus.policy.recurrent import LSTMMemory as LSTMMemory
    from ppo_plus.policy.recurrent import MlpGruPolicy as MlpGruPolicy
    from ppo_plus.policy.recurrent import MlpLstmPolicy as MlpLstmPolicy
    from ppo_plus.policy.recurrent import MultiInputGruPolicy as MultiInputGruPolicy
    from ppo_plus.policy.recurrent import MultiInputLstmPolicy as MultiInputLstmPolicy
    from ppo_plus.ppo import PPO_Plus as PPO_Plus
    from ppo_plus.rollout.buffer import RolloutBuffer as RolloutBuffer
    from ppo_plus.saving.checkpoint.checkpoint import Checkpoints as Checkpoints
    from ppo_plus.saving.format.names import Refused as Refused
    from ppo_plus.saving.format.names import register as register
    from ppo_plus.saving.statistics import load_statistics as load_statistics
    from ppo_plus.update.minibatch import Batch as Batch
    from ppo_plus.zoo.callbacks import EvalAfterUpdates as EvalAfterUpdates

__all__ = list(MODULES)

__version__: str


def __getattr__(name: str) -> Any:
    """Import what is used for the first time: a public name, or the version."""
    if name in MODULES:
        value = getattr(import_module(MODULES[name]), name)
    elif name == "__version__":
        value = version_of("ppo_plus")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
