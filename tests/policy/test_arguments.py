"""Arguments of policies: invalid ones raise an error before a policy is built; custom networks take the place of SB3's
layers, learn, and are saved."""

import copy
from functools import partial

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, VECTOR, RandomEnv, vec
from gymnasium import spaces
from models import make_model
from stable_baselines3.common import policies as sb3
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from ppo_plus import MlpPolicy, PPO_Plus, StateDependentNoise, register
from ppo_plus.policy.arguments import frozen, split_network


def make(policy="MlpPolicy", **policy_kwargs):
    return PPO_Plus(policy, RandomEnv(ACTIONS["discrete"]), n_steps=8, batch_size=4, policy_kwargs=policy_kwargs)


def test_networks_that_ppo_does_not_have_raise_an_error():
    with pytest.raises(ValueError, match="^policy_kwargs: net_arch=.* names a network 'qf', but those of PPO are pi"):
        make(net_arch={"pi": [64], "qf": [64]})


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


def test_a_network_that_takes_other_features_is_named():
    with pytest.raises(
        ValueError, match=r"critic=Linear.* must map features of shape \(1, \d+\) to \(1, 1\), but raises"
    ):
        make(critic=nn.Linear(64, 1))


@pytest.mark.parametrize("given", [{"actor": nn.Tanh()}, {"actor": nn.Tanh(), "critic": nn.Tanh()}])
def test_layers_that_a_network_replaces_are_named(given):
    with pytest.raises(ValueError, match="net_arch=.* names a network 'pi', which actor= replaces: leave out one"):
        make(net_arch={"pi": [8], "vf": [8]}, **given)


def test_options_of_gsde_beside_an_exploration_raise_an_error():
    with pytest.raises(
        ValueError, match="full_std=False and use_expln=False have no effect beside exploration=StateDependent"
    ):
        make_model(exploration=StateDependentNoise(), policy_kwargs={"full_std": False})


@pytest.mark.parametrize(
    ("policy", "name", "message"),
    [
        ("MlpPolicy", "net_archi", r"^ActorCriticPolicy.__init__\(\) got an unexpected keyword argument 'net_archi'"),
        ("MlpLstmPolicy", "attention_window", "unexpected keyword argument 'attention_window'"),
        ("MlpPolicy", "lr_schedule", "multiple values for argument 'lr_schedule'"),
        ("MlpPolicy", "use_sde", r"policy_kwargs: use_sde is an argument of PPO_Plus: pass PPO_Plus\(..., use_sde=8\)"),
        ("MlpPolicy", "streams", "policy_kwargs: streams is an argument of PPO_Plus"),
    ],
)
def test_arguments_that_policies_do_not_take_are_named(policy, name, message):
    with pytest.raises(TypeError, match=message):
        make(policy, **{name: 8})


def test_an_activation_is_a_class():
    with pytest.raises(TypeError, match=r"activation_fn=ReLU\(\) must be a class, such as torch.nn.ReLU"):
        make(activation_fn=nn.ReLU())


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
    with pytest.raises(TypeError, match=r"NamesAll.__init__\(\) got an unexpected keyword argument 'scales'"):
        make(NamesAll, scales=3)


# --- custom networks --------------------------------------------------------------------------------------------------

build = partial(make_model, batch_size=4)


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
    "instance_module": (Residual(5, 3), Residual(5, 1)),
    "one_layer": (nn.Linear(5, 3), nn.Linear),
    "actor_only": (sequential, None),
    "critic_only": (None, Residual),
}


@pytest.mark.parametrize(
    ("kind", "networks", "use_sde"),
    [
        ("box_3d", "factory_sequential", True),
        ("discrete", "factory_module", False),
        ("box_3d", "instance_module", True),
        ("discrete", "one_layer", True),
        ("box_3d", "actor_only", False),
        ("discrete", "critic_only", False),
    ],
)
def test_custom_networks_learn_and_are_saved(kind, networks, use_sde, tmp_path):
    actor, critic = NETWORKS[networks]
    action_space = spaces.Box(-1.0, 1.0, (3,)) if kind == "box_3d" else ACTIONS["discrete"]
    model = build(env=vec(action_space), use_sde=use_sde, policy_kwargs={"actor": actor, "critic": critic})
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
    model = build(policy_kwargs={"actor": actor})
    assert th.equal(model.policy.action_net.weight, given["2.weight"])
    model.learn(16)
    assert not th.equal(model.policy.action_net.weight, given["2.weight"])
    assert th.equal(actor[2].weight, given["2.weight"])


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 9)),
        lambda input_dim, output_dim: nn.Linear(input_dim, output_dim + 1),
        nn.Flatten(0),
    ],
    ids=["output", "factory", "batch_dimension"],
)
def test_a_network_of_the_wrong_size_raises_an_error(network):
    for name in ("actor", "critic"):
        message = rf"(?s)policy_kwargs: {name}=.* must map features of shape \(1, 5\) to \(1, "
        with pytest.raises(ValueError, match=message):
            build(policy_kwargs={name: network})


@pytest.mark.parametrize(
    "network", ["linear", 5, lambda *dims: None, nn.Sequential()], ids=["str", "int", "none", "empty"]
)
def test_a_wrong_type_of_network_raises_an_error(network):
    with pytest.raises((ValueError, TypeError), match="actor"):
        build(policy_kwargs={"actor": network})


@pytest.mark.parametrize("networks", ["factory_sequential", "actor_only"])
def test_a_policy_can_be_saved_and_loaded_by_itself(networks, tmp_path):
    actor, critic = NETWORKS[networks]
    policy = build(policy_kwargs={"actor": actor, "critic": critic}).policy
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

    class Added(nn.Sequential):
        def forward(self, x):
            return 100 + super().forward(x)

    added = Added(*given)
    hidden, last, _ = split_network("actor", added, 5, 3, th.device("cpu"))
    assert th.equal(last(hidden(features)), added(features))


def test_a_network_stays_in_its_mode_and_one_row_is_enough():
    given = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    hidden, last, _ = split_network("actor", given, 5, 3, th.device("cpu"))
    assert hidden.training and last.training and hidden[1].num_batches_tracked == 0


class Attentive(BaseFeaturesExtractor):
    """Keeps the weights of its last call, as for pictures."""

    def __init__(self, space):
        super().__init__(space, 4)
        self.layer = nn.Linear(space.shape[0], 4)

    def forward(self, observations):
        self.weights = self.layer(observations).softmax(1)
        return self.weights


def test_what_a_module_keeps_of_its_last_call_is_copied():
    model = make_model(policy_kwargs={"features_extractor_class": Attentive})
    model.learn(16)
    kept = model.policy.features_extractor.weights
    copied = frozen(model.policy)
    assert not kept.is_leaf and th.equal(copied.features_extractor.weights, kept)
    obs = model.env.reset()
    assert copied.optimizer is None and not any(weight.requires_grad for weight in copied.parameters())
    assert (copied.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]).all()
