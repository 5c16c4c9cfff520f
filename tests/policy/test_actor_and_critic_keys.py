"""Actor and critic that see different entries of the observations."""

import copy

import numpy as np
import pytest
import torch as th
from envs import ACTIONS, OBSERVATIONS, VECTOR, KeyMaskedEnv, equal_actions, vec
from gymnasium import spaces
from models import SMALL
from parametrization import in_turn
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from ppo_plus import PPO_Plus
from ppo_plus.policy.observations import visible_spaces

# Pairs, since Gymnasium would sort the keys of a dict.
SPACE = spaces.Dict(
    [("policy", VECTOR), ("critic", spaces.Box(-1.0, 1.0, (3,))), ("both", spaces.Box(-1.0, 1.0, (2,)))]
)
ACTORS, CRITICS = ["policy", "both"], ["critic", "both"]
KEYS = dict(actor_keys=ACTORS, critic_keys=CRITICS)
POLICIES = [f"MultiInput{memory}Policy" for memory in ("", "Lstm", "Gru", "Lru", "Attention")]


def make(kind="box", policy="MultiInputPolicy", env=None, keys=KEYS, **kwargs):
    policy_kwargs = dict(ortho_init=False) | keys
    if policy in POLICIES[1:]:
        policy_kwargs |= SMALL
    policy_kwargs |= kwargs.pop("policy_kwargs", {})
    defaults = dict(n_steps=16, batch_size=16, n_epochs=2, seed=0, device="cpu", compile=False)
    return PPO_Plus(policy, env or vec(ACTIONS[kind], SPACE), policy_kwargs=policy_kwargs, **defaults | kwargs)


def observations(n=4, seed=0):
    rng = np.random.default_rng(seed)
    return {key: rng.normal(size=(n, *space.shape)).astype(np.float32) for key, space in SPACE.items()}


def tensors(obs):
    return {key: th.from_numpy(array).requires_grad_() for key, array in obs.items()}


def only(obs, keys=ACTORS):
    return {key: obs[key] for key in keys}


# --- what they see -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor_keys", "critic_keys", "actor", "critic"),
    [
        (None, None, ["policy", "critic", "both"], ["policy", "critic", "both"]),
        (["both", "policy"], None, ["policy", "both"], ["policy", "critic", "both"]),
        (("policy",), ["critic"], ["policy"], ["critic"]),
        (["both"], ["both"], ["both"], ["both"]),
    ],
)
def test_each_sees_what_is_named_in_the_order_of_the_space(actor_keys, critic_keys, actor, critic):
    seen = visible_spaces(SPACE, actor_keys, critic_keys)
    assert [[*space] for space in seen] == [actor, critic]
    assert (seen[0] is seen[1]) == (actor == critic)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (dict(critic_keys=["critic"]), ValueError, r"critic_keys=\['critic'\] needs actor_keys.*actor_keys="),
        (
            KEYS | dict(critic_keys=["x"]),
            ValueError,
            r"critic_keys=.* names 'x', .*: use some of \['policy', 'critic', ",
        ),
        (dict(actor_keys=[]), TypeError, r"actor_keys=\[\] must be a list of names, such as \['policy'\]"),
        (dict(actor_keys="policy"), TypeError, r"actor_keys='policy' must be a list of names, such as \['policy'\]"),
    ],
)
def test_invalid_keys_raise_an_error(keys, error, message):
    with pytest.raises(error, match=message):
        make(keys=keys)


def test_observations_must_be_a_dict_and_a_mask_is_no_feature():
    with pytest.raises(ValueError, match=r"actor_keys=\['a'\] names entries of Dict observations, but these are Box"):
        make(policy="MlpPolicy", env=vec(ACTIONS["box"]), keys=dict(actor_keys=["a"]))
    env = vec(ACTIONS["discrete"], OBSERVATIONS["dict"], env_class=KeyMaskedEnv)
    with pytest.raises(ValueError, match=r"actor_keys=\['mask'\] names 'mask', which is not an entry"):
        make(env=env, keys=dict(actor_keys=["mask"]), action_mask_key="mask")


# --- nothing else is different -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_naming_everything_changes_no_bit(policy):
    models = [make(policy=policy, keys=keys).learn(64) for keys in ({}, dict(actor_keys=list(SPACE)))]
    one, other = (model.policy.state_dict() for model in models)
    assert list(one) == list(other) and all(th.equal(one[name], other[name]) for name in one)
    assert models[1].policy.share_features_extractor


def test_both_may_see_the_same_part_through_one_extractor():
    model = make(keys=dict(actor_keys=["policy"], critic_keys=["policy"])).learn(32)
    assert model.policy.share_features_extractor and model.policy.features_dim == 5
    obs = observations()
    assert equal_actions(
        model.predict(obs, deterministic=True)[0], model.predict(only(obs, ["policy"]), deterministic=True)[0]
    )
    alone = tensors(only(obs, ["policy"]))
    assert th.equal(model.policy.predict_values(alone), model.policy.predict_values(tensors(obs)))


# --- who depends on what -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "kind"), in_turn(POLICIES, ["box", "mixed"]))
def test_actor_and_critic_depend_only_on_their_entries(kind, policy):
    model = make(kind, policy, use_sde=True).learn(32)
    obs, other = observations(), observations(seed=1)
    outcomes = []
    for seen in (obs, obs | only(other, ["critic"]), obs | only(other, ["policy"])):
        given = tensors(seen)
        values, params = model.policy.evaluate(given)
        weights = [weight for weight in model.policy.parameters() if weight.requires_grad]
        gradients = [
            th.autograd.grad(part.square().sum(), [*weights, *given.values()], retain_graph=True, allow_unused=True)
            for part in (values, params)
        ]
        outcomes.append((values, params, *gradients))
    (values, params, of_values, of_params), critics_changed, actors_changed = outcomes
    # Exactly: the same numbers, the same gradients, and none with respect to what is not seen.
    assert th.equal(params, critics_changed[1]) and same(of_params[:-3], critics_changed[3][:-3])
    assert th.equal(values, actors_changed[0]) and same(of_values[:-3], actors_changed[2][:-3])
    assert not th.equal(values, critics_changed[0]) and not th.equal(params, actors_changed[1])
    seen_by = {name: [g is not None for g in found[-3:]] for name, found in (("a", of_params), ("c", of_values))}
    assert seen_by == {"a": [True, False, True], "c": [False, True, True]}
    # And no weight belongs to both.
    assert not any(a is not None and c is not None for a, c in zip(of_params[:-3], of_values[:-3], strict=True))


def same(some, others):
    return all(a is b is None or th.equal(a, b) for a, b in zip(some, others, strict=True))


def test_images_and_choices_may_be_seen_by_one_only():
    keys = dict(actor_keys=["image", "choice"], critic_keys=["vector", "choices", "choice"])
    model = make(env=vec(ACTIONS["discrete"], OBSERVATIONS["dict"]), keys=keys).learn(32)
    extractors = model.policy.pi_features_extractor, model.policy.vf_features_extractor
    assert [list(each.extractors) for each in extractors] == [["choice", "image"], ["choice", "choices", "vector"]]
    assert model.policy.features_dim == 4 + 256 and model.policy.vf_features_dim == 4 + 10 + 5


class Entries(BaseFeaturesExtractor):
    """Takes its entries, and raises for others."""

    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=6)
        self.names = list(observation_space)
        self.layer = nn.Linear(sum(get_flattened_obs_dim(space) for space in observation_space.values()), 6)

    def forward(self, observations):
        assert list(observations) == self.names
        return self.layer(th.cat(list(observations.values()), dim=1))


@pytest.mark.parametrize(
    "networks",
    [
        dict(features_extractor_class=Entries),
        dict(net_arch=[]),
        dict(net_arch=dict(pi=[8], vf=[4, 4]), activation_fn=nn.ReLU),
        dict(actor=lambda n_in, n_out: nn.Linear(n_in, n_out), critic=nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1))),
        dict(share_features_extractor=False, autocast=True),
    ],
)
def test_networks_of_every_kind_take_what_each_sees(networks):
    model = make(policy_kwargs=networks | dict(ortho_init=True)).learn(32)
    assert not model.policy.share_features_extractor
    model.predict(only(observations()))
    for extractor in (model.policy.pi_features_extractor, model.policy.vf_features_extractor):
        if isinstance(extractor, Entries):
            assert model.policy.extract_features(tensors(observations()), extractor).shape == (4, 6)


# --- playing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "kind"), in_turn(POLICIES, ["box", "discrete", "mixed"]))
def test_predict_needs_what_the_actor_sees(kind, policy):
    model = make(kind, policy, use_sde=True).learn(32)
    outcomes = []
    for keys in (list(SPACE), ACTORS):
        th.manual_seed(5)
        model.policy.reset_noise(4)
        state, actions = None, []
        for step in range(3):
            starts = np.array([step == 0, False, step == 1, False])
            played, state = model.predict(only(observations(seed=step), keys), state, starts, deterministic=step == 2)
            actions += [*played]
        outcomes.append((actions, state))
    assert equal_actions(*outcomes)
    single = {key: array[0] for key, array in only(observations()).items()}
    assert model.predict(single)[0] in model.action_space


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_without_the_critics_entries_there_are_only_actions(policy):
    policy = make(policy=policy).policy
    obs = tensors(observations())
    lacking = only(obs)
    with pytest.raises(ValueError, match=r"observations of \['policy', 'both'\] have no value, since the critic sees"):
        policy.predict_values(lacking)
    actions, values, log_probs = policy(lacking, deterministic=True)
    assert values.isnan().all() and values.shape == (4, 1)
    assert th.equal(actions, policy(obs, deterministic=True)[0]) and log_probs.isfinite().all()
    assert th.equal(policy.get_distribution(lacking).mode(), policy.get_distribution(obs).mode())
    assert policy.predict_values(only(obs, CRITICS) | lacking).isfinite().all()


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_a_mask_in_the_observations_is_needed_too(policy):
    env = vec(ACTIONS["multibinary"], SPACE, env_class=KeyMaskedEnv)
    model = make(policy=policy, env=env, action_mask_key="mask").learn(32)
    obs = env.reset()
    seen = only(obs, [*ACTORS, "mask"])
    assert equal_actions(model.predict(seen, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    with pytest.raises(ValueError, match=r"the keys \['both', 'mask', 'policy'\]"):
        model.predict(only(obs))
    model.evaluate(2)


# --- what lasts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_a_saved_model_and_a_saved_policy_see_the_same(policy, tmp_path):
    model = make(policy=policy).learn(32)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = PPO_Plus.load(tmp_path / "model", device="cpu")
    policies = [loaded.policy, type(model.policy).load(tmp_path / "policy", device="cpu"), copy.deepcopy(model.policy)]
    obs = observations()
    for each in policies:
        assert each.actor_keys == ACTORS and each.critic_keys == CRITICS
        assert equal_actions(each.predict(only(obs), deterministic=True)[0], model.predict(obs, deterministic=True)[0])
        assert th.equal(each.predict_values(tensors(obs)), model.policy.predict_values(tensors(obs)))
