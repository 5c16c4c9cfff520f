"""PPO for Stable-Baselines3: every action space, every exploration, several ways to hold the KL, much faster."""

from importlib.metadata import PackageNotFoundError, version

from ppo_plus.buffers import Batch, RolloutBuffer
from ppo_plus.exploration import ColoredNoise, NoiseProcess, StateDependentNoise, WhiteNoise
from ppo_plus.kl_control import AdaptiveLearningRate, AdaptivePenalty, EarlyStop, KLControl, KLState
from ppo_plus.losses import Coefficients, Losses
from ppo_plus.memory import Carry
from ppo_plus.policies import ActorCriticPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from ppo_plus.ppo_plus import PPO_Plus
from ppo_plus.recurrent import (
    CnnGruPolicy,
    CnnLstmPolicy,
    GRUMemory,
    LSTMMemory,
    MlpGruPolicy,
    MlpLstmPolicy,
    MultiInputGruPolicy,
    MultiInputLstmPolicy,
)
from ppo_plus.schedules import constant, cosine, linear

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
    "PPO_Plus",
    "RolloutBuffer",
    "StateDependentNoise",
    "WhiteNoise",
    "constant",
    "cosine",
    "linear",
]
