"""Small models that several test files share, and their weights."""

import torch as th
from envs import ACTIONS, OBSERVATIONS, RandomEnv, vec
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from ppo_plus import PPO_Plus


def make_model(cls=PPO_Plus, env=None, policy="MlpPolicy", **kwargs):
    """A model with rollouts of 16 transitions, two minibatches and two epochs, unless arguments say otherwise.

    :param env: the environments; ``None``: two with discrete actions
    :param kwargs: further arguments of ``cls``, or others in place of these
    """
    kwargs = {"n_steps": 8, "batch_size": 8, "n_epochs": 2, "seed": 0, "device": "cpu"} | kwargs
    return cls(policy, vec(ACTIONS["discrete"]) if env is None else env, **kwargs)


def make_normalized(cls=PPO_Plus, **kwargs):
    """A model in two environments that are normalized, with two minibatches and one epoch."""
    env = VecNormalize(vec(spaces.Discrete(3), n_envs=2, env_class=RandomEnv))
    return cls("MlpPolicy", env, **{"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 1} | kwargs)


def weights(model):
    """A copy of all weights of a model's policy, in one vector."""
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


def spoil(policy, what):
    """Make outputs of a policy not finite: by NaN in its actor, an infinite critic, or a ``log_std`` that overflows."""
    with th.no_grad():
        if what == "actor":
            policy.action_net.weight[0, 0] = th.nan
        elif what == "critic":
            policy.value_net.bias.fill_(th.inf)
        else:
            policy.log_std.fill_(100.0)


#: Arguments of policies with memory.
STRUCTURES = {
    "own": {},
    "shared": dict(shared_lstm=True, enable_critic_lstm=False),
    "none": dict(enable_critic_lstm=False),
    "two layers": dict(n_lstm_layers=2),
}
SMALL = dict(lstm_hidden_size=12, ortho_init=False)


def make_recurrent(
    kind="discrete", policy="MlpLstmPolicy", env=None, observation="box", memory=None, n_envs=2, cls=PPO_Plus, **kwargs
):
    """A model with memory, for an action space and an observation space by name."""
    env = env or vec(ACTIONS[kind], OBSERVATIONS[observation], n_envs)
    defaults = dict(n_steps=16, batch_size=16, n_epochs=2, sequence_length=8, seed=0, device="cpu", compile=False)
    return cls(policy, env, policy_kwargs=SMALL | (memory or {}), **defaults | kwargs)


class NoTraining(PPO_Plus):
    """Collects rollouts only."""

    def train(self):
        pass
