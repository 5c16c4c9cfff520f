"""Small models that several test files share, and their weights."""

import torch as th
from envs import ACTIONS, vec

from ppo_plus import PPO_Plus


def make_model(cls=PPO_Plus, env=None, policy="MlpPolicy", **kwargs):
    """A model with rollouts of 16 transitions, two minibatches and two epochs, unless arguments say otherwise.

    :param env: the environments; ``None``: two with discrete actions
    :param kwargs: further arguments of ``cls``, or others in place of these
    """
    kwargs = {"n_steps": 8, "batch_size": 8, "n_epochs": 2, "seed": 0, "device": "cpu"} | kwargs
    return cls(policy, vec(ACTIONS["discrete"]) if env is None else env, **kwargs)


def weights(model):
    """A copy of all weights of a model's policy, in one vector."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()
