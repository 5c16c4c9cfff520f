"""PPO for Stable-Baselines3: every action space, every exploration, several ways to hold the KL, much faster."""

from importlib.metadata import PackageNotFoundError, version

from ppo_plus.formulas.exploration import ColoredNoise, NoiseProcess, StateDependentNoise, WhiteNoise
from ppo_plus.formulas.kl_control import AdaptiveLearningRate, AdaptivePenalty, EarlyStop, KLControl, KLState
from ppo_plus.formulas.losses import Coefficients, Losses, PPOLoss
from ppo_plus.formulas.schedules import constant, cosine, linear
from ppo_plus.moved import install
from ppo_plus.policy.carry import Carry, Features
from ppo_plus.policy.policies import ActorCriticPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from ppo_plus.policy.recurrent import (
    CnnGruPolicy,
    CnnLstmPolicy,
    GRUMemory,
    LSTMMemory,
    MlpGruPolicy,
    MlpLstmPolicy,
    MultiInputGruPolicy,
    MultiInputLstmPolicy,
)
from ppo_plus.ppo_plus import PPO_Plus
from ppo_plus.rollout.buffer import RolloutBuffer
from ppo_plus.update.batch import Batch

install()

try:
    __version__ = version("ppo_plus")
except PackageNotFoundError:  # imported from a checkout that is not installed
    __version__ = "unknown"

__all__ = [
    "ActorCriticPolicy",
    "AdaptiveLearningRate",
    "AdaptivePenalty",
    "Batch",
    "Carry",
    "CnnGruPolicy",
    "CnnLstmPolicy",
    "CnnPolicy",
    "Coefficients",
    "ColoredNoise",
    "EarlyStop",
    "Features",
    "GRUMemory",
    "KLControl",
    "KLState",
    "LSTMMemory",
    "Losses",
    "MlpGruPolicy",
    "MlpLstmPolicy",
    "MlpPolicy",
    "MultiInputGruPolicy",
    "MultiInputLstmPolicy",
    "MultiInputPolicy",
    "NoiseProcess",
    "PPOLoss",
    "PPO_Plus",
    "RolloutBuffer",
    "StateDependentNoise",
    "WhiteNoise",
    "constant",
    "cosine",
    "linear",
]
