"""Custom networks of a policy take the place of SB3's layers, learn, and are saved."""

import copy
from functools import partial

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, vec
from gymnasium import spaces
from models import make_model
from parametrization import all_pairs
from torch import nn

from ppo_plus import MlpPolicy, PPO_Plus, register
from ppo_plus.policy.networks import split_network

make = partial(make_model, batch_size=4)


class Residual(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.hidden = nn.Linear(input_dim, input_dim)
        self.out = nn.Linear(input_dim, output_dim)

    def forward(self, features):
        return self.out(features + self.hidden(features).relu())


def sequential(input_dim, output_dim):
    return nn.Sequential(nn.Linear(input_dim, 7), nn.SiLU(), nn.LayerNorm(7), nn.Linear(7, output_dim))


NETWORKS = {
    "factory_sequential": (sequential, sequential),
    "factory_module": (Residual, Residual),
    "instance_sequential": (sequential(5, 3), sequential(5, 1)),
    "instance_module": (Residual(5, 3), Residual(5, 1)),
    "one_layer": (nn.Linear(5, 3), nn.Linear),
    "actor_only": (sequential, None),
    "critic_only": (None, Residual),
}


@pytest.mark.parametrize(("kind", "networks", "use_sde"), all_pairs(["box_3d", "discrete"], NETWORKS, [False, True]))
def test_custom_networks_learn_and_are_saved(kind, networks, use_sde, tmp_path):
    actor, critic = NETWORKS[networks]
    action_space = spaces.Box(-1.0, 1.0, (3,)) if kind == "box_3d" else ACTIONS["discrete"]
    model = make(env=vec(action_space), use_sde=use_sde, policy_kwargs={"actor": actor, "critic": critic})
    before = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
    model.learn(16)
    unchanged = [name for name, weight in model.policy.state_dict().items() if th.equal(weight, before[name])]
    # Gradients do not reach networks that were replaced, so there must be none; nor log_std if it has nothing to say.
    assert unchanged == []

    register(Residual, sequential)
    model.save(tmp_path / "model")
    loaded = PPO_Plus.load(tmp_path / "model", device="cpu")
    obs = model.get_env().reset()
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])


def test_a_module_is_copied_and_keeps_its_own_weights():
    actor = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    given = copy.deepcopy(actor.state_dict())
    model = make(policy_kwargs={"actor": actor})
    assert th.equal(model.policy.action_net.weight, given["2.weight"])
    model.learn(16)
    assert not th.equal(model.policy.action_net.weight, given["2.weight"])
    assert th.equal(actor[2].weight, given["2.weight"])


def test_a_custom_actor_decides_the_actions():
    class Always(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(th.tensor([0.0, 9.0, 0.0]))

        def forward(self, features):
            return self.logits.expand(len(features), 3)

    model = make(policy_kwargs={"actor": Always()})
    assert model.predict(model.get_env().reset(), deterministic=True)[0].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["actor", "critic"])
@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(4, 3),
        nn.Linear(5, 9),
        nn.Sequential(nn.Linear(5, 8), nn.Linear(7, 3)),
        nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 9)),
        lambda input_dim, output_dim: nn.Linear(input_dim, output_dim + 1),
        nn.Flatten(0),
        nn.LSTM(5, 3),
    ],
    ids=["input", "output", "between", "last", "factory", "batch_dimension", "tuple"],
)
def test_a_network_of_the_wrong_size_raises_an_error(name, network):
    with pytest.raises(ValueError, match=f"{name} "):
        make(policy_kwargs={name: network})


@pytest.mark.parametrize(
    "network", ["linear", 5, lambda *dims: None, nn.Sequential()], ids=["str", "int", "none", "empty"]
)
def test_a_wrong_type_of_network_raises_an_error(network):
    with pytest.raises((ValueError, TypeError), match="actor"):
        make(policy_kwargs={"actor": network})


def test_net_arch_with_custom_networks_raises_an_error():
    with pytest.raises(ValueError, match=r"net_arch=\[8\]"):
        make(policy_kwargs={"actor": sequential, "critic": sequential, "net_arch": [8]})


@pytest.mark.parametrize("networks", [name for name in NETWORKS if name != "one_layer"] + ["none"])
def test_a_policy_can_be_saved_and_loaded_by_itself(networks, tmp_path):
    actor, critic = NETWORKS.get(networks, (None, None))
    policy = make(policy_kwargs={"actor": actor, "critic": critic}).policy
    policy.save(tmp_path / "policy.pt")
    loaded = MlpPolicy.load(tmp_path / "policy.pt", device="cpu")
    obs = np.stack([VECTOR.sample() for _ in range(4)])
    np.testing.assert_array_equal(
        policy.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0]
    )


def test_a_network_is_split_before_its_last_layer():
    given = sequential(5, 3)
    hidden, last, size = split_network("actor", given, 5, 3, th.device("cpu"))
    assert (len(hidden), size) == (3, 7)
    features = th.randn(4, 5)
    assert th.equal(last(hidden(features)), given(features))
    hidden, last, size = split_network("critic", Residual, 5, 1, th.device("cpu"))
    assert (len(hidden), size) == (0, 5) and isinstance(last, Residual)


def test_a_network_stays_in_its_mode_and_one_row_is_enough():
    given = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    hidden, last, _ = split_network("actor", given, 5, 3, th.device("cpu"))
    assert hidden.training and last.training and hidden[1].num_batches_tracked == 0
