"""Arguments that are read from source."""

import inspect

import pytest
import stable_baselines3
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus
from ppo_plus.zoo.signatures import (
    OF_THE_RUN,
    SB3_ALGORITHMS,
    ppo_plus_arguments,
    sb3_algorithms_with,
    vec_normalize_arguments,
)


def arguments_of(cls):
    return set(inspect.signature(cls).parameters)


def test_they_are_those_of_the_classes():
    assert ppo_plus_arguments() == arguments_of(PPO_Plus) - OF_THE_RUN
    assert vec_normalize_arguments() == arguments_of(VecNormalize) - {"venv"}


@pytest.mark.parametrize("argument", ["gamma", "train_freq", "use_rms_prop", "tau", "seed", "nope", 5])
def test_sb3s_algorithms(argument):
    having = [name for name in SB3_ALGORITHMS if argument in arguments_of(getattr(stable_baselines3, name))]
    assert sb3_algorithms_with(argument) == ([] if argument in OF_THE_RUN else having)
