"""Arguments of policies: invalid ones raise an error before a policy is built."""

import re
from functools import partial

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, RandomEnv
from stable_baselines3.common import policies as sb3
from torch import nn

from ppo_plus import MlpPolicy, PPO_Plus
from ppo_plus.policy.arguments import accepted_names
from ppo_plus.policy.recurrent import RECURRENT


def make(policy="MlpPolicy", **policy_kwargs):
    return PPO_Plus(policy, RandomEnv(ACTIONS["discrete"]), n_steps=8, batch_size=4, policy_kwargs=policy_kwargs)


@pytest.mark.parametrize(
    ("net_arch", "error", "message"),
    [
        ({"pi": [64], "qf": [64]}, ValueError, "names a network 'qf', but those of PPO are pi"),
        ([64, {"pi": [32], "vf": [16]}], TypeError, "net_arch[1]={'pi': [32], 'vf': [16]} must be an integer"),
        ([{"pi": [32], "qf": [64]}], ValueError, "names a network 'qf'"),
        ([-1], ValueError, "net_arch[0]=-1 must be at least 1"),
        ([64, 0], ValueError, "net_arch[1]=0 must be at least 1"),
        (["64"], TypeError, "net_arch[0]='64' must be an integer, at least 1, not text"),
        ([64.0], TypeError, "net_arch[0]=64.0 must be an integer"),
        ({"vf": [64, None]}, TypeError, "net_arch['vf'][1]=None must be an integer"),
        ({"pi": 64}, TypeError, "net_arch['pi']=64 must be a list of sizes"),
        (64.0, TypeError, "net_arch=64.0 must be a list of sizes, or dict(pi=[...], vf=[...])"),
        ("64", TypeError, "net_arch='64' must be a list of sizes"),
    ],
)
def test_impossible_hidden_layers_raise_an_error(net_arch, error, message):
    with pytest.raises(error, match=f"^policy_kwargs: .*{re.escape(message)}"):
        make(net_arch=net_arch)


@pytest.mark.parametrize(
    ("net_arch", "hidden"),
    [
        ([], (0, 0)),
        ((8, 8), (2, 2)),
        ([np.int64(8)], (1, 1)),
        ({"pi": [8, 8]}, (2, 0)),
        ({"vf": (8,)}, (0, 1)),
        ([{"pi": [8], "vf": [8, 8]}], (1, 2)),
    ],
)
def test_other_hidden_layers_are_built(net_arch, hidden):
    networks = make(net_arch=net_arch).policy.mlp_extractor
    assert (len(networks.policy_net) / 2, len(networks.value_net) / 2) == hidden


@pytest.mark.parametrize("activation_fn", ["relu", nn.ELU(), th.tanh, nn.functional.leaky_relu, None])
def test_an_activation_must_be_a_class(activation_fn):
    with pytest.raises(
        TypeError, match=rf"policy_kwargs: activation_fn={re.escape(repr(activation_fn))}.*such as torch.nn.ReLU$"
    ):
        make(activation_fn=activation_fn)


@pytest.mark.parametrize("activation_fn", [nn.ReLU, partial(nn.LeakyReLU, 0.1), lambda: nn.ELU()])
def test_any_factory_of_activations_is_accepted(activation_fn):
    assert isinstance(make(activation_fn=activation_fn).policy.mlp_extractor.policy_net[1], nn.Module)


@pytest.mark.parametrize("optimizer_class", ["adam", 5])
def test_an_optimizer_must_be_a_class(optimizer_class):
    with pytest.raises(
        TypeError, match=f"policy_kwargs: optimizer_class={optimizer_class!r}.*such as torch.optim.Adam$"
    ):
        make(optimizer_class=optimizer_class)


@pytest.mark.parametrize(
    ("policy", "name", "advice"),
    [
        ("MlpPolicy", "net_archi", "did you mean net_arch?"),
        ("MlpPolicy", "activation", "did you mean activation_fn?"),
        ("MlpPolicy", "xyzzy", "it takes action_mask_key, activation_fn, actor, "),
        ("MlpPolicy", "lstm_hidden_size", "it takes "),
        ("MlpLstmPolicy", "lstm_hidden", "did you mean lstm_hidden_size?"),
    ],
)
def test_an_unknown_argument_raises_with_the_nearest_name(policy, name, advice):
    with pytest.raises(TypeError, match=rf"policy_kwargs: {name}=8 is not an argument of \w+: {re.escape(advice)}"):
        make(policy, **{name: 8})


@pytest.mark.parametrize("name", ["use_sde", "lr_schedule"])
def test_arguments_that_ppo_plus_passes_raise_an_error(name):
    with pytest.raises(TypeError, match=f"policy_kwargs: {name}=True is passed to the policy by PPO_Plus"):
        make(**{name: True})


class TakesItsOwn(sb3.ActorCriticPolicy):
    def __init__(self, *args, **kwargs):
        self.scale = kwargs.pop("scale")
        super().__init__(*args, **kwargs)


class NamesItsOwn(MlpPolicy):
    def __init__(self, *args, scale, **kwargs):
        super().__init__(*args, **kwargs)
        self.scale = scale


class NamesAll(MlpPolicy):
    def __init__(self, observation_space, action_space, lr_schedule, scale, use_sde=False):
        super().__init__(observation_space, action_space, lr_schedule)
        self.scale = scale


@pytest.mark.parametrize("policy", [TakesItsOwn, NamesItsOwn, NamesAll])
def test_a_custom_policy_may_have_further_arguments(policy):
    assert make(policy, scale=3).policy.scale == 3


def test_a_policy_with_named_arguments_takes_no_others():
    assert accepted_names(NamesItsOwn) is None
    with pytest.raises(TypeError, match=r"scales=3 is not an argument of NamesAll: did you mean scale\?"):
        make(NamesAll, scales=3)


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "CnnGruPolicy"])
def test_the_arguments_of_all_base_classes_are_known(policy):
    known = {"lstm_hidden_size", "actor", "net_arch", "optimizer_kwargs", "share_features_extractor"}
    assert known < accepted_names(RECURRENT[policy])
